"""Record what users see of small runs of every kind, and compare it with an earlier recording.

The companion of ``recorded_runs``: what commands print in each of their formats, the pages and
files that they write, what the server answers, and what readers say about whole and damaged files.

    python -m tests.end_to_end.recorded_outputs record /tmp/before.json
    python -m tests.end_to_end.recorded_outputs check /tmp/before.json

The name of an entry says what is asked, not how: where a command changes its spelling, its
arguments change here, and the recording stays comparable.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["COLUMNS"] = "100"


from tests import fixtures as fx
from tests import small_data as data
from tests.command import run
from tests.end_to_end.recorded_runs import SENSES, main
from tests.end_to_end.test_documentation import DOCUMENTED, Workspace, output_of
from tests.fuzz.mutations import SEEDS
from tests.tiny import save_tiny_checkpoint

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "data"
TABLES = ("table", "csv", "latex", "markdown", "json")
ANALYSIS = {name: ["report", "--format", name] for name in TABLES}
"""How the analysis of predictions is asked for, by format."""
CONVERTED = {"jsonl": "jsonl", "conll": "conll", "doccano": "jsonl", "label-studio": "json"}
TEXTS = (".jsonl", ".json", ".csv", ".html", ".md", ".parquet")
"""Files that are recorded by their content."""
DAMAGED_FILES = 12
"""Damaged forms of each valid file."""
SETUPS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "label": ("classify", data.sentiment, ("--calibrate", "temperature")),
    "labels": ("classify", data.topics, ()),
    "number": ("classify", data.numbers, ()),
    "pair": ("nli", data.pairs, ()),
    "tags": ("tag", data.entities, ()),
    "plain tags": ("tag", data.speech, ()),
    "spans": ("ner", data.entities, ()),
    "relations": ("relations", data.relations, ()),
    "answers": ("qa", data.questions, ()),
    "choice": ("choice", data.choices, ()),
    "subwords": ("pretrain", data.running_text, ()),
}
"""The kinds of predictions: a task, its data, and further options."""


class Recorder:
    """Entries by name, without what differs between two equal runs."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.entries: dict[str, Any] = {}

    def text(self, text: str) -> str:
        """Return a text without folders, times and speeds."""
        text = text.replace(str(self.workdir), "PLACE").replace(str(ROOT), "ROOT")
        text = re.sub(r"PLACE/made/\w+/", "PLACE/made/0/", text)
        text = re.sub(
            r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+\d\d:?\d\d|Z)?", "TIME", text
        )
        text = re.sub(r"\b\d+:\d\d(:\d\d)? (in all|left)", r"TIME \2", text)
        text = re.sub(
            r"[\d.,]+ (examples|tokens|steps|texts|rows|sentences|lines)/s", r"N \1/s", text
        )
        text = re.sub(r"(?m)^training: .*\n", "", text)
        return re.sub(r"(?<=finetune-)\w+(?=\.log)", "X", text)

    def command(self, name: str, *arguments: str | Path) -> None:
        """Record the exit code and the output of a command."""
        outcome = run(*arguments)
        self.entries[name] = [outcome.code, self.text(outcome.out), self.text(outcome.err)]

    def file(self, name: str, path: Path) -> None:
        """Record a file, or all files of a folder, as text where they are."""
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file():
                own = f"{name}/{each.relative_to(path).as_posix()}" if path.is_dir() else name
                self.entries[own] = self.content(each)

    def content(self, path: Path) -> str:
        """Return the text of a file; of a Parquet file its rows."""
        if path.suffix == ".parquet":
            import pyarrow.parquet

            return repr(pyarrow.parquet.read_table(path).to_pylist())
        return _stable(self.text(path.read_text("utf-8")))


def _stable(page: str) -> str:
    """Return a page without the timings of its charts and tables."""
    page = re.sub(r"(?s)<section[^>]*id=\"(training|environment)\".*?</section>", "", page)
    page = re.sub(r"(?s)## (Environment|Training)\n.*?(?=\n## |\Z)", "", page)
    return re.sub(r"\bsha256 [0-9a-f]{8,64}", "sha256 X", page)


