"""Damaged input to every command, from data files to saved models.

The outcome is one line that names the file, a non-zero exit, and nothing changed on disk; where a
command can do without the file, it may also succeed.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import fixtures as fx
from tests.command import Outcome, run
from tests.fuzz.mutations import lines

pytestmark = pytest.mark.slow

SMALL = ("--max-length=32", "--batch-size=8", "--precision=fp32", "--steps=2")
MODEL = ("--model=bert", *SMALL)


@dataclass(frozen=True)
class Case:
    """A command, the file that it reads, and its new content."""

    name: str
    arguments: tuple[str, ...]
    file: str
    content: bytes
    fails: bool = True
    """Whether the command must fail; otherwise it may also succeed."""


PLACE = {"bert", "narrow", "sentiment", "pairs", "entities", "r", "classify", "tag", "ner", "seeds"}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with data, a model, runs of three tasks, two seeds and a recipe."""
    data = ("sentiment", "pairs", "entities")
    folder = fx.copy_checkpoints_and_data(tmp_path_factory.mktemp("damaged"), *data)
    with contextlib.chdir(folder):
        Path("r").mkdir()
        Path("r/recipe.yaml").write_text("task: classify\nmodel: bert\ndata: sentiment\n")
        for task in ("classify", "tag", "ner"):
            fx.train(task, Path(task), model="bert", data=fx.DATA[task], max_length=32).ok()
        run("run", "r/recipe.yaml", *SMALL, "--seeds=2", "--out=seeds").ok()
        assert {path.name for path in folder.iterdir()} == PLACE
        yield folder


GOOD = [{"text": "a warm room", "label": "pos"}, {"text": "a cold room", "label": "neg"}] * 4
BINARY = bytes(range(256)) * 8
NOT_ROWS = {
    "binary": BINARY,
    "NUL bytes": b"\0" * 4096,
    "UTF-16": '{"text": "a", "label": "b"}\n'.encode("utf-16"),
    "not UTF-8": b'{"text": "caf\xe9", "label": "b"}\n',
    "half a line": lines(*GOOD)[:-9],
    "a list": b"[1, 2]\n",
    "a damaged gzip": gzip.compress(lines(*GOOD))[:-12],
}


def data_cases() -> Iterator[Case]:
    train = {
        "classify": ("classify", *MODEL, "--dry-run", "--data"),
        "nli": ("nli", *MODEL, "--dry-run", "--data"),
        "tag": ("tag", *MODEL, "--dry-run", "--data"),
        "ner": ("ner", *MODEL, "--dry-run", "--data"),
        "check": ("check",),
        "predict texts": ("predict", "classify", "--file"),
        "predict words": ("predict", "tag", "--file"),
        "gold of score": ("score", "classify/predictions.test.jsonl"),
        "gold of report": ("report", "classify/predictions.test.jsonl", "--format=table", "--gold"),
        "gold of compare": ("compare", "classify", "classify", "--gold"),
    }
    for (name, command), (damage, content) in itertools.product(train.items(), NOT_ROWS.items()):
        file = "new.jsonl"
        fails = name != "gold of compare"
        yield Case(f"{name}: {damage}", (*command, file), file, content, fails)
    rows = {
        "text is an object": lines({"text": {"a": 1}, "label": "a"}, *GOOD),
        "label is a nested list": lines({"text": "a", "label": [["a"]]}, *GOOD),
        "no rows": b"",
        "other columns": lines({"a": 1, "b": 2}),
        "tags is null in a list": lines({"tokens": ["a"], "tags": [None]}),
    }
    for (damage, content), name in itertools.product(rows.items(), ("classify", "ner")):
        yield Case(f"{name}: {damage}", (*train[name], "new.jsonl"), "new.jsonl", content)
    files = {
        "y.json": b'{"a": ',
        "a.csv": b'text,label\n"open,pos\n',
        "c.csv": b"text,label\n\xff\xfe,pos\n",
        "e.tsv": b"text\tlabel\na\n",
        "a.parquet": b"PAR1" + BINARY + b"PAR1",
        "a.conll": b"a O\nb\n",
        "b.conll": BINARY,
        "b.conllu": b"x\ty\tz\n\n",
        "a.txt.gz": b"\x1f\x8b" + b"\0" * 20,
        "b.csv.gz": gzip.compress(b"text,label\n" * 99)[:-9],
    }
    for (file, new), name in itertools.product(files.items(), ("check", "classify", "tag")):
        yield Case(f"{name}: {file}", (*train[name], file), file, new)


