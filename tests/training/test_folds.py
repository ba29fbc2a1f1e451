"""Folds: what is in them, resumed and refused, summed up with an honest interval."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from finetune.data import assign_folds
from finetune.evaluation.reproduction import summarize
from finetune.evaluation.significance import fold_interval, fold_test
from finetune.types import TextExample
from tests import small_data as data
from tests.command import run
from tests.tiny import save_tiny_checkpoint


def test_folds_are_whole_disjoint_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save_tiny_checkpoint(tmp_path / "model", "bert")
    data.sentiment(tmp_path / "data", (40, 8, 8))
    rows = [json.loads(line) for line in Path("data/train.jsonl").read_text().splitlines()]
    rows.append({"text": "the only one of its kind", "label": "mixed"})
    data.write_jsonl(tmp_path / "only.jsonl", rows)
    options = "--data only.jsonl --steps 2 --batch-size 8 --folds 2 --out folds"
    command = ["classify", "--model", "model", *options.split()]
    run(*command).ok()
    tested = []
    for fold in ("fold-1.1", "fold-1.2"):
        lines = Path(f"folds/{fold}/predictions.test.jsonl").read_text().splitlines()
        tested.append({json.loads(line)["text"] for line in lines})
        assert (Path("folds") / fold / "best").is_dir() and "mixed" in Path(
            f"folds/{fold}/best/finetune.json"
        ).read_text("utf-8")
    texts = {row["text"] for row in rows} - {"the only one of its kind"}
    assert tested[0] | tested[1] == texts and not tested[0] & tested[1]
    found = json.loads(Path("folds/folds.json").read_text())
    scores = found["metrics"]["test"]["accuracy"]
    expected = fold_interval(list(scores["seeds"].values()), 1.0, (0.0, 1.0))
    assert (scores["mean"], scores["low"], scores["high"]) == pytest.approx(expected)
    table = json.loads(run("score", "folds").out)
    row = next(r for r in table if (r["split"], r["metric"]) == ("test", "accuracy"))
    assert (row["low"], row["high"], row["folds"]) == (scores["low"], scores["high"], 2)
    page = Path("folds/report.html").read_text("utf-8")
    assert "corrected resampled t" in page and f"{scores['low']:.4f}" in page
    run(*command[:-1], "slow", "--lr", "1e-9").ok()
    compared = json.loads(run("compare", "folds", "slow", "--format", "json").out)
    slow = json.loads(Path("slow/folds.json").read_text())["metrics"]["test"]["accuracy"]
    assert compared[2]["mean"] == pytest.approx(scores["mean"] - slow["mean"])
    before = Path("folds/fold-1.1/log.jsonl").stat().st_mtime_ns
    run(*command, "--folds", "0.5x2").refused("hold_out = False, now True")
    more = run(*command, "--folds", "2x2").ok()
    assert more.out.count("is finished: kept") == 2, more.err
    assert Path("folds/fold-1.1/log.jsonl").stat().st_mtime_ns == before
    assert len(json.loads(Path("folds/folds.json").read_text())["runs"]) == 4
    run(*command[:4], "data", *command[5:]).refused("folds with data")


def test_the_test_of_folds_is_the_paired_t_test_with_a_larger_variance():
    from scipy.stats import ttest_rel

    random = np.random.default_rng(5)
    first, second = random.normal(0.8, 0.02, 10), random.normal(0.77, 0.02, 10)
    assert fold_test(first - second, 0.0)[1] == pytest.approx(ttest_rel(first, second).pvalue)
    assert fold_test(first - second, 0.25)[1] > fold_test(first - second, 0.0)[1]
    assert fold_test([0.0, 0.0], 0.25)[1] == 1.0 and fold_test([0.1, 0.1], 0.25)[1] == 0.0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--folds", "1"), "--folds: the folds must be 2 or more"),
        (("--folds", "3x0"), "--folds: the repeats must be 1 or more"),
        (("--folds", "0.33x1"), "one score has no interval"),
        (("--folds", "0.4x9"), "write a share 1/N"),
        (("--folds", "many"), "write N folds, NxR"),
        (("--folds", "3", "--seeds", "2"), "--seeds does not go with --folds"),
        (("--folds", "3", "--test-sets", "a=b.jsonl"), "--test-sets does not go with --folds"),
        (("--columns", "text=a", "text=b"), "--columns names text twice"),
    ],
)
def test_options_of_folds(more: tuple[str, ...], message: str):
    run("classify", "--data", "x.jsonl", *more).refused(message)


def test_equal_texts_share_a_fold_and_a_label_of_one_text_is_in_none():
    texts = [
        (f"text {n // 2}" if n % 2 else f"TEXT  {n // 2}", "ab"[n // 2 % 2]) for n in range(40)
    ]
    examples = [TextExample(n, *text_label(pair)) for n, pair in enumerate([*texts, ("one", "c")])]
    folds = assign_folds(examples, 4, keep_rare=True)
    assert folds[-1] == -1 and all(folds[n] == folds[n + 1] for n in range(0, 40, 2))
    assert {(fold, folds[:40].count(fold)) for fold in range(4)} == {(f, 10) for f in range(4)}


def text_label(pair: tuple[str, str]) -> tuple[str, None, str]:
    return pair[0], None, pair[1]


def test_the_interval_of_folds_covers_where_the_usual_one_does_not():
    """Classifiers by the mean of each class, on normal data whose expected accuracy is known."""
    random = np.random.default_rng(0)
    covered = np.zeros(2)
    for _ in range(200):
        labels = random.integers(0, 2, 60)
        x = random.normal(size=(60, 10)) + 0.5 * labels[:, None]
        dealt = [random.permutation(60) % 5 for _ in range(3)]
        scores, expected = [], []
        for folds, fold in [(folds, fold) for folds in dealt for fold in range(5)]:
            train, test = folds != fold, folds == fold
            means = np.stack([x[train & (labels == c)].mean(0) for c in (0, 1)])
            direction, middle = means[1] - means[0], means.mean(0)
            scores.append(np.mean(((x[test] - middle) @ direction > 0) == labels[test]))
            size = np.linalg.norm(direction)
            margins = [
                sign * (0.5 * c - middle).dot(direction) / size for c, sign in ((0, -1), (1, 1))
            ]
            expected.append(np.mean([normal_cdf(margin) for margin in margins]))
        for index, ratio in enumerate((0.25, 0.0)):
            low, high = fold_interval(scores, ratio)[1:]
            covered[index] += low <= np.mean(expected) <= high
    assert covered[0] / 200 > 0.93 and covered[1] / 200 < 0.85


def test_intervals_end_at_the_limits_of_the_metric():
    scores = {1: 0.9, 2: 1.0, 3: 0.8}
    names = ("accuracy", "f1:Ann", "matthews", "mse", "own")
    found = summarize({n: {"test": dict.fromkeys(names, s)} for n, s in scores.items()}, 0.5)[
        "test"
    ]
    low, high = fold_interval(list(scores.values()), 0.5)[1:]
    assert 0 < low < high and high > 1
    assert [found[name]["high"] for name in names] == [1.0, 1.0, 1.0, high, high]
    scores = {1: -0.1, 2: -0.9}
    found = summarize({n: {"test": dict.fromkeys(names, s)} for n, s in scores.items()}, 0.5)[
        "test"
    ]
    assert found["matthews"]["low"] == -1.0 and found["own"]["low"] < -1.0


def normal_cdf(value: float) -> float:
    from math import erf, sqrt

    return 0.5 * (1 + erf(value / sqrt(2)))
