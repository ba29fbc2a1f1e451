"""Files of predictions: continued to the same bytes, and what a command says at the end."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import finetune
from finetune.cli.readable import prediction_line
from finetune.inference import loop, predictor
from finetune.runtime import row_files
from finetune.runtime.files import unfinished_file
from tests import fixtures as fx
from tests.command import Outcome, folder_in_use, run
from tests.covering import few
from tests.small_data import read_jsonl, write_jsonl

ROWS = 30


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of sentences of a document; eight are predicted at a time."""
    for module in (loop, predictor):
        monkeypatch.setattr(module, "CHUNK", 8)
    (tmp_path / "new").mkdir()
    rows = [{"words": [f"w{n}", "Anna"], "document": "d"} for n in range(ROWS)]
    write_jsonl(tmp_path / "new" / "a.jsonl", rows[:13])
    write_jsonl(tmp_path / "new" / "b.jsonl", rows[13:])
    return tmp_path


def predict(workdir: Path, model: Path, *more: str | Path) -> Outcome:
    return run("predict", model, "--file", workdir / "new", *more)


@pytest.mark.parametrize("setup", few(["tag", "context"], "context"))
def test_a_file_is_continued_to_the_same_bytes(
    setup: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = fx.trained(setup), workdir / "out.jsonl"
    done = predict(workdir, model, "--out", workdir / "whole.jsonl", "--resume").ok()
    assert f"wrote {ROWS} rows: " in done.err
    line, calls = row_files.json_line, 0

    def interrupted(row: row_files.JsonRow) -> str:
        nonlocal calls
        calls += 1
        if calls == 14:
            raise KeyboardInterrupt
        return line(row)

    with monkeypatch.context() as patch:
        patch.setattr(row_files, "json_line", interrupted)
        ended = predict(workdir, model, "--out", out)
    assert ended.code == 130 and "with --resume continues" in ended.err and not out.exists()
    with unfinished_file(out).open("a") as file:
        file.write('{"half')  # of a kill
    changed = predict(workdir, model, "--out", out, "--resume", "--keep-columns")
    changed.refused("begun with another keep columns", "leave --resume out to start again")
    with folder_in_use(workdir, f".{out.name}.lock"):
        predict(workdir, model, "--out", out, "--resume").refused("in use by process")
    done = predict(workdir, model, "--out", out, "--resume").ok()
    assert "wrote 22 rows after the 8 that were there" in done.err
    assert out.read_bytes() == (workdir / "whole.jsonl").read_bytes()
    assert {path.name for path in workdir.iterdir()} == {"new", "out.jsonl", "whole.jsonl"}
    # a changed input is another one, and without --resume everything is predicted
    with monkeypatch.context() as patch:
        calls = 0
        patch.setattr(row_files, "json_line", interrupted)
        predict(workdir, model, "--out", out)
    write_jsonl(workdir / "new" / "a.jsonl", [{"words": ["other"]}])
    predict(workdir, model, "--out", out, "--resume").refused("begun with another input")
    assert "wrote 18 rows: " in predict(workdir, model, "--out", out).ok().err


def test_an_error_leaves_nothing(workdir: Path) -> None:
    model = fx.trained("tag")
    (workdir / "new" / "c.jsonl").write_text("{\n")
    predict(workdir, model, "--out", workdir / "out.jsonl").refused("c.jsonl:1")
    assert {path.name for path in workdir.iterdir()} == {"new"}
    run("predict", model, "--text", "a", "--out", workdir / "out.jsonl", "--resume").refused(
        "--resume continues --out FILE.jsonl"
    )
    predict(workdir, model, "--out", workdir / "out.csv", "--resume").refused("FILE.jsonl")


def test_a_table_keeps_its_separator_and_names_gold(tmp_path: Path) -> None:
    model = finetune.load(fx.trained("nli"))
    label = model.labels[0]
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text(f'premise;hypothesis;label\n"a; b";c;{label}\na;b;{label}\n')
    done = run("predict", model.folder, "--file", file, "--threshold", "0.999", "--out", out).ok()
    assert f"wrote 2 rows, abstained from 2 answers: {out}" in done.err
    header, *rows = csv.reader(out.read_text("utf-8").splitlines(), delimiter=";")
    assert header[:5] == ["id", "premise", "hypothesis", "gold", "label"]
    assert [row[1:5] for row in rows] == [["a; b", "c", label, ""], ["a", "b", label, ""]]
    run(
        "predict", model.folder, "--file", file, "--out", tmp_path / "p.jsonl", "--keep-columns"
    ).ok()
    assert [row["gold"] for row in read_jsonl(tmp_path / "p.jsonl")] == [label, label]
    scored = json.loads(run("score", tmp_path / "p.jsonl", "--json").ok().out)
    assert scored["accuracy"] in (0.0, 0.5, 1.0)


def test_weights_that_have_changed_are_told(tmp_path: Path) -> None:
    run_folder = shutil.copytree(fx.trained("classify"), tmp_path / "run")
    assert "warning" not in run("predict", run_folder, "--text", "a room").ok().err
    for name in ("README.md", "best/config.json"):
        with (run_folder / name).open("a") as file:
            file.write(" ")
    told = run("predict", run_folder, "--text", "a room").ok().err
    assert "warning: " in told and "config.json: damaged, changed or missing since" in told


def test_on_a_terminal_a_text_gets_a_line_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fx.trained("classify")
    label = run("predict", model, "--text", "a room").ok().rows[0]["label"]
    terminal = SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("finetune.cli.predict.sys", terminal)
    assert run("predict", model, "--text", "a room").out.startswith(f"{label} 0.")


LINES = [
    ({"label": "pos", "score": 0.912}, "pos 0.91"),
    ({"label": ["a", "b"], "scores": {"a": 0.9, "b": 0.6, "c": 0.1}}, "a 0.90   b 0.60"),
    ({"label": None, "score": 0.5, "withheld": "pos"}, "abstained: pos"),
    ({"label": [], "scores": {"a": 0.6}, "withheld": ["a"]}, "abstained: a 0.60"),
    ({"answer": "", "score": 0.5, "withheld": ""}, "abstained: no answer"),
    ({"label": 2.54321}, "2.543"),
    ({"answer": "", "score": 0.5}, "no answer 0.50"),
    ({"words": ["a", "b"], "tags": ["DET", "N"], "scores": [1, 1]}, "a DET   b N"),
    (
        {
            "words": ["Maria", "Keller", "left"],
            "spans": [{"start": 0, "end": 2, "label": "PER", "score": 0.91}],
        },
        "Maria Keller PER 0.91",
    ),
    (
        {"words": ["a", "b"], "tags": [None, "N"], "withheld": [{"start": 0, "label": "DET"}]},
        "a abstained: DET   b N",
    ),
    (
        {
            "words": ["Oslo", "Ana"],
            "spans": [],
            "withheld": [{"start": 0, "end": 1, "label": "LOC", "score": 0.4}],
        },
        "abstained: Oslo LOC 0.40",
    ),
    (
        {
            "words": ["A", "in", "B"],
            "spans": [{"start": 0, "end": 1, "label": "X"}, {"start": 2, "end": 3, "label": "Y"}],
            "relations": [{"subject": 0, "object": 1, "label": "in", "score": 0.5}],
        },
        "A in B 0.50",
    ),
    (
        {"masks": [[{"subword": "a", "score": 0.5}, {"subword": "b", "score": 0.25}]]},
        "a 0.50   b 0.25",
    ),
    ({"id": 0, "vector": [0.5]}, '{"id": 0, "vector": [0.5]}'),
]


@pytest.mark.parametrize(("row", "line"), LINES)
def test_lines_for_people(row: dict, line: str) -> None:
    assert prediction_line(row) == line
