"""Nothing in validation or test data ends a finished training, which can be scored again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finetune import Dataset, read_text, train
from tests import small_data
from tests.command import run
from tests.small_data import write_jsonl
from tests.tiny import save_tiny_checkpoint

UNSEEN: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "relations": (
        small_data.relations,
        {
            "tokens": ["Ana", "left", "Oslo"],
            "spans": [
                {"start": 0, "end": 1, "label": "PER"},
                {"start": 2, "end": 3, "label": "LOC"},
            ],
            "relations": [{"subject": 0, "object": 1, "label": "left"}],
        },
        (),
    ),
    "sentence": (
        small_data.pairs,
        {"text": "a", "text_pair": "b", "label": "other"},
        ("--objective", "softmax"),
    ),
    "tag": (small_data.entities, {"tokens": ["Ana", "left"], "tags": ["B-NEW", "O"]}, ()),
    "ner": (small_data.entities, {"tokens": ["Ana", "left"], "tags": ["B-NEW", "O"]}, ()),
}
"""By task: the data, a row of test with a label that train lacks, and options."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_checkpoint(tmp_path_factory.mktemp("evaluation"), "bert")


def command(task: str, encoder: Path, folder: Path) -> list[str | Path]:
    return [
        task,
        "--model",
        encoder,
        "--data",
        folder / "data",
        "--out",
        folder / "run",
        "--steps",
        "2",
        "--precision",
        "fp32",
        *UNSEEN[task][2],
    ]


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
def test_labels_that_train_lacks_are_missed(task: str, split: str, encoder: Path, tmp_path: Path):
    write, row, _ = UNSEEN[task]
    write(tmp_path / "data")
    add_row(tmp_path / "data", split, row)
    done = run(*command(task, encoder, tmp_path))
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())[split]


def test_the_order_of_splits_does_not_matter(encoder: Path, tmp_path: Path):
    """Also not for what is fitted on validation."""
    data = read_text(small_data.sentiment(tmp_path / "data", (16, 12, 12)))
    metrics = []
    for names in (("train", "validation", "test"), ("test", "train", "validation")):
        turned = Dataset("x", {name: data.splits[name] for name in names})
        settings = {"steps": 2, "calibrate": "temperature", "out": str(tmp_path / names[0])}
        found = train("classify", data=turned, model=str(encoder), quiet=True, **settings)
        metrics.append(found.metrics)
    assert metrics[0] == metrics[1] and "ece" in metrics[0]["test"]


def test_a_finished_run_is_scored_again_on_another_test_split(encoder: Path, tmp_path: Path):
    small_data.relations(tmp_path / "data")
    words = command("relations", encoder, tmp_path)
    assert run(*words).code == 0
    before = (tmp_path / "run" / "last" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "metrics.json").unlink()
    add_row(tmp_path / "data", "test", UNSEEN["relations"][1])
    done = run(*words, "--resume")
    assert done.code == 0, done.err
    assert "the test split has changed since the run was started" in done.err + done.out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    assert (tmp_path / "run" / "last" / "model.safetensors").read_bytes() == before
    add_row(tmp_path / "data", "validation", UNSEEN["relations"][1])
    done = run(*words, "--resume")
    assert done.code == 2 and "was started with other data" in done.err


def test_a_test_split_that_cannot_be_read_is_refused_before_training(encoder: Path, tmp_path: Path):
    small_data.relations(tmp_path / "data")
    long = UNSEEN["relations"][1] | {
        "spans": [
            {"start": 0, "end": 1, "label": "a b " * 40},
            {"start": 2, "end": 3, "label": "c d " * 40},
        ]
    }
    add_row(tmp_path / "data", "test", long)
    done = run(*command("relations", encoder, tmp_path), "--max-length", "40")
    assert done.code == 2 and "has no room for words" in done.err
    assert not (tmp_path / "run" / "last").exists()
