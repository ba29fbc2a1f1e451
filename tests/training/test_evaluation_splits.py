"""Nothing in validation or test data ends a finished training, which can be scored again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from finetune import Dataset, read_text, train
from tests import laboratory as lab
from tests.command import Outcome
from tests.small_data import write_jsonl

UNSEEN: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "relations": (
        "relations",
        {
            "tokens": ["Ana", "left", "Oslo"],
            "spans": [
                {"start": 0, "end": 1, "label": "PER"},
                {"start": 2, "end": 3, "label": "LOC"},
            ],
            "relations": [{"subject": 0, "object": 1, "label": "left"}],
        },
        {},
    ),
    "sentence": (
        "pairs",
        {"text": "a", "text_pair": "b", "label": "other"},
        {"objective": "softmax"},
    ),
    "tag": ("entities", {"tokens": ["Ana", "left"], "tags": ["B-NEW", "O"]}, {}),
    "ner": ("entities", {"tokens": ["Ana", "left"], "tags": ["B-NEW", "O"]}, {}),
}
"""By task: the data, a row of test with a label that train lacks, and settings."""


@pytest.fixture
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the data of ``task``, or of relations."""
    task = getattr(request.node, "callspec", None)
    name = UNSEEN[task.params["task"] if task else "relations"][0]
    return shutil.copytree(lab.data(name), tmp_path / "data")


def train_on(task: str, data: Path, *more: str) -> Outcome:
    settings = {"data": data, "max_length": None, "batch_size": None, **UNSEEN[task][2]}
    return lab.train(task, data.parent / "run", *more, **settings)


def add_row(folder: Path, split: str, row: dict[str, Any]) -> None:
    """Rewrite a split as JSON Lines, with one more row."""
    path = next(folder.glob(f"{split}.*"))
    if path.suffix == ".jsonl":
        path.write_text(path.read_text("utf-8") + json.dumps(row) + "\n", "utf-8")
        return
    path.unlink()
    write_jsonl(folder / f"{split}.jsonl", [row])


@pytest.mark.parametrize("task", UNSEEN)
@pytest.mark.parametrize("split", ["validation", "test"])
def test_labels_that_train_lacks_are_missed(task: str, split: str, data: Path, tmp_path: Path):
    add_row(data, split, UNSEEN[task][1])
    train_on(task, data).ok()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())[split]


def test_the_order_of_splits_does_not_matter(tmp_path: Path):
    """Also not for what is fitted on validation."""
    data = read_text(lab.data("sentiment", (16, 12, 12)))
    metrics = []
    for names in (("train", "validation", "test"), ("test", "train", "validation")):
        turned = Dataset("x", {name: data.splits[name] for name in names})
        settings = {"steps": 2, "calibrate": "temperature", "out": str(tmp_path / names[0])}
        found = train("classify", data=turned, model=str(lab.checkpoint()), quiet=True, **settings)
        metrics.append(found.metrics)
    assert metrics[0] == metrics[1] and "ece" in metrics[0]["test"]


def test_a_finished_run_is_scored_again_on_another_test_split(data: Path, tmp_path: Path):
    train_on("relations", data).ok()
    before = (tmp_path / "run" / "last" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "metrics.json").unlink()
    add_row(data, "test", UNSEEN["relations"][1])
    done = train_on("relations", data, "--resume").ok()
    assert "the test split has changed since the run was started" in done.err + done.out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    assert (tmp_path / "run" / "last" / "model.safetensors").read_bytes() == before
    add_row(data, "validation", UNSEEN["relations"][1])
    train_on("relations", data, "--resume").refused("was started with other data")


def test_a_test_split_that_cannot_be_read_is_refused_before_training(data: Path, tmp_path: Path):
    long = UNSEEN["relations"][1] | {
        "spans": [
            {"start": 0, "end": 1, "label": "a b " * 40},
            {"start": 2, "end": 3, "label": "c d " * 40},
        ]
    }
    add_row(data, "test", long)
    train_on("relations", data, "--max-length", "40").refused("has no room for words")
    assert not (tmp_path / "run" / "last").exists()
