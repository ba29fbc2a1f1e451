"""Chosen thresholds against all possible ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from finetune.evaluation.decisions.label_thresholds import (
    Goal,
    LabelProbabilities,
    choose,
    cross_fitted,
    table_of,
)
from finetune.types import TextExample, UserError

NAMES = ("a", "b", "c")


def two_labels(seed: int, number: int = 40) -> LabelProbabilities:
    random = np.random.default_rng(seed)
    gold = random.random(number) < 0.3
    scores = np.clip(0.3 * gold + random.random(number) * 0.6, 0, 1).round(2)[:, None]
    labels = [("no",) if not yes else ("yes",) for yes in gold]
    examples = [TextExample(i, f"text {i}", None, label) for i, label in enumerate(labels)]
    return LabelProbabilities(("no", "yes"), ("yes",), examples, labels, scores)


def several_labels(seed: int, number: int = 24) -> LabelProbabilities:
    random = np.random.default_rng(seed)
    gold = random.random((number, 3)) < [0.5, 0.3, 0.3]
    scores = np.clip(0.3 * gold + random.random((number, 3)) * 0.6, 0, 1).round(1)
    labels = [tuple(np.array(NAMES)[row].tolist()) for row in gold]
    examples = [TextExample(i, f"text {i}", None, label) for i, label in enumerate(labels)]
    return LabelProbabilities(NAMES, NAMES, examples, labels, scores)


def score(data: LabelProbabilities, metric: str, thresholds: list[float]) -> float:
    return data.value(metric, np.array(thresholds))


def all_cuts(scores: np.ndarray) -> list[float]:
    levels = [0.0, *sorted(set(scores.tolist())), 1.0]
    return [(low + high) / 2 for low, high in itertools.pairwise(levels)]


def rates_of(data: LabelProbabilities, thresholds: dict[str, float]) -> tuple[float, float]:
    (row,) = table_of(data, thresholds)
    return row["precision"], row["recall"]


@pytest.mark.parametrize("metric", ["f1", "macro_f1", "accuracy", "matthews", "weighted_f1"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_threshold_of_two_labels_is_the_best_of_all(metric: str, seed: int) -> None:
    data = two_labels(seed)
    best = max(score(data, metric, [cut]) for cut in all_cuts(data.scores[:, 0]))
    found = choose(data, Goal(metric))
    assert score(data, metric, [found["yes"]]) == pytest.approx(best)


def test_thresholds_raise_a_metric_of_levels() -> None:
    data = several_labels(3)
    names = ("x/a", "x/b", "y")
    paths = dict(zip(NAMES, names, strict=True))
    gold = [tuple(paths[name] for name in labels) for labels in data.gold]
    data = replace(data, names=names, columns=names, gold=gold, separator="/")
    metric, usual = "hierarchical_f1", np.full(3, 0.5)
    found = np.array(list(choose(data, Goal("hierarchical_f1")).values()))
    assert data.value(metric, found) > data.value(metric, usual)


@pytest.mark.parametrize("metric", ["macro_f1", "micro_f1", "subset_accuracy", "hamming_loss"])
def test_thresholds_of_several_labels_against_all(metric: str) -> None:
    data = several_labels(3)
    found = choose(data, Goal(metric))
    value = score(data, metric, list(found.values()))
    if metric == "macro_f1":  # labels are independent of each other
        every = itertools.product(*(all_cuts(column) for column in data.scores.T))
        assert value == pytest.approx(max(score(data, metric, list(cuts)) for cuts in every))
    sign = -1 if metric == "hamming_loss" else 1
    assert sign * value >= sign * score(data, metric, [0.5] * 3)
    for index, name in enumerate(NAMES):  # no change of one label helps
        for cut in all_cuts(data.scores[:, index]):
            other = list(({**found, name: cut}).values())
            assert sign * score(data, metric, other) <= sign * value + 1e-12


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize("level", [0.4, 0.7, 0.95])
def test_recall_at_a_precision_and_precision_at_a_recall(seed: int, level: float) -> None:
    data = two_labels(seed)
    rows = []
    for cut in all_cuts(data.scores[:, 0]):
        rows.append(rates_of(data, {"yes": cut}))
    precision, recall = rates_of(data, choose(data, Goal(precision=level)))
    reached = [r for p, r in rows if p >= level]
    assert recall == pytest.approx(max(reached)) if reached else precision == max(rows)[0]
    assert not reached or precision >= level
    precision, recall = rates_of(data, choose(data, Goal(recall=level)))
    assert recall >= level and precision == pytest.approx(max(p for p, r in rows if r >= level))


def test_rare_labels_keep_their_threshold() -> None:
    data = several_labels(1)
    applies = data.applies.copy()
    applies[:, 2] = False
    gold = [tuple(np.array(NAMES)[row].tolist()) for row in applies]
    data = LabelProbabilities(NAMES, NAMES, data.examples, gold, data.scores)
    assert choose(data, Goal("macro_f1"), default=0.4)["c"] == 0.4


def test_cross_fitting_never_uses_the_own_half() -> None:
    data = two_labels(5, 60)
    fitted = cross_fitted(data, Goal("f1"))
    groups = [np.flatnonzero(fitted[:, 0] == value) for value in np.unique(fitted)]
    for own in groups:
        others = [row for row in range(60) if row not in set(own.tolist())]
        if len(groups) == 2:
            assert fitted[own[0], 0] == choose(data.take(others), Goal("f1"))["yes"]
    assert {len(group) for group in groups} <= {30, 60}


def test_the_table_of_the_trade_and_unknown_metrics() -> None:
    data = two_labels(0)
    for threshold in (0.1, 0.5, 0.9):
        (row,) = table_of(data, {"yes": threshold})
        chosen = data.scores[:, 0] >= row["threshold"]
        right, predicted = (chosen & data.applies[:, 0]).sum(), row["predicted"]
        assert predicted == chosen.sum() and row["recall"] == right / data.applies.sum()
        assert row["precision"] == pytest.approx(right / max(1, predicted))
        assert row["f1"] == pytest.approx(2 * right / (predicted + data.applies.sum()))
    with pytest.raises(UserError, match=r"--metric macro does not fit.*: choose .*macro_f1"):
        choose(data, Goal("macro"))
