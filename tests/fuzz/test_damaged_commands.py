"""Damaged and hostile input to every command, from data files to saved models.

The outcome is one line that names the file, a non-zero exit, and nothing changed on disk; inputs
that a command may accept (an edited number) end without an error or with such a line.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as fx
from tests.command import Outcome, run
from tests.fuzz.mutations import SEEDS, fuzz

pytestmark = pytest.mark.slow

SMALL = ("--max-length=32", "--batch-size=8", "--precision=fp32", "--steps=2")
MODEL = ("--model=bert", *SMALL)
DEEP = 100_000


@dataclass(frozen=True)
class Case:
    """A command, the file that it reads, and its new content; None is a folder in its place."""

    name: str
    arguments: tuple[str, ...]
    file: str
    content: bytes | None
    fails: bool = True
    """Whether the command must fail; otherwise it may also succeed."""
    named: str | None = None
    """Text that the line must have in place of the file's name."""


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


def texts(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


GOOD = [{"text": "a warm room", "label": "pos"}, {"text": "a cold room", "label": "neg"}] * 4
BINARY = bytes(range(256)) * 8
NOT_ROWS: dict[str, bytes] = {
    "binary": BINARY,
    "NUL bytes": b"\0" * 4096,
    "UTF-16": '{"text": "a", "label": "b"}\n'.encode("utf-16"),
    "not UTF-8": b'{"text": "caf\xe9", "label": "b"}\n',
    "half a line": texts(*GOOD)[:-9],
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"text": ' * DEEP,
    "a huge integer": b'{"text": "a", "label": ' + b"9" * 5000 + b"}\n",
    "a list": b"[1, 2]\n",
    "a number": b"3\n",
    "half a surrogate pair": b'{"text": "a", "label": "\\ud800"}\n',
    "a damaged gzip": gzip.compress(texts(*GOOD))[:-12],
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
        if damage == "half a surrogate pair" and name.startswith("predict"):
            continue  # the label is not read
        fails = name != "gold of compare"
        yield Case(f"{name}: {damage}", (*command, file), file, content, fails)
    rows: dict[str, bytes] = {
        "text is an object": texts({"text": {"a": 1}, "label": "a"}, *GOOD),
        "label is a nested list": texts({"text": "a", "label": [["a"]]}, *GOOD),
        "no rows": b"",
        "other columns": texts({"a": 1, "b": 2}),
        "tags is null in a list": texts({"tokens": ["a"], "tags": [None]}),
        "a span at a huge integer": texts({"tokens": ["a"], "spans": [[0, 10**40, "A"]]}),
    }
    for (damage, content), name in itertools.product(rows.items(), ("classify", "ner")):
        yield Case(f"{name}: {damage}", (*train[name], "new.jsonl"), "new.jsonl", content)
    files: dict[str, bytes | None] = {
        "y.json": b'{"a": ',
        "a.csv": b'text,label\n"open,pos\n',
        "c.csv": b"text,label\n\xff\xfe,pos\n",
        "e.tsv": b"text\tlabel\na\n",
        "a.parquet": b"PAR1" + BINARY + b"PAR1",
        "c.parquet": None,
        "a.conll": b"a O\nb\n",
        "b.conll": BINARY,
        "b.conllu": b"x\ty\tz\n\n",
        "a.txt.gz": b"\x1f\x8b" + b"\0" * 20,
        "b.csv.gz": gzip.compress(b"text,label\n" * 99)[:-9],
    }
    for (file, new), name in itertools.product(files.items(), ("check", "classify", "tag")):
        yield Case(f"{name}: {file}", (*train[name], file), file, new)


HALF = b"HALF"
"""Stands for the first half of the file."""
NOT_OBJECTS: dict[str, bytes | None] = {
    "empty": b"",
    "cut": b'{"labels": ["a", ',
    "binary": BINARY,
    "a list": b"[]",
    "null": b"null",
    "a number": b"7",
    "text": b'"text"',
    "deep": b"[" * DEEP,
    "a huge integer": b'{"a": ' + b"9" * 5000 + b"}",
    "an empty object": b"{}",
    "half": HALF,
    "a folder": None,
}


RESUME = ("classify", *MODEL, "--data=sentiment", "--out=classify", "--resume")
PAGE, TABLE = "--out=page.html", "--format=table"
PREDICT = ("predict", "classify", "--text=a")
SEVERAL = ("run", "r/recipe.yaml", *SMALL, "--seeds=2", "--out=seeds")
INIT = ("classify", *SMALL, "--init-from=classify", "--data=sentiment", "--out=new")
TRAIN = ("classify", *MODEL, "--data=sentiment", "--out=new")
EXPORT = ("export", "classify", "--out=graph")
MODEL_FILES = "config.json tokenizer.json model.safetensors"
STATE = "trainer_state.json optimizer.safetensors model.safetensors"
RUN_FILES = "config.json metrics.json environment.json"
LOGS = "log.jsonl training_vocabulary.json"
SAVED = "finetune.json config.json model.safetensors"
EVERY = (*NOT_OBJECTS,)
OF_MODELS = ("empty", "cut", "binary", "a list", "deep")
OF_STATE = ("empty", "cut", "binary", "a list", "a folder")
MUST_FAIL: list[tuple[str, tuple[str, ...], str, str, tuple[str, ...]]] = [
    ("predict", PREDICT, "classify/best", f"finetune.json {MODEL_FILES}", EVERY),
    ("export", EXPORT, "classify/best", f"finetune.json {MODEL_FILES}", ("cut",)),
    ("init", INIT, "classify/best", MODEL_FILES, ("cut",)),
    ("predict tags", ("predict", "tag", "--text=a"), "tag/best", SAVED, ("half",)),
    ("predict spans", ("predict", "ner", "--text=a"), "ner/best", SAVED, ("half",)),
    ("train", TRAIN, "bert", f"tokenizer_config.json {MODEL_FILES}", OF_MODELS),
    ("train", TRAIN, "bert", MODEL_FILES, ("a folder",)),
    ("resume", RESUME, "classify/last", STATE, OF_STATE),
    ("score", ("score", "new.jsonl", "sentiment/test.jsonl"), ".", "new.jsonl", EVERY),
    ("report", ("report", "new.jsonl", TABLE), ".", "new.jsonl", EVERY),
    ("compare", ("compare", "classify", "new.jsonl"), ".", "new.jsonl", EVERY),
]
"""Name, command, folder, files that the toolkit has written, and what is in their place."""
MAY_PASS: list[tuple[str, tuple[str, ...], str, str, tuple[str, ...]]] = [
    ("init", INIT, "classify/best", "finetune.json", ("cut",)),
    ("train", TRAIN, "bert", "tokenizer_config.json", ("a folder",)),
    ("resume", RESUME, "classify/last", "finetune.json", OF_STATE),
    ("resume", RESUME, "classify", "log.jsonl", EVERY),
    ("seeds", SEVERAL, "seeds/seed-1", RUN_FILES, EVERY[:-1]),  # a folder: the seed is unfinished
    ("report", ("report", "tag", PAGE), "tag", f"{RUN_FILES} {LOGS}", EVERY),
]


def saved_cases() -> Iterator[Case]:
    for fails, rows in ((True, MUST_FAIL), (False, MAY_PASS)):
        for name, command, folder, files, damages in rows:
            for file, damage in itertools.product(files.split(), damages):
                title, path = f"{name}: {file}: {damage}", os.path.join(folder, file)
                yield Case(title, command, os.path.normpath(path), NOT_OBJECTS[damage], fails)


EDITED = [
    ("classify/best/finetune.json", ("predict", "classify", "--text=a")),
    ("tag/best/finetune.json", ("predict", "tag", "--text=a")),
    ("ner/best/finetune.json", ("predict", "ner", "--text=a")),
    ("classify/best/config.json", ("predict", "classify", "--text=a")),
    ("ner/best/config.json", ("predict", "ner", "--text=a")),
    ("bert/config.json", ("classify", *MODEL, "--data=sentiment", "--dry-run")),
    ("classify/last/trainer_state.json", RESUME),
    ("classify/log.jsonl", RESUME),
    ("classify/config.json", ("report", "classify", PAGE)),
    ("tag/metrics.json", ("report", "tag", PAGE)),
    ("tag/environment.json", ("report", "tag", PAGE)),
    ("tag/training_vocabulary.json", ("report", "tag", TABLE)),
    ("tag/log.jsonl", ("report", "tag", PAGE)),
    ("seeds/seeds.json", ("score", "seeds")),
    ("seeds/seed-1/environment.json", ("report", "seeds", PAGE)),
    ("classify/predictions.test.jsonl", ("report", "classify", TABLE)),
    ("classify/predictions.test.jsonl", ("report", "classify", PAGE)),
    ("classify/predictions.test.jsonl", ("score", "FILE", "sentiment/test.jsonl")),
    ("tag/predictions.test.jsonl", ("report", "tag", TABLE)),
    ("tag/predictions.test.jsonl", ("compare", "tag", "tag")),
    ("tag/predictions.test.jsonl", ("score", "FILE", "entities/test.jsonl")),
    ("ner/predictions.test.jsonl", ("report", "ner", TABLE)),
    ("ner/predictions.test.jsonl", ("report", "ner", PAGE)),
    ("ner/predictions.test.jsonl", ("score", "FILE", "entities/test.jsonl")),
]
"""Files that the toolkit has written, and a command that reads each."""


def recipe_cases() -> Iterator[Case]:
    contents: dict[str, bytes | None] = {
        "deep": b"[" * 5000,
        "binary": BINARY,
        "NUL bytes": b"task: classify\0\n",
        "not UTF-8": b"task: caf\xe9\n",
        "two documents": b"task: classify\n---\ntask: nli\n",
        "a Python object": b"task: !!python/object/apply:os.system [true]\n",
        "a number as a key": b"task: classify\n3: 4\n",
        "task is a mapping": b"task: {a: b}\n",
        "lr is not a number": b"task: classify\nlr: .nan\n",
        "steps is a list": b"task: classify\nsteps: [1]\n",
        "columns has a mapping": b"task: classify\ncolumns: [{text: a}]\n",
        "expected has a number": b"task: classify\nexpected: [3]\n",
        "a date": b"task: classify\nlr: 2020-01-01\n",
        "binary data": b"task: classify\nlr: !!binary zzz\n",
        "a tab": b"task:\tclassify\n\tlr: 1\n",
        "a folder": None,
    }
    for damage, content in contents.items():
        for name, command in {
            "run": ("run", "new.yaml"),
            "check": ("check", "new.yaml"),
        }.items():
            yield Case(f"{name}: {damage}", command, "new.yaml", content, True)


def argument_cases() -> Iterator[Case]:
    """Arguments that no file is to blame for."""
    train = ("classify", *MODEL[:-1], "--data=sentiment", "--dry-run")
    for value in ("inf", "-inf", "nan", "1e999", "9" * 5000, "x", "", "\udc80", "0"):
        for option in ("--epochs", "--steps", "--lr", "--seed", "--batch-size", "--warmup"):
            fits = value == "0" and option in ("--seed", "--warmup")
            if not fits:
                yield Case(
                    f"{option} {value[:6]!r}", (*train, f"{option}={value}"), "", b"", named=option
                )
    for value in ("\x1b[31m", "\udc80\udcff", "x" * 5000, " ", "/dev/null/x", "~nobody/x", "$x"):
        for name, command in {
            "--data": ("classify", *MODEL, "--dry-run", f"--data={value}"),
            "--model": ("classify", *SMALL, "--data=sentiment", "--dry-run", f"--model={value}"),
            "check": ("check", f"--data={value}"),
            "predict": ("predict", value, "--text=a"),
            "predict --file": ("predict", "classify", f"--file={value}"),
            "score": ("score", value, value),
            "run": ("run", value),
            "report": ("report", value),
        }.items():
            yield Case(f"{name} {value[:12]!r}", command, "", b"", named="")
    for value in ("\udc80", "a\udcffb", "\ud83d"):
        yield Case(
            f"--text {value!r}", ("predict", "classify", f"--text={value}"), "", b"", named="--text"
        )
    for value in ("=", "=x", "x=", "text=\x1b", "text", "text=a,b", "text=text"):
        yield Case(
            f"--columns {value!r}",
            (*train, f"--columns={value}"),
            "",
            b"",
            value != "text=text",
            "",
        )


CASES = [*data_cases(), *saved_cases(), *recipe_cases(), *argument_cases()]


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a folder with their sizes and times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
        else:
            found[str(path.relative_to(folder))] = (0, 0)
    return found


def assert_one_line(outcome: Outcome, case: Case) -> None:
    assert "\0" not in outcome.err and "Traceback" not in outcome.err
    lines = outcome.err.splitlines()
    errors = [line for line in lines if line.startswith(("error: ", "internal error: "))]
    assert len(errors) == 1, outcome.err[-2000:]
    assert errors[0].startswith("error: "), errors[0]
    assert lines[-1] == errors[0], outcome.err[-2000:]
    name = Path(case.file).name.removesuffix(".gz") if case.named is None else case.named
    of_model = not case.fails and str(Path(case.file).parent)
    assert name in errors[0] or (of_model and of_model in errors[0]), errors[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile_inputs(case: Case, workdir: Path) -> None:
    assert_harmless(case, workdir)


@pytest.mark.parametrize(
    "file, command", EDITED, ids=lambda each: each if isinstance(each, str) else each[0]
)
def test_edited_files(file: str, command: tuple[str, ...], workdir: Path) -> None:
    """Values of saved JSON changed to other types, and bytes to others; some may be accepted."""
    words = tuple(file if word == "FILE" else word for word in command)
    fuzz(
        (workdir / file).read_bytes(),
        lambda content: assert_harmless(Case("", words, file, content, fails=False), workdir),
        parts=4,
    )


COMMANDS = {
    "predict texts": "predict classify --file FILE --out=out.jsonl",
    "predict to a table": "predict classify --file FILE --out=out.csv",
    "predict words": "predict tag --file FILE --out=out.jsonl",
    "embed": "embed bert --file FILE --out=out.npy",
    "check": "check FILE",
    "convert to JSON Lines": "convert FILE --to jsonl --out=out.jsonl",
    "convert to doccano": "convert FILE --to doccano --out=out.jsonl",
    "convert to columns": "convert FILE --to conll --out=out.conll",
    "report": "report FILE --format table",
    "score": "score FILE",
}
INPUTS = (
    "texts.jsonl texts.tsv tags.jsonl words.conll sentences.jsonl labels.jsonl predicted.jsonl "
    "suspects.jsonl"
).split()


@pytest.mark.parametrize("name", COMMANDS)
def test_damaged_rows(name: str, workdir: Path) -> None:
    for each in INPUTS:
        file = f"new{Path(each).suffix}"
        words = tuple(COMMANDS[name].replace("FILE", file).split())
        fuzz(
            SEEDS[each],
            lambda new, words=words, file=file: assert_harmless(
                Case("", words, file, new, False), workdir
            ),
            parts=len(INPUTS),
        )


def test_damaged_parquet(workdir: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": [f"text {n}" for n in range(50)], "label": ["a", "b"] * 25})
    pyarrow.parquet.write_table(table, buffer := io.BytesIO())
    check = ("check", "new.parquet")
    fuzz(
        buffer.getvalue(),
        lambda content: assert_harmless(
            Case("", check, "new.parquet", content, fails=False), workdir
        ),
    )


def assert_harmless(case: Case, workdir: Path) -> None:
    """Run a command on its damaged file, and put the file back."""
    path = workdir / case.file
    kept = path.read_bytes() if path.is_file() else None
    try:
        if case.file:
            if case.content is None:
                path.unlink(missing_ok=True)
                path.mkdir()
            else:
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
        if case.file and path.is_dir():
            shutil.rmtree(path)
        if kept is not None:
            path.write_bytes(kept)
