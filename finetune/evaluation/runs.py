"""Open run folders; find, align and score the predictions of files and of runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from finetune.config.tasks import CONFIGS, column_map
from finetune.config.values import conforms
from finetune.data import DataError
from finetune.data.files import UTF_8
from finetune.data.json_files import read_object
from finetune.data.nli_labels import canonical_names
from finetune.evaluation.alignment import (
    AlignedPredictions,
    Gold,
    align,
    align_ids,
    best_answers,
    predicts_numbers,
)
from finetune.evaluation.kinds import wording
from finetune.evaluation.metrics import (
    answer_scores,
    relation_scores,
    scores,
    span_scores,
    tagging_scores,
)
from finetune.evaluation.pairs import NO_LABEL, named_positive, positive_label
from finetune.evaluation.predictions import PredictionFile, read_gold_file, read_predictions
from finetune.evaluation.subgroups import TrainingVocabulary
from finetune.runtime.cache import file_hash
from finetune.runtime.files import write_text
from finetune.types import (
    Example,
    SenseTarget,
    TextExample,
    UserError,
    abbreviated,
    last_part,
    quantity,
)

_PREDICTIONS = "predictions.{}.jsonl"
CHECKSUMS = "checksums.json"
"""File of a finished run, and of a checkpoint, with the hashes of its files."""
_MODEL = ("adapter", "best")
"""The folders of a run with its model, which is not made again from the others."""


@dataclass(frozen=True)
class RunFolder:
    """A run, opened: what its folder held at that time."""

    path: Path
    config: Mapping[str, Any]
    """``config.json``: the settings, and facts such as the fingerprint of the data."""
    metrics: Mapping[str, Mapping[str, float]]
    """``metrics.json``: scores by split and name."""
    environment: Mapping[str, Any]
    """``environment.json``: versions, baselines, and why the run is degenerate."""
    problems: Mapping[str, str]
    """Why a file could not be read, by its name. Empty text: the run has not written it."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read what a run has written until now; nothing of a folder without a run."""
        found: dict[str, dict[str, Any]] = {}
        problems = {}
        for name, types in _FILES.items():
            found[name] = {}
            try:
                found[name] = read_object(path / name, types)
            except OSError:
                problems[name] = ""
            except UserError as error:
                problems[name] = str(error)
        if not conforms(found["metrics.json"], dict[str, dict[str, float]]):
            problems["metrics.json"] = (
                f"{path / 'metrics.json'} is damaged: it must hold scores by split and name."
            )
            found["metrics.json"] = {}
        return cls(
            path,
            found["config.json"],
            found["metrics.json"],
            found["environment.json"],
            problems,
        )

    @property
    def is_run(self) -> bool:
        """True if the folder holds a run, finished or not, and not only a model."""
        return conforms(self.config.get("task"), Literal[*CONFIGS]) and conforms(
            self.config.get("fingerprint"), str
        )

    @property
    def is_finished(self) -> bool:
        """True if all files of a finished run exist; README.md is written last."""
        whole = not {"metrics.json", "environment.json"} & self.problems.keys()
        return whole and (self.path / "README.md").is_file()

    def require_config(self) -> None:
        """Raise UserError if the folder has the log of a run, and no settings that are whole."""
        if not self.is_run and (self.path / "log.jsonl").is_file():
            raise UserError(
                self.problems.get("config.json")
                or f"{self.path / 'config.json'}: damaged or missing: restore it from a copy, or "
                "train again with another --out."
            )

    def require_intact(self) -> Path | None:
        """Raise UserError if the model of a finished run has changed since.

        Reads all files of the run, if it has checksums. Returns another file that has changed; None
        if there is none.
        """
        found = damaged_file(self.path) if (self.path / CHECKSUMS).is_file() else None
        if found and found.relative_to(self.path).parts[0] in _MODEL:
            raise UserError(
                f"{found}: damaged, changed or missing since the run was finished: restore it from "
                f"a copy, or delete {self.path} and train again. If you changed it yourself, "
                f"delete {self.path / CHECKSUMS}."
            )
        return found

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the data by role, as the settings name them; empty for no run.

        Raises:
            UserError: ``config.json`` is damaged.
        """
        if problem := self.problems.get("config.json"):
            raise UserError(problem)
        return column_map(self.config.get("columns") or ())

    @property
    def best(self) -> Path:
        """The folder of the best model."""
        return self.path / "best"

    def predictions(self, split: str) -> Path:
        """Return the file with the predictions of a split, which also holds their gold."""
        return self.path / _PREDICTIONS.format(split)

    @property
    def splits(self) -> list[str]:
        """The splits with predictions."""
        found = self.path.glob(_PREDICTIONS.format("*"))
        return [file.name.split(".")[1] for file in found]


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


def write_run_checksums(folder: Path) -> None:
    """Write the hashes of the files of a finished run: model, settings, predictions, scores."""
    found = [folder / name for name in _FILES if (folder / name).is_file()]
    found += folder.glob(_PREDICTIONS.format("*"))
    found += [
        path
        for name in _MODEL
        for path in (folder / name).rglob("*")
        if path.is_file() and path.suffix != ".md"
    ]
    write_checksums(folder, found)


def write_checksums(folder: Path, files: Iterable[Path]) -> None:
    """Write the hashes of files in a folder."""
    hashes = {path.relative_to(folder).as_posix(): file_hash(path) for path in sorted(files)}
    write_text(folder / CHECKSUMS, json.dumps(hashes, indent=2) + "\n")


def damaged_file(folder: Path) -> Path | None:
    """Return a file that is damaged or missing since checksums were written; None without one."""
    path = folder / CHECKSUMS
    try:
        for name, expected in read_object(path).items():
            path = folder / name
            if file_hash(path) != expected:
                return path
    except (OSError, UserError):
        return path
    return None


@dataclass(frozen=True)
class NamedPredictions:
    """A system as the user named it, and the prediction file of each of its runs."""

    name: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class AlignedRuns:
    """The predictions of several runs for the same examples; ``gold`` is the name of its file."""

    runs: Sequence[AlignedPredictions]
    gold: str
    vocabulary: TrainingVocabulary | None
    in_one_file: bool = False
    positive_note: str = ""

    @property
    def aligned_by(self) -> str:
        """``id`` or ``position``; empty for one file with its gold."""
        by = {run.by for run in self.runs}
        return "" if self.in_one_file else "position" if "position" in by else "id"


def find_system(name: str, split: str) -> NamedPredictions:
    """Return the prediction files of a system.

    ``name`` is a prediction file, a run folder (with ``split``), a folder of run folders (several
    seeds), or a list of these with commas.
    """
    parts = [name] if Path(name).exists() else [part.strip() for part in name.split(",")]
    files = tuple(file for part in parts if part for file in _files_of(Path(part), split))
    if len({file.resolve() for file in files}) < len(files):
        raise UserError(f"{name}: names the same predictions twice.")
    if not files:
        raise UserError(f"{name!r} names no predictions: give a file or the folder of a run.")
    return NamedPredictions(name, files)


def _files_of(path: Path, split: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    name = _PREDICTIONS.format(split)
    if (path / name).is_file():
        return [path / name]
    inside = path.glob(f"*/{name}")
    if files := sorted(inside, key=lambda file: (len(file.parent.name), file.parent.name)):
        return files  # seed-2 before seed-10
    found = {
        file.name.split(".")[1]
        for pattern in ("", "*/")
        for file in path.glob(pattern + _PREDICTIONS.format("*"))
    }
    hint = f"; write --split {abbreviated(sorted(found))}" if found else ""
    raise UserError(f"{path}: no {name} in it or in its folders{hint}.")


def name_of_run(name: str) -> str:
    """Return the name of a system for a table: the last part of each of its paths."""
    parts = [Path(part.strip()) for part in name.split(",")]
    folders = [path.parent if RunFolder.open(path.parent).config else path for path in parts]
    return ",".join(last_part(str(folder.resolve())) for folder in folders)


def data_of_run(name: str) -> str:
    """Return the name of the data that a system was trained on; `data` where no run tells."""
    for part in name.split(","):
        path = Path(part.strip())
        for folder in (path, path.parent, *sorted(path.glob("seed-*"))):
            if data := RunFolder.open(folder).config.get("data"):
                return last_part(data)
    return "data"


def align_runs(
    paths: Sequence[Path],
    gold: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    usual_columns: Mapping[str, str] | None = None,
    train: str | None = None,
    positive: str | None = None,
    encoding: str = UTF_8,
) -> AlignedRuns:
    """Read prediction files for the same examples and align them with the same gold.

    Args:
        paths: Prediction files or run folders.
        gold: A file; None takes the gold in a prediction file, and the vocabulary of its run.
        train: A file with training data, to tell seen from unseen words.
        columns: Columns of these files by role.
        usual_columns: Columns to read if a file has them; the default is the columns of the run.
        encoding: Encoding of all files except JSON Lines with predictions.
        positive: The positive class of two labels; the default is the class of the runs, else
            ``positive_label`` chooses.
    """
    files = _in_one_order([read_predictions(path, encoding) for path in paths])
    kinds = [file.kind for file in files]
    if {*kinds} == {"tags", "spans"}:
        kinds = ["spans"] * len(files)
    _check_kinds(files, kinds)
    vocabulary = None
    usual = usual_columns
    if usual is None:
        usual = RunFolder.open(paths[0].parent).columns if gold or train else {}
    if gold is not None:
        golds = {
            kind: Gold(gold, read_gold_file(gold, columns, kind, encoding, usual))
            for kind in {*kinds}
        }
    else:
        if columns and train is None:
            role, name = next(iter(columns.items()))
            raise UserError(f"--columns {role}={name} is about a file of gold: add --gold FILE.")
        source = _file_with_gold(files)
        golds = {kind: Gold(str(source), source.gold(kind)) for kind in {*kinds}}
        vocabulary = TrainingVocabulary.load(source.path.parent)
    if train is not None:
        if kinds[0] == "senses":
            raise UserError(f"--train {train}: it does not apply to senses: leave it out.")
        vocabulary = TrainingVocabulary.of(
            read_gold_file(train, columns, kinds[0], encoding, usual)
        )
    runs = [align(file, golds[kind], kind) for file, kind in zip(files, kinds, strict=True)]
    if {run.kind for run in runs} == {"label", "number"} and all(map(predicts_numbers, files)):
        # some files have whole numbers only
        runs = [align(file, golds["label"], "number") for file in files]
    _check_kinds(files, [run.kind for run in runs])
    if gold is None and source.format == "conll":
        _check_gold_column(runs[0], source)
    chosen, note = _positive(runs, positive)
    runs = [run._replace(positive=chosen) for run in runs]
    name = golds[kinds[0]].name
    return AlignedRuns(runs, name, vocabulary, gold is None and len(files) == 1, note)


def _positive(runs: Sequence[AlignedPredictions], given: str | None) -> tuple[str | None, str]:
    """Return the positive class: the given class, the class of the models, or ``positive_label``.

    The second value is a note if only frequency decided.
    """
    labels: set[str] = set()
    if runs[0].kind == "label":
        labels = {name for run in runs for side in (run.gold, run.predicted) for name in side}
        labels.discard(NO_LABEL)
    saved = {row["positive_label"] for run in runs for row in run.rows if "positive_label" in row}
    known_names = {*canonical_names([*labels, *saved])}
    if given is not None and (runs[0].kind != "label" or len(known_names) > 2):
        raise UserError(f"--positive {given}: it applies to texts with one of two labels.")
    if len(labels) != 2:
        return given or next(iter(saved), None) if len(labels) == 1 else None, ""
    names = canonical_names([*labels, given or (next(iter(saved)) if len(saved) == 1 else "")])
    known = names[-1] if given or names[-1] in labels else None
    positive = positive_label(labels, Counter(runs[0].gold), known)
    if known or named_positive(labels):
        return positive, ""
    note = f"f1 scores {positive!r}, the rarer label of gold; --positive names another."
    return positive, note


def _in_one_order(files: Sequence[PredictionFile]) -> list[PredictionFile]:
    """Return the files with their rows in the order of one of them, by id if they have ids.

    Files of senses, which may leave targets out, stay as they are.
    """
    if all("senses" in row for file in files for _, row in file.rows):
        return list(files)
    first = next((file for file in files if file.ids is not None), files[0])
    places = [where for where, _ in first.rows]
    found = []
    for file in files:
        if first.ids is not None and file.ids is not None:
            order = align_ids(file, first.ids, places, str(first))
            file = replace(file, rows=[file.rows[index or 0] for index in order])
        elif len(file.rows) != len(first.rows):
            raise DataError(
                f"{file}: {quantity(len(file.rows), 'prediction')}, but {len(first.rows):,} in "
                f"{first}: the files do not belong together, or one was cut."
            )
        found.append(file)
    return found


def _check_kinds(files: Sequence[PredictionFile], kinds: Sequence[str]) -> None:
    for file, kind in zip(files, kinds, strict=True):
        if kind != kinds[0]:
            raise DataError(
                f"{file} predicts {wording(kind).predicted}, but {files[0]} "
                f"{wording(kinds[0]).predicted}: only predictions of one kind can be compared."
            )


def _file_with_gold(files: Sequence[PredictionFile]) -> PredictionFile:
    """Return the first file that holds its gold; refuse runs that were scored on other gold."""
    with_gold = [file for file in files if file.has_gold]
    if not with_gold:
        raise UserError(
            f"{abbreviated(list(map(str, files)), 2)}: no gold in it to compare with: name a file "
            "with --gold FILE."
        )
    first = next((file for file in with_gold if file.format == "conll"), with_gold[0])
    for other in with_gold:
        same_kind = other.kind == first.kind
        contents = [
            [_content(example, same_kind) for example in file.gold(file.kind)]
            for file in (first, other)
            if first.format == other.format == "jsonl"
        ]
        if contents and contents[0] != contents[1]:
            raise UserError(
                f"{other} has other examples, or other gold, than {first}: only predictions for "
                "the same examples can be compared."
            )
    return first


def _content(example: Example | SenseTarget, same_kind: bool) -> tuple[object, ...]:
    """Return the content of an example, with its gold if that can be compared."""
    if isinstance(example, SenseTarget):
        return example.key, example.senses
    if isinstance(example, TextExample):
        texts = example.text, example.pair, example.choices
        return *texts, example.label, example.answers
    gold = example.tags, example.spans, example.relations
    return (example.words, *gold) if same_kind else example.words


def _check_gold_column(run: AlignedPredictions, file: PredictionFile) -> None:
    """Refuse a column that was taken for gold and shares no tag with the predictions."""
    if run.kind != "tags":
        return
    gold, predicted = ({tag for tags in side for tag in tags} for side in (run.gold, run.predicted))
    if predicted - {"O"} and not (gold & predicted) - {"O"}:
        raise DataError(
            f"{file}: the last column but one ({abbreviated(sorted(gold), 4)}) holds no gold for "
            f"the last ({abbreviated(sorted(predicted), 4)}): name the gold with --gold FILE."
        )


def score_predictions(
    predictions: Path,
    gold: str,
    columns: Mapping[str, str] | None = None,
    positive: str | None = None,
) -> dict[str, float]:
    """Return the metrics of a prediction file by name, without a model.

    Predictions are JSON Lines with ``label`` (a name, a list of names, or a number), ``tags``,
    ``relations``, ``answer``, or ``spans`` (in words; in characters where the line has a ``text``
    and no words), or words in columns of which the last is predicted, or a JSON object of answers
    by id. Predictions and gold are aligned by ``id`` where both have ids, else by position.
    ``columns`` names columns of the gold file by role.
    """
    return score_aligned(
        align_runs([predictions], gold, columns=columns, positive=positive).runs[0]
    )


def score_aligned(run: AlignedPredictions) -> dict[str, float]:
    """Return the metrics of aligned predictions by name."""
    if run.kind == "tags":
        return tagging_scores(run.gold, run.predicted, *run.schemes, run.characters)
    if run.kind == "spans":
        return span_scores(run.gold, run.predicted, run.characters)
    if run.kind == "relations":
        return relation_scores(run.gold, run.predicted)
    if run.kind == "answers":
        return answer_scores(run.gold, run.predicted, *best_answers(run.rows))
    return scores(run.pairs())
