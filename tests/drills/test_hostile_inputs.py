"""Hostile and malformed input to every command, from data files to saved models.

The outcome is one line that names the file, a non-zero exit, and nothing changed on disk; inputs
that a command may accept (an edited number) end without an error or with such a line.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import small_data
from tests.command import Outcome, run
from tests.tiny import save_tiny_checkpoint

pytestmark = pytest.mark.slow

SEED = 15
SMALL = ("--max-length=32", "--batch-size=8", "--precision=fp32", "--steps=2")
MODEL = ("--model=bert", *SMALL)
DEEP = 100_000


@dataclass(frozen=True)
class Case:
    """A command, the file that it reads, and its new content: bytes, a function of the old ones,
    or None for a folder in its place."""

    name: str
    arguments: tuple[str, ...]
    file: str
    content: bytes | Callable[[bytes], bytes] | None
    fails: bool = True
    """Whether the command must fail; otherwise it may also succeed."""
    named: str | None = None
    """Text that the line must have in place of the file's name."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with data, a model, runs of three tasks, two seeds and a recipe."""
    folder = tmp_path_factory.mktemp("hostile")
    before = Path.cwd()
    os.chdir(folder)
    save_tiny_checkpoint(folder / "bert", "bert")
    for make, name in (
        (small_data.sentiment, "texts"),
        (small_data.pairs, "pairs"),
        (small_data.entities, "words"),
    ):
        make(folder / name)
    Path("r").mkdir()
    Path("r/recipe.yaml").write_text("task: classify\nmodel: bert\ndata: texts\nsteps: 2\n")
    for task, data in (("classify", "texts"), ("tag", "words"), ("ner", "words")):
        more = [] if task == "classify" else ["--overlap=8"]
        outcome = run(task, *MODEL, *more, "--data", data, "--out", task)
        assert outcome.code == 0, outcome.err
    assert run("run", "r/recipe.yaml", *SMALL, "--seeds=2", "--out=seeds").code == 0
    yield folder
    os.chdir(before)


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
        "tag": ("tag", *MODEL, "--overlap=8", "--dry-run", "--data"),
        "ner": ("ner", *MODEL, "--overlap=8", "--dry-run", "--data"),
        "check": ("check",),
        "predict texts": ("predict", "classify", "--file"),
        "predict words": ("predict", "tag", "--file"),
        "gold of score": ("score", "classify/predictions.test.jsonl"),
        "gold of report": ("report", "classify/predictions.test.jsonl", "--format=table", "--gold"),
        "gold of compare": ("compare", "classify", "classify", "--gold"),
    }
    for (name, command), (kind, content) in itertools.product(train.items(), NOT_ROWS.items()):
        file = "new.jsonl"
        if kind == "half a surrogate pair" and name.startswith("predict"):
            continue  # the label is not read
        if kind == "a huge integer" and name.startswith("predict"):
            pass
        fails = name != "gold of compare"
        yield Case(f"{name}: {kind}", (*command, file), file, content, fails)
    rows: dict[str, bytes] = {
        "text is an object": texts({"text": {"a": 1}, "label": "a"}, *GOOD),
        "text is null": texts({"text": None, "label": "a"}, *GOOD),
        "label is an object": texts({"text": "a", "label": {"a": 1}}, *GOOD),
        "label is a nested list": texts({"text": "a", "label": [["a"]]}, *GOOD),
        "label is infinite": texts({"text": "a", "label": float("inf")}, *GOOD),
        "no rows": b"",
        "blank lines": b"\n\n\n",
        "no columns": texts({}, {}),
        "other columns": texts({"a": 1, "b": 2}),
    }
    for (kind, content), name in itertools.product(rows.items(), ("classify", "check")):
        fails = kind != "text is null"  # which is an empty text, and a warning
        yield Case(f"{name}: {kind}", (*train[name], "new.jsonl"), "new.jsonl", content, fails)
    words: dict[str, bytes] = {
        "tokens is a number": texts({"tokens": 3, "tags": ["O"]}),
        "tokens is nested": texts({"tokens": [["a"]], "tags": ["O"]}),
        "tags is a number": texts({"tokens": ["a"], "tags": 1}),
        "tags is null in a list": texts({"tokens": ["a"], "tags": [None]}),
        "too many tags": texts({"tokens": ["a"], "tags": ["O", "O"]}),
        "a span outside": texts({"tokens": ["a"], "spans": [[0, 9, "A"]]}),
        "a negative span": texts({"tokens": ["a"], "spans": [[-1, 1, "A"]]}),
        "a span of text": texts({"tokens": ["a"], "spans": ["x"]}),
        "a span without label": texts({"tokens": ["a"], "spans": [{"start": 0, "end": 1}]}),
        "a span at a fraction": texts({"tokens": ["a"], "spans": [[0.5, 1, "A"]]}),
        "a span at a huge integer": texts({"tokens": ["a"], "spans": [[0, 10**40, "A"]]}),
        "spans is a number": texts({"tokens": ["a"], "spans": 3}),
    }
    for (kind, content), name in itertools.product(words.items(), ("tag", "ner")):
        yield Case(f"{name}: {kind}", (*train[name], "new.jsonl"), "new.jsonl", content)
    files: dict[str, bytes | None] = {
        "x.json": b"[" * DEEP,
        "y.json": b'{"a": ',
        "z.json": b"3",
        "a.csv": b'text,label\n"open,pos\n',
        "b.csv": b"text,label\na,b,c\n",
        "c.csv": b"text,label\n\xff\xfe,pos\n",
        "d.csv": b"",
        "e.tsv": b"text\tlabel\na\n",
        "a.parquet": b"PAR1" + BINARY + b"PAR1",
        "b.parquet": b"",
        "c.parquet": None,
        "d.parquet": b"PAR1",
        "a.conll": b"a O\nb\n",
        "b.conll": BINARY,
        "c.conll": b"",
        "a.conllu": b"1\ta\n",
        "b.conllu": b"x\ty\tz\n\n",
        "a.txt.gz": b"\x1f\x8b" + b"\0" * 20,
        "a.jsonl": None,
        "b.csv.gz": gzip.compress(b"text,label\n" * 99)[:-9],
    }
    for (file, new), name in itertools.product(files.items(), ("check", "classify", "tag")):
        yield Case(f"{name}: {file}", (*train[name], file), file, new)


