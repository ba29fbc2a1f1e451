"""Checkpoints, data and runs that tests share: each is made on first use, by one worker for all.

checkpoint("roberta")                          # a folder with a tiny encoder and its tokenizer
data("sentiment")                              # a folder with the three splits
trained("tag", data=data("documents"))         # the folder of a small run
shutil.copytree(trained("tag"), tmp_path / "run")     # for a test that writes into it

Nothing changes what these functions return: after each file of tests a fixture of
``tests/conftest.py`` compares all folders with the state in which they were made. Ask for a folder
before you patch what makes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

import finetune
from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.data import Dataset
from finetune.inference.predictor import Predictor
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.tasks import load_task, save_task
from finetune.training.scoring import FitResult
from tests import small_data, tiny
from tests.command import Outcome, run

DATA = {
    "classify": "sentiment",
    "nli": "pairs",
    "choice": "choices",
    "tag": "entities",
    "ner": "entities",
    "relations": "relations",
    "qa": "questions",
    "sentence": "numbers",
    "pretrain": "running_text",
}
"""The data of each task, by their function of ``tests/small_data.py``."""
SETUPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{task: (task, name, {}) for task, name in DATA.items()},
    "several labels": ("classify", "topics", {}),
    "numbers": ("classify", "numbers", {}),
    "balanced": ("classify", "sentiment", {"sampling": "balanced"}),
    "bi": ("classify", "pairs", {"pair_encoder": "bi"}),
    "context": ("tag", "documents", {"context": "doc"}),
    "tag windows": ("tag", "windows", {}),
    "crf": ("tag", "windows", {"crf": True}),
    "ner windows": ("ner", "windows", {}),
    "multi ner": ("ner", "windows", {"multi_label": True}),
    "mirror": ("sentence", "similar", {"objective": "mirror"}),
    "simcse": ("sentence", "similar", {"objective": "simcse"}),
    "prompt": ("sentence", "similar", {"objective": "prompt"}),
    "cosine": ("sentence", "similar", {"objective": "cosine"}),
    "cmlm": ("sentence", "similar", {"objective": "cmlm"}),
    "softmax": ("sentence", "related", {"objective": "softmax"}),
    "ranking": ("sentence", "triples", {"objective": "ranking"}),
    "spans": ("pretrain", "short_text", {"mask": "spans", "boundary": True}),
    "nsp": ("pretrain", "short_text", {"mask": "spans", "boundary": True, "nsp": True}),
}
"""Setups of runs: a task, its data, and settings. Each task is a setup."""
SETTINGS: dict[str, Any] = {"steps": 2, "batch_size": 8, "max_length": 40, "precision": "fp32"}
"""What runs have in common."""


def checkpoint(family: str = "bert", **changes: Any) -> Path:
    """A pretrained-like checkpoint, as ``tiny.save_tiny_checkpoint`` writes it."""
    return made(family, changes, lambda out: tiny.save_tiny_checkpoint(out, family, **changes))


def copy_checkpoints_and_data(folder: Path, *names: str) -> Path:
    """Copy data by their names into a folder of commands, and the checkpoints bert and narrow."""
    shutil.copytree(checkpoint(), folder / "bert")
    shutil.copytree(checkpoint(hidden_size=16), folder / "narrow")
    for name in names:
        shutil.copytree(data(name), folder / name)
    return folder


def tokenizer(family: str = "bert") -> SubwordTokenizer:
    """The tokenizer of a checkpoint, as tasks use it."""
    return SubwordTokenizer.from_pretrained(str(checkpoint(family)))


def data(name: str, *sizes: tuple[int, int, int], **options: Any) -> Path:
    """The folder that a function of ``tests/small_data.py`` writes; of a task, its data."""
    name = DATA.get(name, name)
    return made(
        name, (sizes, options), lambda out: getattr(small_data, name)(out, *sizes, **options)
    )


def settings_of(setup: str, **changes: Any) -> dict[str, Any]:
    """The settings of a small run; a change to None takes the setting away."""
    _, name, own = SETUPS[setup]
    given = {"model": str(checkpoint()), "data": str(data(name)), **SETTINGS, **own, **changes}
    return {name: value for name, value in given.items() if value is not None}


def config(setup: str, **changes: Any) -> TrainConfig:
    """The configuration of a small run: a tiny model, the data of the task, two steps."""
    settings = settings_of(setup, **changes)
    texts = {n: str(value) if isinstance(value, Path) else value for n, value in settings.items()}
    return CONFIGS[SETUPS[setup][0]](**texts)


def load(config: TrainConfig) -> tuple[Any, Dataset]:
    """The task of a configuration and its data."""
    return load_task(config, next(name for name, setup in CONFIGS.items() if type(config) is setup))


@contextlib.contextmanager
def padded_rows(on: bool = True) -> Iterator[None]:
    """Let all encoders that are made within a ``with`` block pad their rows."""
    with pytest.MonkeyPatch.context() as patch:
        if on:
            patch.setattr("finetune.models.encoder._padding_reason", lambda *_: "for this test")
        yield


def fit(config: TrainConfig, **options: Any) -> FitResult:
    """Train with a configuration."""
    return finetune.fit(*load(config), config, **options)


def words(setup: str, out: Path, **changes: Any) -> list[str]:
    """The command of a run with these settings."""
    found = [SETUPS[setup][0], "--out", str(out)]
    for name, value in settings_of(setup, **changes).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list | tuple):
            found += [f"--{option}", *map(str, value)]
        else:
            found.append(f"--{option}={value}")
    return found


def train(setup: str, out: Path, *more: str | Path, **changes: Any) -> Outcome:
    """Run the command of a run with these settings, and with further arguments."""
    return run(*words(setup, out, **changes), *more)


def trained(setup: str, **changes: Any) -> Path:
    """The folder of a finished run."""

    def make(out: Path) -> None:
        finetune.train(config(setup, **changes, out=str(out)), quiet=True)

    return made(SETUPS[setup][0], config(setup, **changes), make)


def untrained(task: str, rows: list[Any], **settings: Any) -> Path:
    """What a run on these examples saves of its model: untrained, with scores far apart."""

    def make(out: Path) -> None:
        data = Dataset("rows", {"train": rows, "validation": rows})
        given = {"model": str(checkpoint()), **settings}
        made, _ = load_task(CONFIGS[task](**given), task, data)
        head = made.model()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in tiny.head_parameters(head).values():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        head.save_pretrained(out / "best")
        save_task(made, out / "best")

    return made(task, (rows, settings), make)


def stream(task: Any, head: Any, examples: Iterable[Any], **options: Any) -> Iterator[Any]:
    """The predictions of a saved model for a stream of examples."""
    with tempfile.TemporaryDirectory() as folder:
        head.save_pretrained(folder)
        save_task(task, Path(folder))
        return Predictor(folder).stream(examples, **options)


def made(name: str, choices: Any, make: Callable[[Path], Any]) -> Path:
    """The folder that a function writes for these choices, unless it is there."""
    key = f"{name} {choices!r} {make.__qualname__}"
    if key not in _made_so_far:
        assert _root is not None, "tests/conftest.py opens the folder"
        digest = hashlib.sha256(key.replace(str(_root), "").encode()).hexdigest()
        folder = _root / digest[:12]
        out, finished = folder / name, folder / "finished"
        folder.mkdir(exist_ok=True)
        with FileLock(folder / "lock"):  # of all workers of pytest-xdist, one makes it
            if not finished.exists():
                shutil.rmtree(out, ignore_errors=True)  # of an attempt that failed
                with torch.random.fork_rng(devices=[]):  # a test draws equal numbers, first or not
                    make(out)
                finished.touch()
        _made_so_far[key] = out, _files(out)
    _asked.add(key)
    return _made_so_far[key][0]


_asked: set[str] = set()
"""What was asked for since the last look at what has changed."""
_made_so_far: dict[str, tuple[Path, dict[Path, tuple[int, int]]]] = {}
_root: Path | None = None


def open_folder(folder: Path) -> None:
    """Let all be made in a folder."""
    global _root
    _root = folder


def changed_files() -> list[Path]:
    """Files that are not as they were made; what is lost or new in a folder is made again."""
    found = []
    while _asked:
        folder, before = _made_so_far[key := _asked.pop()]
        now = _files(folder)
        if now != before:
            found += [path for path in {*before, *now} if before.get(path) != now.get(path)]
            shutil.rmtree(folder.parent)
            del _made_so_far[key]
    return found


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of each file of a folder."""
    files = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in files.items()}