HALF = b"HALF"
"""Stands for the first half of the file, as a copy that was interrupted leaves it."""
DAMAGES = {
    "empty": b"",
    "half": HALF,
    "of git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}
RESUME = ("classify", *MODEL, "--data=sentiment", "--out=classify", "--resume")
PAGE, TABLE = "--out=page.html", "--format=table"
SEVERAL = ("run", "r/recipe.yaml", *SMALL, "--seeds=2", "--out=seeds")
INIT = ("classify", *SMALL, "--init-from=classify", "--data=sentiment", "--out=new")
TRAIN = ("classify", *MODEL, "--data=sentiment", "--out=new")
MODEL_FILES = "config.json tokenizer.json model.safetensors"
STATE = "trainer_state.json optimizer.safetensors model.safetensors"
RUN_FILES = "config.json metrics.json environment.json"
SAVED = f"finetune.json {MODEL_FILES}"
Damaged = list[tuple[str, tuple[str, ...], str, str]]
MUST_FAIL: Damaged = [
    ("predict", ("predict", "classify", "--text=a"), "classify/best", SAVED),
    ("predict tags", ("predict", "tag", "--text=a"), "tag/best", SAVED),
    ("predict spans", ("predict", "ner", "--text=a"), "ner/best", SAVED),
    ("export", ("export", "classify", "--out=graph"), "classify/best", SAVED),
    ("init", INIT, "classify/best", MODEL_FILES),
    ("train", TRAIN, "bert", MODEL_FILES),
    ("resume", RESUME, "classify/last", STATE),
    ("score", ("score", "new.jsonl", "sentiment/test.jsonl"), ".", "new.jsonl"),
    ("report", ("report", "new.jsonl", TABLE), ".", "new.jsonl"),
    ("compare", ("compare", "classify", "new.jsonl"), ".", "new.jsonl"),
]
"""Name, command, folder, and files of it that the toolkit has written and the command reads."""
MAY_PASS: Damaged = [
    ("resume", RESUME, "classify", "last/finetune.json log.jsonl"),
    ("report", ("report", "tag", PAGE), "tag", f"{RUN_FILES} log.jsonl training_vocabulary.json"),
    ("seeds", SEVERAL, "seeds/seed-1", RUN_FILES),
]


def saved_cases() -> Iterator[Case]:
    for fails, rows in ((True, MUST_FAIL), (False, MAY_PASS)):
        for name, command, folder, files in rows:
            for file, damage in itertools.product(files.split(), DAMAGES):
                path = os.path.normpath(os.path.join(folder, file))
                yield Case(f"{name}: {file}: {damage}", command, path, DAMAGES[damage], fails)


CASES = [*data_cases(), *saved_cases()]


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files and folders of a folder; of files with their sizes and times."""
    paths = sorted(folder.rglob("*"))
    return {p: (p.stat().st_size, p.stat().st_mtime_ns) if p.is_file() else (0, 0) for p in paths}


def assert_one_line(outcome: Outcome, case: Case) -> None:
    assert "\0" not in outcome.err and "Traceback" not in outcome.err
    lines = outcome.err.splitlines()
    errors = [line for line in lines if line.startswith(("error: ", "internal error: "))]
    assert len(errors) == 1, outcome.err[-2000:]
    assert errors[0].startswith("error: "), errors[0]
    assert lines[-1] == errors[0], outcome.err[-2000:]
    name = Path(case.file).name.removesuffix(".gz")
    of_model = not case.fails and str(Path(case.file).parent)
    assert name in errors[0] or (of_model and of_model in errors[0]), errors[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_damaged_file_is_named(case: Case, workdir: Path) -> None:
    """The file is put back after the command."""
    path = workdir / case.file
    kept = path.read_bytes() if path.is_file() else None
    try:
        half = (kept or b"")[: len(kept or b"") // 2]
        path.write_bytes(half if case.content is HALF else case.content)
        before = snapshot(workdir)
        outcome = run(*case.arguments)
        failed = outcome.code != 0
        assert failed or not case.fails, "accepted:\n" + outcome.out[-500:] + outcome.err[-500:]
        if failed:
            if outcome.code != 1 or outcome.err:  # check lists errors of data and exits with 1
                assert_one_line(outcome, case)
            after = snapshot(workdir)
            assert after == before, {*after.items()} ^ {*before.items()}
    finally:
        for new in [each for each in workdir.iterdir() if each.name not in PLACE]:
            shutil.rmtree(new) if new.is_dir() else new.unlink()
        if kept is not None:
            path.write_bytes(kept)
