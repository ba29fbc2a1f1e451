"""Nothing in validation or test data ends a finished training, which can be scored again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune import Dataset, read_text, train
from finetune.data import DataError
from tests import fixtures as fx
from tests import small_data
from tests.command import Outcome, run
from tests.covering import few
from tests.small_data import read_jsonl, write_jsonl

RELATED: dict[str, Any] = {
    "tokens": ["Ana", "left", "Oslo"],
    "spans": [{"start": 0, "end": 1, "label": "PER"}, {"start": 2, "end": 3, "label": "LOC"}],
    "relations": [{"subject": 0, "object": 1, "label": "left"}],
}
TAGGED = {"tokens": ["Ana", "left"], "tags": ["B-NEW", "O"]}
UNSEEN: dict[str, dict[str, Any]] = {
    "relations": RELATED,
    "softmax": {"text": "a", "text_pair": "b", "label": "other"},
    "tag": TAGGED,
    "ner": TAGGED,
}
"""By kind of run: a row with a label that train lacks."""


def copied_data(setup: str, folder: Path) -> Path:
    data = shutil.copytree(fx.data(fx.SETUPS[setup][1]), folder / "data")
    if not (data / "test.jsonl").exists():
        shutil.copy(data / "validation.jsonl", data / "test.jsonl")
    return data


def train_on(setup: str, data: Path, *more: str) -> Outcome:
    settings = {"data": data, "max_length": None, "batch_size": None}
    return fx.train(setup, data.parent / "run", *more, **settings)


def add_row(folder: Path, split: str, row: dict[str, Any]) -> None:
    path = folder / f"{split}.jsonl"
    write_jsonl(path, [*read_jsonl(path), row])


@pytest.mark.parametrize("setup", few(UNSEEN, "tag"))
def test_labels_that_train_lacks_are_missed(setup: str, tmp_path: Path):
    data = copied_data(setup, tmp_path)
    for split in ("validation", "test"):
        add_row(data, split, UNSEEN[setup])
    train_on(setup, data).ok()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["validation"] and metrics["test"]


@pytest.mark.slow
def test_the_order_of_splits_does_not_matter(tmp_path: Path):
    """Also not for what is fitted on validation."""
    data = read_text(fx.data("sentiment", (16, 12, 12)))
    metrics = []
    for names in (("train", "validation", "test"), ("test", "train", "validation")):
        turned = Dataset("x", {name: data.splits[name] for name in names})
        settings = {"steps": 2, "calibrate": "temperature", "out": str(tmp_path / names[0])}
        found = train("classify", data=turned, model=str(fx.checkpoint()), quiet=True, **settings)
        metrics.append(found.metrics)
    assert metrics[0] == metrics[1] and "ece" in metrics[0]["test"]


def test_a_finished_run_is_scored_again_on_another_test_split(tmp_path: Path):
    data = copied_data("relations", tmp_path)
    train_on("relations", data).ok()
    before = (tmp_path / "run" / "last" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "metrics.json").unlink()
    add_row(data, "test", RELATED)
    done = train_on("relations", data, "--resume").ok()
    assert "the test split has changed since the run was started" in done.err + done.out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    assert (tmp_path / "run" / "last" / "model.safetensors").read_bytes() == before
    add_row(data, "validation", RELATED)
    train_on("relations", data, "--resume").refused("was started with other data")


def test_a_test_split_that_cannot_be_read_is_refused_before_training(tmp_path: Path):
    data = copied_data("relations", tmp_path)
    long = [{**span, "label": f"{span['label']} " * 80} for span in RELATED["spans"]]
    add_row(data, "test", RELATED | {"spans": long})
    train_on("relations", data, "--max-length", "40").refused("has no room for words")
    assert not (tmp_path / "run" / "last").exists()


@pytest.mark.parametrize("make", [small_data.sentiment, small_data.topics])
def test_a_blank_text_has_no_prediction(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """Training, `predict` and `score` agree; calibration and thresholds leave it out."""
    folder, out = make(tmp_path / "data"), tmp_path / "run"
    for split in ("validation", "test"):
        rows = read_jsonl(folder / f"{split}.jsonl")
        write_jsonl(folder / f"{split}.jsonl", [{**rows[0], "text": " \t"}, *rows[1:]])
    settings = {"calibrate": "temperature", "out": str(out), "steps": 3, "quiet": True}
    trained = train("classify", folder, str(fx.checkpoint()), **settings)
    assert [row["label"] is None for row in read_jsonl(out / "predictions.test.jsonl")][:2] == [
        True,
        False,
    ]
    scored = json.loads(run("score", out, "--data", folder / "test.jsonl", "--json").ok().out)
    assert scored == pytest.approx({name: trained.metrics["test"][name] for name in scored})
    assert trained.metrics["test"]["ece"] <= 1
    run("thresholds", out).ok()
    analysis = json.loads(run("report", out, "--format", "json").ok().out)
    assert analysis["calibration"]["bins"] and analysis["examples"]


def test_a_blank_text_of_a_number_is_refused_before_training(tmp_path: Path) -> None:
    folder = small_data.numbers(tmp_path / "data")
    first, *rows = read_jsonl(folder / "test.jsonl")
    write_jsonl(folder / "test.jsonl", [{**first, "text": "", "text_pair": " "}, *rows])
    settings = {"out": str(tmp_path / "run"), "quiet": True}
    with pytest.raises(
        DataError, match=r"test\.jsonl:1: the text is blank, and so without a number"
    ):
        train("classify", folder, str(fx.checkpoint()), **settings)