def make_runs(workdir: Path) -> dict[str, Path]:
    """Train a small run of every kind."""
    model = save_tiny_checkpoint(workdir / "tiny", "bert", layers=2)
    made = {}
    for setup, (task, make, more) in SETUPS.items():
        rows = make(workdir / f"data-{setup.replace(' ', '-')}")
        out = workdir / "runs" / setup.replace(" ", "-")
        settings = ["--lr", "1e-3", "--batch-size", "8", "--max-length", "48", "--steps", "6"]
        for name, seeds in ((out, "1"), (out.with_name(f"{out.name}-2"), "2")):
            words = [task, "--model", model, "--data", rows, "--out", name, "--seed", seeds]
            outcome = run(*words, *settings, "--precision", "fp32", *more)
            if outcome.code:
                raise SystemExit(f"{setup}: {outcome.err}")
        made[setup] = out
    senses = ["wsd", "--model", model, "--data", SENSES, "--out", workdir / "runs" / "senses"]
    if (outcome := run(*senses)).code:
        raise SystemExit(outcome.err)
    return made | {"senses": workdir / "runs" / "senses"}


def of_run(recorder: Recorder, setup: str, folder: Path) -> None:
    """Record what all commands say about a run."""
    workdir, record = recorder.workdir, recorder.command
    other = folder.with_name(f"{folder.name}-2")
    predictions = folder / "predictions.test.jsonl"
    if not predictions.exists():
        predictions = folder / "predictions.validation.jsonl"
    split = predictions.name.split(".")[1]
    source = Path(json.loads((folder / "config.json").read_text())["data"])
    inputs = next(path for path in sorted(source.iterdir()) if path.stem in (split, "validation"))
    for name in TABLES:
        record(f"{setup}/score/{name}", "score", predictions, inputs, "--format", name)
        record(f"{setup}/score of a run/{name}", "score", folder, "--format", name)
        words = ANALYSIS[name]
        record(f"{setup}/analyze/{name}", words[0], folder, *words[1:], "--split", split)
        if other.exists():
            sides = (folder, other, "--resamples", "50", "--split", split, "--format", name)
            record(f"{setup}/compare/{name}", "compare", *sides)
    if setup == "senses":
        return
    page = workdir / "page.html"
    record(f"{setup}/report", "report", folder, "--out", page)
    recorder.file(f"{setup}/report/page", page)
    record(f"{setup}/report of two", "report", folder, other, "--out", page)
    recorder.file(f"{setup}/report of two/page", page)
    for name in ("README.md", "best/README.md", "report.html"):
        if (folder / name).exists():
            recorder.file(f"{setup}/run/{name}", folder / name)
    for suffix in ("jsonl", "csv", "parquet"):
        out = workdir / f"predicted.{suffix}"
        record(f"{setup}/predict/{suffix}", "predict", folder, "--file", inputs, "--out", out)
        if out.exists():
            recorder.file(f"{setup}/predict/{suffix}/file", out)
            out.unlink()
    record(f"{setup}/predict/print", "predict", folder, "--file", inputs)
    record(f"{setup}/predict/columns", "predict", folder, "--file", inputs, "--keep-columns")
    record(f"{setup}/thresholds", "thresholds", folder, "--dry-run", "--split", "validation")


def of_data(recorder: Recorder) -> None:
    """Record what is said about the data of the examples, whole."""
    workdir, record = recorder.workdir, recorder.command
    for folder in sorted(EXAMPLES.iterdir()):
        if not folder.is_dir():
            continue
        for name in ("table", "json"):
            record(f"data/{folder.name}/check/{name}", "check", folder, "--format", name)
        file = sorted(path for path in folder.rglob("*") if path.is_file())[0]
        for name, suffix in CONVERTED.items():
            out = workdir / "converted" / f"{folder.name}-{name}.{suffix}"
            out.parent.mkdir(exist_ok=True)
            own = f"data/{folder.name}/convert/{name}"
            record(own, "convert", file, "--to", name, "--out", out)
            if out.exists():
                recorder.file(f"{own}/file", out)


def damaged_forms(content: bytes) -> list[bytes]:
    """Remove, repeat or replace some bytes of a content, always the same."""
    drawn, forms = random.Random(7), list[bytes]()
    for _ in range(DAMAGED_FILES):
        start = drawn.randrange(len(content))
        end = start + drawn.randrange(20)
        new = drawn.choice([b"", 2 * content[start:end], drawn.randbytes(2), b"null"])
        forms.append(content[:start] + new + content[end:])
    return forms


