"""Open run folders, and find the predictions of systems."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from finetune.config.tasks import CONFIGS, with_current_names
from finetune.config.values import conforms
from finetune.data.json_files import read_object
from finetune.runtime.cache import file_hash
from finetune.runtime.files import write_text
from finetune.types import UserError, abbreviated

_PREDICTIONS = "predictions.{}.jsonl"
CHECKSUMS = "checksums.json"
"""File of a finished run, and of a checkpoint, with the hashes of its files."""
_MODEL = ("adapter", "best")
"""The folders of a run with its model, which is not made again from the others."""


@dataclass(frozen=True)
class RunFolder:
    """The content of a run folder when it was opened."""

    path: Path
    config: Mapping[str, Any]
    """``config.json``: the settings, and metadata such as the fingerprint of the data."""
    metrics: Mapping[str, Mapping[str, Any]]
    """``metrics.json``: scores by split and name; of several runs their statistics."""
    environment: Mapping[str, Any]
    """``environment.json``: versions, baselines, and why the run is degenerate."""
    problems: Mapping[str, str]
    """Why a file could not be read, by its name. Empty text: the run has not written it."""
    seeds: Mapping[str, Any] = field(default_factory=dict)
    """``seeds.json`` or ``folds.json`` of a folder of several runs."""

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Read the files of a run so far; a folder without a run has none."""
        contents, problems = dict[str, dict[str, Any]](), dict[str, str]()
        for name, types in _FILES.items():
            try:
                contents[name] = read_object(path / name, types)
            except OSError:
                problems[name] = ""
            except UserError as error:
                problems[name] = str(error)
        config, metrics, environment = (contents.get(name, {}) for name in _FILES)
        if not conforms(metrics, dict[str, dict[str, float]]):
            problems["metrics.json"] = (
                f"{path / 'metrics.json'} is damaged: it must hold scores by split and name."
            )
            metrics = {}
        return cls(path, with_current_names(config), metrics, environment, problems)

    @classmethod
    def open_all(cls, path: Path) -> RunFolder:
        """Read a run, or a folder of several: the settings of the first, statistics of all."""
        seeds: dict[str, Any] = {}
        with contextlib.suppress(OSError, UserError):
            seeds = read_summary(path)
        if not seeds:
            return cls.open(path)
        first = cls.open(min(path.glob("seed-*"), default=path))
        return replace(first, path=path, metrics=seeds.get("metrics") or {}, seeds=seeds)

    @property
    def is_run(self) -> bool:
        """True if the folder holds a run, finished or not, and not only a model."""
        return conforms(self.config.get("task"), Literal[*CONFIGS]) and conforms(
            self.config.get("fingerprint"), str
        )

    @property
    def is_finished(self) -> bool:
        """True if all files of a finished run exist; README.md is written last."""
        has_scores = not {"metrics.json", "environment.json"} & self.problems.keys()
        return has_scores and (self.path / "README.md").is_file()

    def require_config(self) -> None:
        """Raise UserError if the folder has the log of a run, and no settings that are whole."""
        if not self.is_run and (self.path / "log.jsonl").is_file():
            raise UserError(
                self.problems.get("config.json")
                or f"{self.path / 'config.json'}: damaged or missing: restore it from a copy, or "
                "train again with another --out."
            )

    def require_intact(self, *, model_only: bool = False) -> Path | None:
        """Raise UserError if the model of a finished run changed; return another changed file."""
        has_checksums = (self.path / CHECKSUMS).is_file()
        changed = damaged_file(self.path, _MODEL if model_only else ()) if has_checksums else None
        if changed and changed.relative_to(self.path).parts[0] in _MODEL:
            raise UserError(
                f"{changed}: damaged, changed or missing since the run was finished: restore it "
                f"from a copy, or delete {self.path} and train again. If you changed it yourself, "
                f"delete {self.path / CHECKSUMS}."
            )
        return changed

    def usual_metric(self, split: str, default: str) -> str:
        """Name the metric that selects models: of the settings, else the ``default``, or the first
        if scores lack it."""
        scores = self.metrics.get(split, {})
        usual = default if default in scores else next(iter(scores), default)
        return self.config.get("metric") or usual

    @property
    def best(self) -> Path:
        """The folder of the best model."""
        return self.path / "best"

    def predictions(self, split: str) -> Path:
        """The file with the predictions of a split, which also holds their gold."""
        return self.path / _PREDICTIONS.format(split)

    @property
    def splits(self) -> list[str]:
        """The splits with predictions."""
        files = self.path.glob(_PREDICTIONS.format("*"))
        return [file.name.split(".")[1] for file in files]


_FILES: Mapping[str, Mapping[str, Any]] = {
    "config.json": {"data": str | None, "columns": list[str] | None},
    "metrics.json": {},
    "environment.json": {
        "degenerate": list[str] | None,
        "baselines": dict[str, dict[str, Any]] | None,
        "versions": dict[str, str] | None,
        "splits": dict[str, int] | None,
        "recipe": dict[str, Any] | None,
    },
}
"""The files of a run that are JSON objects, with the types of their values."""


