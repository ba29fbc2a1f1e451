"""Learning curves: nested subsets, resumed runs, and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from finetune.data.splitting import nested_order
from finetune.types import TextExample
from tests import small_data as data
from tests.command import run
from tests.tiny import save_tiny_checkpoint


def test_a_curve_is_measured_extended_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save_tiny_checkpoint(tmp_path / "model", "bert")
    data.sentiment(tmp_path / "data", (24, 8, 8))
    options = "--model model --data data --steps 1 --batch-size 8 --out curve --seeds 1"
    command = ["classify", *options.split()]
    run(*command, "--sizes", "6", "12").ok()
    more = run(*command, "--sizes", "6,12,24").ok()
    assert more.out.count("is finished: kept") == 2, more.out
    found = json.loads(Path("curve/curve.json").read_text("utf-8"))
    assert list(found["scores"]) == ["6", "12", "24"]
    for size, (score,) in found["scores"].items():
        assert re.search(rf"^ *{size} .*{score:.4f}", more.out, flags=re.MULTILINE)
    assert "mean of the runs" in Path("curve/curve.html").read_text("utf-8")
    splits = json.loads(Path("curve/size-12-1/environment.json").read_text("utf-8"))["splits"]
    assert splits["train"] == 12
    run(*command, "--sizes", "1", "99").refused("2 (the labels) to 24 (the training examples)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--folds", "3"), "--folds does not go with --sizes"),
        (("--resume",), "--resume does not go with --sizes"),
        (("--seeds", "0"), "--seeds must be 1 or more"),
    ],
)
def test_options_of_curves(arguments: tuple[str, ...], message: str):
    run("classify", "--sizes", "9", *arguments).refused(message)


def test_a_curve_without_a_split_to_score_is_refused_before_training(tmp_path: Path):
    save_tiny_checkpoint(tmp_path / "model", "bert")
    data.sentiment(tmp_path / "data", (24, 8, 8))
    given = ("--model", tmp_path / "model", "--data", tmp_path / "data" / "train.jsonl")
    run("classify", "--sizes", *given, "--validation=none", "--out", tmp_path / "curve").refused(
        "leaves no split to score"
    )
    assert not (tmp_path / "curve").exists()


def test_subsets_are_stratified_and_begin_with_every_label():
    labels = ["a"] * 60 + ["b"] * 30 + ["c"] * 9 + ["d"]
    examples = [TextExample(n, f"text {n}", None, label) for n, label in enumerate(labels)]
    order = [labels[index] for index in nested_order(examples, 3)]
    assert sorted(order[:4]) == ["a", "b", "c", "d"] and sorted(order) == labels
    assert nested_order(examples, 3) != nested_order(examples, 4)
    for size in (20, 50):
        counts = [order[:size].count(label) / size for label in "abc"]
        assert counts == pytest.approx([0.6, 0.3, 0.09], abs=0.06)