def damaged_parquet(seed: int) -> bytes:
    """A Parquet file with bytes of its pages changed, the footer intact."""
    import io

    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    table = pyarrow.table({"text": [f"text {n}" for n in range(50)], "label": ["a", "b"] * 25})
    pyarrow.parquet.write_table(table, buffer)
    content = bytearray(buffer.getvalue())
    rng = random.Random(seed)
    for _ in range(30):
        content[rng.randrange(4, 300)] = rng.randrange(256)
    return bytes(content)


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
    "a folder": None,
}


def saved_cases() -> Iterator[Case]:  # noqa: C901
    """Files that the toolkit has written itself, damaged or edited."""
    models = {
        "predict": ("predict", "classify", "--text=a"),
        "export": ("export", "classify", "--out=graph"),
        "init": ("classify", *SMALL, "--init-from=classify", "--data=texts", "--out=new"),
    }
    for file in ("finetune.json", "config.json", "tokenizer.json", "model.safetensors"):
        for kind, content in NOT_OBJECTS.items():
            yield Case(
                f"predict: {file}: {kind}", models["predict"], f"classify/best/{file}", content
            )
        for name in ("export", "init"):
            fails = file != "finetune.json" or name != "init"
            yield Case(f"{name}: {file}: cut", models[name], f"classify/best/{file}", b'{"a', fails)
    for task in ("tag", "ner"):
        for file in ("finetune.json", "config.json", "model.safetensors"):
            yield Case(
                f"predict {task}: {file}: cut",
                ("predict", task, "--text=a"),
                f"{task}/best/{file}",
                lambda old: old[: len(old) // 2],
            )
    train = ("classify", *MODEL, "--data=texts", "--out=new")
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        for kind in ("empty", "cut", "binary", "a list", "deep", "a folder"):
            may_ignore = file == "tokenizer_config.json" and kind == "a folder"
            yield Case(
                f"train: {file}: {kind}", train, f"bert/{file}", NOT_OBJECTS[kind], not may_ignore
            )
    resume = ("classify", *MODEL, "--data=texts", "--out=classify", "--resume")
    for file in (
        "trainer_state.json",
        "optimizer.safetensors",
        "random.safetensors",
        "model.safetensors",
        "finetune.json",
    ):
        for kind in ("empty", "cut", "binary", "a list", "a folder"):
            yield Case(
                f"resume: {file}: {kind}",
                resume,
                f"classify/last/{file}",
                NOT_OBJECTS[kind],
                file != "finetune.json",
            )
    for kind, content in NOT_OBJECTS.items():
        yield Case(f"resume: log.jsonl: {kind}", resume, "classify/log.jsonl", content, False)
        for name, command in {
            "score": ("score", "new.jsonl", "texts/test.jsonl"),
            "report": ("report", "new.jsonl", "--format=table"),
            "compare": ("compare", "classify", "new.jsonl"),
        }.items():
            yield Case(f"{name}: predictions: {kind}", command, "new.jsonl", content)
        seeds = ("run", "r/recipe.yaml", *SMALL, "--seeds=2", "--out=seeds")
        for file in ("config.json", "metrics.json", "environment.json"):
            if content is None:
                continue  # the seed is taken for unfinished, and continues
            yield Case(f"seeds: {file}: {kind}", seeds, f"seeds/seed-1/{file}", content, False)
        for file in (
            "config.json",
            "metrics.json",
            "environment.json",
            "log.jsonl",
            "training_vocabulary.json",
        ):
            yield Case(
                f"report: {file}: {kind}",
                ("report", "tag", "--out=page.html"),
                f"tag/{file}",
                content,
                False,
            )
        for file in ("seeds.json", "seed-1/config.json"):
            yield Case(
                f"recipes: {file}: {kind}",
                ("run", "--folder=r", "--runs=."),
                f"seeds/{file}",
                content,
                False,
            )


def edited_cases(rng: random.Random) -> Iterator[Case]:
    """Values of saved JSON files changed to other types; a command may accept some."""
    resume = ("classify", *MODEL, "--data=texts", "--out=classify", "--resume")
    commands = {
        "classify/best/finetune.json": ("predict", "classify", "--text=a"),
        "tag/best/finetune.json": ("predict", "tag", "--text=a"),
        "ner/best/finetune.json": ("predict", "ner", "--text=a"),
        "classify/best/config.json": ("predict", "classify", "--text=a"),
        "ner/best/config.json": ("predict", "ner", "--text=a"),
        "bert/config.json": ("classify", *MODEL, "--data=texts", "--dry-run"),
        "classify/last/trainer_state.json": resume,
        "classify/config.json": ("report", "classify", "--out=page.html"),
        "tag/metrics.json": ("report", "tag", "--out=page.html"),
        "tag/environment.json": ("report", "tag", "--out=page.html"),
        "tag/training_vocabulary.json": ("report", "tag", "--format=table"),
        "seeds/seeds.json": ("run", "--folder=r", "--runs=."),
        "seeds/seed-1/metrics.json": ("run", "--folder=r", "--runs=seeds/seed-1"),
        "seeds/seed-1/environment.json": ("report", "seeds", "--out=page.html"),
    }
    for (file, command), number in itertools.product(commands.items(), range(10)):
        yield Case(f"edited {number}: {file}", command, file, edit(rng.randrange(2**32)), False)
    lines = {
        "classify/predictions.test.jsonl": [
            ("report", "classify", "--format=table"),
            ("score", "{}", "texts/test.jsonl"),
            ("report", "classify", "--out=page.html"),
        ],
        "tag/predictions.test.jsonl": [
            ("report", "tag", "--format=table"),
            ("compare", "tag", "tag"),
            ("score", "{}", "words/test.jsonl"),
        ],
        "ner/predictions.test.jsonl": [
            ("report", "ner", "--format=table"),
            ("report", "ner", "--out=page.html"),
            ("score", "{}", "words/test.jsonl"),
        ],
        "tag/log.jsonl": [("report", "tag", "--out=page.html")],
        "classify/log.jsonl": [resume],
    }
    for file, several in lines.items():
        for command, number in itertools.product(several, range(8)):
            filled = tuple(part.format(file) for part in command)
            yield Case(
                f"edited {number}: {file}: {command[0]}",
                filled,
                file,
                edit(rng.randrange(2**32), lines=True),
                False,
            )


VALUES: list[Any] = [
    None,
    -1,
    10**30,
    1.5,
    float("nan"),
    True,
    "",
    "x\0y",
    "٣",
    [],
    [[]],
    {},
    [None],
    {"a": None},
    "\u202e",
    ["a"] * 3,
    -(10**5),
]


def edit(seed: int, lines: bool = False) -> Callable[[bytes], bytes]:
    """Change, add or remove one value of a JSON file, or of one of its lines."""

    def changed(old: bytes) -> bytes:
        rng = random.Random(seed)
        rows = old.splitlines() if lines else [old]
        index = rng.randrange(len(rows))
        content = json.loads(rows[index])
        places = list(_places(content))
        holder, key = rng.choice(places)
        if isinstance(holder, dict) and rng.random() < 0.3:
            del holder[key]
        else:
            holder[key] = rng.choice(VALUES)
        rows[index] = json.dumps(content).encode()
        return b"\n".join(rows) + b"\n"

    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def recipe_cases() -> Iterator[Case]:
    laughs = "a: &a [x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
        for old, new in itertools.pairwise("abcdefghij")
    )
    contents: dict[str, bytes | None] = {
        "an alias bomb": (laughs + "task: *j\n").encode(),
        "a cycle": b"task: classify\nexpected: &a [*a]\n",
        "a cycle of mappings": b"&a task: classify\nsmoke: &b {x: *b}\n",
        "a cycle at the top": b"&a\ntask: classify\nsmoke: *a\n",
        "deep": b"[" * 5000,
        "binary": BINARY,
        "NUL bytes": b"task: classify\0\n",
        "not UTF-8": b"task: caf\xe9\n",
        "a list": b"- task\n",
        "text": b"classify\n",
        "empty": b"",
        "two documents": b"task: classify\n---\ntask: nli\n",
        "a Python object": b"task: !!python/object/apply:os.system [true]\n",
        "a list as a key": b"? [a, b]\n: c\ntask: classify\n",
        "a number as a key": b"task: classify\n3: 4\n",
        "task is a list": b"task: [classify]\n",
        "task is a mapping": b"task: {a: b}\n",
        "epochs is infinite": b"task: classify\nepochs: .inf\n",
        "lr is not a number": b"task: classify\nlr: .nan\n",
        "steps is huge": b"task: classify\nsteps: 1" + b"0" * 5000 + b"\n",
        "steps is a list": b"task: classify\nsteps: [1]\n",
        "columns without =": b"task: classify\ncolumns: [text]\n",
        "columns has a mapping": b"task: classify\ncolumns: [{text: a}]\n",
        "expected is a number": b"task: classify\nexpected: 3\n",
        "expected has a number": b"task: classify\nexpected: [3]\n",
        "smoke is a list": b"task: classify\nsmoke: [3]\n",
        "a bad date": b"task: classify\nlr: 2020-13-45\n",
        "a date": b"task: classify\nlr: 2020-01-01\n",
        "binary data": b"task: classify\nlr: !!binary zzz\n",
        "a tab": b"task:\tclassify\n\tlr: 1\n",
        "a folder": None,
    }
    for kind, content in contents.items():
        for name, command in {
            "run": ("run", "new.yaml"),
            "check": ("check", "new.yaml"),
            "recipes": ("run", "--folder=."),
            "recipe": ("classify", "--recipe=new.yaml"),
        }.items():
            yield Case(f"{name}: {kind}", command, "new.yaml", content, name != "recipes")


