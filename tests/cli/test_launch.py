"""Commands in two processes, as by accelerate launch or torchrun: one prints and writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from finetune.runtime.processes import VARIABLES
from tests import small_data as data
from tests.command import in_two_processes, run
from tests.tiny import save_tiny_checkpoint


def both(*words: str | Path) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of both processes."""
    processes = in_two_processes([sys.executable, "-m", "finetune", *map(str, words)])
    outputs = [process.communicate(timeout=120) for process in processes]
    return [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    save_tiny_checkpoint(folder / "bert", "bert")
    data.sentiment(folder / "data")
    settings = ("--steps", "2", "--max-length", "40", "--precision", "fp32")
    flags = ("--model", folder / "bert", "--data", folder / "data", "--out", folder / "run")
    assert run("classify", *flags, *settings).code == 0
    return folder


def test_predict_divides_the_texts(place: Path):
    """The same lines as from one process, also when one process has a text more than the other."""
    table = place / "texts.jsonl"
    texts = ["What a film.", "Dull and slow.", "What a film.", "word " * 60, "It rained."]
    table.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    expected = run("predict", place / "run", "--file", table)
    first, second = both("predict", place / "run", "--file", table, "--output", place / "out")
    assert (first[:2], second) == ((0, ""), (0, "", ""))
    assert "1 texts or words were cut" in first[2] and "1 texts or words" in expected.err
    rows, others = (
        [json.loads(line) for line in text.splitlines()]
        for text in ((place / "out").read_text(), expected.out)
    )
    assert [(row["id"], row["label"]) for row in rows] == [(r["id"], r["label"]) for r in others]
    for row, other in zip(rows, others, strict=True):
        assert row["scores"] == pytest.approx(other["scores"], abs=1e-5)


def test_other_commands_run_once(place: Path):
    first, second = both("check", place / "data")
    assert (first[0], second) == (0, (0, "", ""))
    assert first[1] == run("check", place / "data").out


def test_errors_are_printed_once():
    for words, message in (
        (("check", "x", "--label-errors"), "error: --label-errors runs in one process"),
        (("chek", "x"), "error: unknown command 'chek'"),
    ):
        first, second = both(*words)
        assert (first[0], second) == (2, (2, "", "")) and first[2].startswith(message)


def test_a_stream_cannot_be_divided(place: Path, monkeypatch: pytest.MonkeyPatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = run("predict", place / "run", "--file", "-")
    assert outcome.code == 2 and "processes cannot share a stream" in outcome.err
