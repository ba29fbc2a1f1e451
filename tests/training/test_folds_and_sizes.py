"""Folds and learning curves: what is in them, resumed, summed up with an honest interval."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

from finetune.data import assign_folds
from finetune.data.splitting import nested_order
from finetune.evaluation.reproduction import summarize
from finetune.evaluation.significance import fold_test
from finetune.types import TextExample
from tests import fixtures as fx
from tests.command import run
from tests.small_data import read_jsonl, write_jsonl


def test_folds_are_whole_disjoint_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = read_jsonl(fx.data("sentiment") / "train.jsonl")
    rows.append({"text": "the only one of its kind", "label": "mixed"})
    file = write_jsonl(tmp_path / "only.jsonl", rows)

    def command(out: str, data: Path = file, folds: str = "2") -> list[str]:
        return [*fx.words("classify", Path(out), data=data), "--folds", folds]

    run(*command("folds")).ok()
    tested = []
    for fold in ("fold-1.1", "fold-1.2"):
        predicted = read_jsonl(Path("folds", fold, "predictions.test.jsonl"))
        tested.append({row["text"] for row in predicted})
        assert "mixed" in Path("folds", fold, "best/finetune.json").read_text("utf-8")
    texts = {row["text"] for row in rows} - {"the only one of its kind"}
    assert tested[0] | tested[1] == texts and not tested[0] & tested[1]
    found = json.loads(Path("folds/folds.json").read_text())
    scores = found["metrics"]["test"]["accuracy"]
    expected = fold_test(list(scores["seeds"].values()), 1.0, (0.0, 1.0))[0]
    assert (scores["mean"], scores["low"], scores["high"]) == pytest.approx(expected)
    table = json.loads(run("score", "folds", "--format", "json").out)
    row = next(r for r in table if (r["split"], r["metric"]) == ("test", "accuracy"))
    assert (row["low"], row["high"], row["folds"]) == (scores["low"], scores["high"], 2)
    page = Path("folds/report.html").read_text("utf-8")
    assert "differ in more" not in page
    assert "corrected resampled t" in page and f"{scores['low']:.4f}" in page
    run(*command("slow"), "--lr", "1e-9").ok()
    compared = json.loads(run("compare", "folds", "slow", "--format", "json").out)
    slow = json.loads(Path("slow/folds.json").read_text())["metrics"]["test"]["accuracy"]
    assert compared[2]["mean"] == pytest.approx(scores["mean"] - slow["mean"])
    summary = json.loads(Path("slow/folds.json").read_text())
    Path("slow/folds.json").write_text(json.dumps(summary | {"data": "a fingerprint"}))
    run("compare", "folds", "slow").refused("have other folds, as their data differ: train both")
    before = Path("folds/fold-1.1/log.jsonl").stat().st_mtime_ns
    more = run(*command("folds", folds="2x2")).ok()
    assert more.out.count("is finished: kept") == 2, more.err
    assert Path("folds/fold-1.1/log.jsonl").stat().st_mtime_ns == before
    assert len(json.loads(Path("folds/folds.json").read_text())["runs"]) == 4
    run(*command("folds", fx.data("sentiment"))).refused("folds with data")


def test_the_test_of_folds_is_the_paired_t_test_with_a_larger_variance():
    random = np.random.default_rng(5)
    first, second = random.normal(0.8, 0.02, 10), random.normal(0.77, 0.02, 10)
    plain, paired = fold_test(first - second, 0.0), ttest_rel(first, second)
    assert plain[1] == pytest.approx(paired.pvalue)
    assert plain[0][1:] == pytest.approx((*paired.confidence_interval(0.95),))
    corrected = fold_test(first - second, 0.25)
    assert corrected[1] > plain[1]
    wider = np.sqrt((1 / 10 + 0.25) / (1 / 10))  # Nadeau & Bengio (2003)
    assert corrected[0].high - corrected[0].value == pytest.approx(
        (plain[0].high - plain[0].value) * wider
    )
    assert fold_test([0.0, 0.0], 0.25)[1] == 1.0 and fold_test([0.1, 0.1], 0.25)[1] == 0.0


def test_equal_texts_share_a_fold_and_a_label_of_one_text_is_in_none():
    examples = [
        TextExample(n, f"text {n // 2}" if n % 2 else f"TEXT  {n // 2}", None, "ab"[n // 2 % 2])
        for n in range(40)
    ]
    examples.append(TextExample(40, "one", None, "c"))
    folds = assign_folds(examples, 4, keep_rare=True)
    assert folds[-1] == -1 and all(folds[n] == folds[n + 1] for n in range(0, 40, 2))
    assert {(fold, folds[:40].count(fold)) for fold in range(4)} == {(f, 10) for f in range(4)}


def test_intervals_end_at_the_limits_of_the_metric():
    scores = {1: 0.9, 2: 1.0, 3: 0.8}
    names = ("accuracy", "f1:Ann", "matthews", "mse", "own")
    by_seed = {n: {"test": dict.fromkeys(names, s)} for n, s in scores.items()}
    found = summarize(by_seed, 0.5)["test"]
    low, high = fold_test(list(scores.values()), 0.5)[0][1:]
    assert 0 < low < high and high > 1
    assert [found[name]["high"] for name in names] == [1.0, 1.0, 1.0, high, high]
    by_seed = {n: {"test": dict.fromkeys(names, s)} for n, s in ((1, -0.1), (2, -0.9))}
    found = summarize(by_seed, 0.5)["test"]
    assert found["matthews"]["low"] == -1.0 and found["own"]["low"] < -1.0


def test_a_curve_is_measured_extended_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = fx.data("sentiment", (24, 8, 8))
    command = [*fx.words("classify", Path("curve"), data=rows, steps=1), "--seeds", "1"]
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
    said = "curve: holds a learning curve, in curve.html and curve.json: give one of its runs, for"
    for words in (["score", "curve"], ["report", "curve"], ["compare", "curve", "curve/size-6-1"]):
        run(*words).refused(said)


def test_subsets_are_stratified_and_begin_with_every_label():
    labels = ["a"] * 60 + ["b"] * 30 + ["c"] * 9 + ["d"]
    examples = [TextExample(n, f"text {n}", None, label) for n, label in enumerate(labels)]
    order = [labels[index] for index in nested_order(examples, 3)]
    assert sorted(order[:4]) == ["a", "b", "c", "d"] and sorted(order) == labels
    assert nested_order(examples, 3) != nested_order(examples, 4)
    for size in (20, 50):
        counts = [order[:size].count(label) / size for label in "abc"]
        assert counts == pytest.approx([0.6, 0.3, 0.09], abs=0.06)