def argument_cases() -> Iterator[Case]:
    """Arguments that no file is to blame for."""
    train = ("classify", *MODEL[:-1], "--data=texts", "--dry-run")
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
            "--model": ("classify", *SMALL, "--data=texts", "--dry-run", f"--model={value}"),
            "check": ("check", f"--data={value}"),
            "predict": ("predict", value, "--text=a"),
            "predict --file": ("predict", "classify", f"--file={value}"),
            "score": ("score", value, value),
            "run": ("run", value),
            "report": ("report", value),
            "recipes": ("run", f"--folder={value}"),
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


CASES = [
    *data_cases(),
    *(
        Case(
            f"check: damaged {n}.parquet",
            ("check", "new.parquet"),
            "new.parquet",
            damaged_parquet(n),
            False,
        )
        for n in range(6)
    ),
    *saved_cases(),
    *edited_cases(random.Random(SEED)),
    *recipe_cases(),
    *argument_cases(),
]


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
def test_hostile_inputs(case: Case, place: Path) -> None:
    path = place / case.file
    kept = path.read_bytes() if path.is_file() else None
    try:
        if case.file:
            content = case.content
            if content is None:
                path.unlink(missing_ok=True)
                path.mkdir()
            else:
                path.write_bytes(content(kept or b"") if callable(content) else content)
        before = snapshot(place)
        outcome = run(*case.arguments)
        failed = outcome.code != 0
        assert failed or not case.fails, "accepted:\n" + outcome.out[-500:] + outcome.err[-500:]
        if failed:
            if outcome.code != 1 or outcome.err:  # check lists errors of data and exits with 1
                assert_one_line(outcome, case)
            after = snapshot(place)
            assert after == before, {*after.items()} ^ {*before.items()}
    finally:
        for name in ("new", "graph", "runs", "page.html"):
            made = place / name
            shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        if case.file:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            if kept is not None:
                path.write_bytes(kept)
