"""Learning curves: nested subsets, resumed runs, the power law and its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from finetune.data.splitting import nested_order
from finetune.evaluation.learning_curve import PowerLaw, learning_curve
from finetune.types import TextExample
from tests import small_data as data
from tests.command import run
from tests.tiny import save_tiny_checkpoint


def test_a_curve_is_measured_extended_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save_tiny_checkpoint(tmp_path / "model", "bert")
    data.sentiment(tmp_path / "data", (24, 8, 8))
    command = [
        "classify",
        "--model",
        "model",
        "--data",
        "data",
        "--steps",
        "1",
        "--batch-size",
        "8",
        "--out",
        "curve",
        "--seeds",
        "1",
    ]
    outcome = run(*command, "--sizes", "6", "12")
    assert outcome.code == 0, outcome.err
    assert "needs 3 sizes" in outcome.out
    more = run(*command, "--sizes", "6,12,24")
    assert more.code == 0 and more.out.count("is finished: kept") == 2, more.out
    found = json.loads(Path("curve/curve.json").read_text("utf-8"))
    assert list(found["predicted"]) == ["6", "12", "24", "48", "96"]
    for size, each in found["predicted"].items():
        assert re.search(rf"^ *{size} .*{each['value']:.4f}", more.out, flags=re.MULTILINE)
    assert "power law" in Path("curve/curve.html").read_text("utf-8")
    splits = json.loads(Path("curve/size-12-1/environment.json").read_text("utf-8"))["splits"]
    assert splits["train"] == 12
    wrong = run(*command, "--sizes", "1", "99")
    assert wrong.code == 2 and "2 (the labels) to 24 (the training examples)" in wrong.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--folds", "3"), "--folds does not go with --sizes"),
        (("--resume",), "--resume does not go with --sizes"),
        (("--seeds", "0"), "--seeds must be 1 or more"),
    ],
)
def test_options_of_curves(arguments: tuple[str, ...], message: str):
    outcome = run("classify", "--sizes", "9", *arguments)
    assert outcome.code == 2 and message in outcome.err


def test_a_curve_without_a_split_to_score_is_refused_before_training(tmp_path: Path):
    save_tiny_checkpoint(tmp_path / "model", "bert")
    data.sentiment(tmp_path / "data", (24, 8, 8))
    given = ("--model", tmp_path / "model", "--data", tmp_path / "data" / "train.jsonl")
    outcome = run("classify", "--sizes", *given, "--validation=none", "--out", tmp_path / "curve")
    assert outcome.code == 2 and "leaves no split to score" in outcome.err
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


@pytest.mark.parametrize("metric", ["accuracy", "mse"])
def test_the_power_law_is_found_and_its_interval_covers(metric: str):
    sign = -1 if metric == "mse" else 1
    law = PowerLaw(0.9 if sign > 0 else 0.1, sign * 2.0, 0.5)
    sizes = [50, 100, 200, 400, 800]
    exact = learning_curve(metric, "test", {n: [law.at(n)] for n in sizes}, [3200])
    assert exact.predicted[3200].value == pytest.approx(law.at(3200), abs=0.002)
    assert exact.checked and exact.checked.value == pytest.approx(law.at(800), abs=0.002)
    covered = 0
    for trial in range(20):
        random = np.random.default_rng(trial)
        scores = {n: list(law.at(n) + random.normal(0, 0.01, 3)) for n in sizes}
        low, high = learning_curve(metric, "test", scores, [1600]).predicted[1600][1:]
        covered += low <= law.at(1600) <= high
    assert covered >= 17


def test_a_flat_curve_and_a_perfect_one_stay_within_the_range():
    flat = learning_curve("accuracy", "test", {n: [0.7, 0.7] for n in (10, 20, 40)}, [80])
    assert flat.predicted[80] == pytest.approx((0.7, 0.7, 0.7))
    costs = {100: [0.5], 200: [0.4], 400: [0.3], 800: [0.25]}
    assert learning_curve("cost", "test", costs, [3200], True).predicted[3200].value < 0.25
    steep = learning_curve("accuracy", "test", {10: [0.5], 20: [0.8], 40: [0.999]}, [80])
    assert max(steep.predicted[80]) <= 1