def files() -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of whole and damaged files."""
    for name, content in SEEDS.items():
        for changed in (content, *damaged_forms(content)):
            yield name, changed


def of_readers(recorder: Recorder) -> None:
    """Record examples, notes and errors of the readers, for whole and damaged files."""
    from finetune import UserError, read_text, read_tokens

    folder = recorder.workdir / "damaged"
    folder.mkdir()
    for number, (name, content) in enumerate(files()):
        file = folder / f"{number}-{name}"
        file.write_bytes(content)
        for reader in (read_text, read_tokens):
            try:
                found = reader(str(file))
                said: Any = {
                    "notes": list(found.notes),
                    **{split: [_fields(e) for e in rows] for split, rows in found.splits.items()},
                }
            except UserError as error:
                said = str(error)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            text = json.dumps(said, default=str, ensure_ascii=True)
            recorder.entries[f"read/{number}-{name}/{reader.__name__}"] = recorder.text(text)
        recorder.command(f"read/{number}-{name}/check", "check", file)
        words = ANALYSIS["table"]
        recorder.command(f"read/{number}-{name}/analyze", words[0], file, *words[1:])


def _fields(example: Any) -> dict[str, Any]:
    """Return the fields of an example that have a value."""
    return {
        field.name: getattr(example, field.name)
        for field in dataclasses.fields(example)
        if getattr(example, field.name) not in (None, (), "")
    }


def of_server(recorder: Recorder, runs: dict[str, Path]) -> None:
    """Record what the server answers."""
    from fastapi.testclient import TestClient

    from finetune.deployment.server import ServedModel, make_app

    bodies: list[Any] = [
        {"text": "a lovely bright room"},
        {"text": "A man eats.", "text_pair": "Somebody eats.", "id": "x"},
        {"examples": ["Ana saw Oslo", {"words": ["Ana", "saw"]}]},
        {"context": "Ana saw Oslo.", "question": "Who?", "choices": ["Ana", "Ben"]},
        {"text": 3},
        {"txet": "a"},
        {"examples": []},
        {"examples": ["x"] * 300},
        {"text": "x" * 30_000},
        [],
        "a",
        None,
    ]
    for setup in ("label", "labels", "number", "pair", "tags", "spans", "answers", "choice"):
        model = ServedModel(setup, str(runs[setup]))
        with TestClient(make_app([model])) as client:
            for number, body in enumerate(bodies):
                answer = client.post("/predict", json=body)
                said = [answer.status_code, recorder.text(answer.text)]
                recorder.entries[f"serve/{setup}/{number}"] = said
            answer = client.post("/predict", content=b"{")
            recorder.entries[f"serve/{setup}/no JSON"] = [answer.status_code, answer.text]
            models = json.loads(client.get("/health").text)
            recorder.entries[f"serve/{setup}/models"] = recorder.text(json.dumps(models))


def of_documentation(recorder: Recorder) -> None:
    """Record what the commands of all pages print and write, on a tiny model."""
    made, folder = recorder.workdir / "made", recorder.workdir / "documentation"
    made.mkdir()
    folder.mkdir()
    fx.open_folder(made)
    workspace = Workspace(folder)
    os.chdir(folder)
    for line, words in DOCUMENTED.items():
        name = f"docs/{line}"
        recorder.entries[name] = recorder.text(workspace.run(line))
        written = Path(output_of(words) or "")
        if written.suffix in TEXTS and written.is_file():
            recorder.file(f"{name}/file", written)
    os.chdir(recorder.workdir)


def record(only: str | None = None) -> dict[str, Any]:
    """Make the runs in a folder that has always the same name, and return all entries."""
    workdir, before = Path(tempfile.gettempdir()).resolve() / "recorded-outputs", Path.cwd()
    workdir.mkdir()
    recorder = Recorder(workdir)
    os.chdir(workdir)
    try:
        runs = make_runs(workdir)
        for setup, folder in runs.items():
            of_run(recorder, setup, folder)
        of_data(recorder)
        of_readers(recorder)
        of_server(recorder, runs)
        of_documentation(recorder)
    finally:
        os.chdir(before)
        shutil.rmtree(workdir)
    entries = json.loads(json.dumps(recorder.entries))
    return entries if only is None else {only: entries[only]}


if __name__ == "__main__":
    main(record)