_SUMMARY: Mapping[str, Any] = {
    "seeds": list[int] | None,
    "metrics": dict[str, dict[str, dict[str, Any]]] | None,
    "degenerate": list[dict[str, Any]] | None,
    "verdicts": list[dict[str, Any]] | None,
    "baselines": dict[str, dict[str, Any]] | None,
    "ratio": float | None,
}
"""The types of the values of ``seeds.json`` and ``folds.json``."""


def read_summary(folder: Path) -> dict[str, Any]:
    """Read the summary of several seeds or folds; OSError if there is none."""
    folds = folder / "folds.json"
    return read_object(folds if folds.is_file() else folder / "seeds.json", _SUMMARY)


def write_run_checksums(folder: Path) -> None:
    """Write the hashes of the files of a finished run: model, settings, predictions, scores."""
    files = [folder / name for name in _FILES if (folder / name).is_file()]
    files += folder.glob(_PREDICTIONS.format("*"))
    files += [
        path
        for name in _MODEL
        for path in (folder / name).rglob("*")
        if path.is_file() and path.suffix != ".md"
    ]
    write_checksums(folder, files)


def write_checksums(folder: Path, files: Iterable[Path]) -> None:
    """Write the hashes of files in a folder."""
    hashes = {path.relative_to(folder).as_posix(): file_hash(path) for path in sorted(files)}
    write_text(folder / CHECKSUMS, json.dumps(hashes, indent=2) + "\n")


def damaged_file(folder: Path, parts: Collection[str] = ()) -> Path | None:
    """Find a file that is damaged or missing since checksums were written; None without one.

    Files of the model come first. Files elsewhere than in ``parts`` are not read, if there are any.
    """
    path = folder / CHECKSUMS
    try:
        hashes = read_object(path)
        names = [name for name in hashes if not parts or name.split("/")[0] in parts]
        for name in sorted(names, key=lambda name: name.split("/")[0] not in _MODEL):
            path = folder / name
            if file_hash(path) != hashes[name]:
                return path
    except (OSError, UserError):
        return path
    return None


def find_system(name: str, split: str) -> tuple[Path, ...]:
    """Find the prediction files of a system.

    ``name`` is a prediction file, a run folder (with ``split``), a folder of run folders (several
    seeds), or a list of these with commas.
    """
    parts = [name] if Path(name).exists() else [part.strip() for part in name.split(",")]
    files = tuple(file for part in parts if part for file in _files_of(Path(part), split))
    if len({file.resolve() for file in files}) < len(files):
        raise UserError(f"{name}: names the same predictions twice.")
    if not files:
        raise UserError(f"{name!r} names no predictions: give a file or the folder of a run.")
    return files


def require_common_scores(folder: Path) -> None:
    """Raise UserError for a folder of runs that have no common score.

    These are the runs of a learning curve, of a search and of several tasks.
    """
    if (folder / "config.json").is_file():
        return
    runs = [r for r in map(RunFolder.open, sorted(folder.glob("*/"))) if r.config.get("task")]
    if (folder / "sizes.json").is_file():
        content = "a learning curve, in curve.html and curve.json"
    elif (folder / "search.json").is_file():
        content = "a search, in search.json"
    elif len({run.config["task"] for run in runs}) > 1:
        content = "runs of several tasks"
    else:
        return
    example = f", for instance {runs[0].path}" if runs else ""
    raise UserError(f"{folder}: holds {content}: give one of its runs{example}.")


def _files_of(path: Path, split: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    require_common_scores(path)
    name = _PREDICTIONS.format(split)
    if (path / name).is_file():
        return [path / name]
    inside = path.glob(f"*/{name}")
    if files := sorted(inside, key=lambda file: (len(file.parent.name), file.parent.name)):
        return files  # seed-2 before seed-10
    files = [*path.glob(_PREDICTIONS.format("*")), *path.glob("*/" + _PREDICTIONS.format("*"))]
    split, *more = sorted({file.name.split(".")[1] for file in files}) or [""]
    hint = f": write --split {split}" if split else ": name a file of predictions, or another run"
    hint += f" (or {abbreviated(more)})" if more else ""
    raise UserError(f"{path}: no {name} in it or in its folders{hint}.")


def name_of_run(name: str) -> str:
    """Name a system for a table: the last part of each of its paths."""
    parts = [Path(part.strip()) for part in name.split(",")]
    folders = [path.parent if RunFolder.open(path.parent).config else path for path in parts]
    return ",".join(last_part(str(folder.resolve())) for folder in folders)


def data_of_run(name: str) -> str:
    """Name the data that a system was trained on; `data` if no run tells."""
    for part in name.split(","):
        path = Path(part.strip())
        for folder in (path, path.parent, *sorted(path.glob("seed-*"))):
            if data := RunFolder.open(folder).config.get("data"):
                return last_part(data)
    return "data"


def last_part(spec: str) -> str:
    """The last part of a path, with plain characters only."""
    return re.sub(r"[^\w.\-]+", "_", re.split(r"[/\\=]", spec.rstrip("/\\"))[-1]) or "data"
