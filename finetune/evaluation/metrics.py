"""Metrics, each written once: counts of each example, and the value of their sum.

Scores sum over all examples; confidence intervals and significance tests (``significance``) take
weighted sums, so values also take batches of sums. A score with nothing to divide by is 0.0. Here
is what several kinds of predictions share; to add a metric, add a ``Metric`` to the ``metrics`` of
its kind.

Shapes: N examples, C names (labels, tags or span types).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from finetune.types import Relation, Span

if TYPE_CHECKING:
    from finetune.evaluation.kinds.kind import Scored

NUM_BINS = 15
"""Bins of equal width of the expected calibration error, as in Guo et al. 2017."""


@dataclass(frozen=True)
class Metric:
    """A metric: ``counts(scored) -> [N, ...]`` of each example, ``value(sums [..., K]) -> [...]``.

    Training and ``finetune score`` give only the ``reported`` ones that apply.
    """

    counts: Callable[[Scored], np.ndarray]
    value: Callable[[np.ndarray], np.ndarray]
    applies: Callable[[Scored], bool] = lambda _: True
    reported: bool = True
    by_class: bool = False
    """Whether the counts are large where there are many names, and so are summed in parts."""


# --- Counts of each example -----------------------------------------------------------------------


def item_counts(scored: Scored, strict: bool = False, name: str | None = None) -> np.ndarray:
    """Return the numbers of correct, predicted and gold labels, words or spans [N, 3].

    With ``name``, count one label, tag or span type only.
    """
    sides = scored.kind.items(scored, strict)
    if name is None:
        return np.array([list(map(len, side)) for side in sides], dtype=np.int64).T
    named = [[sum(name_of(item) == name for item in items) for items in side] for side in sides]
    return np.array(named, dtype=np.int64).T


def name_of(item: str | Span | Relation) -> str:
    """Return the label, the tag, or the type of a span or relation."""
    return item if isinstance(item, str) else item.label


def class_counts(scored: Scored) -> np.ndarray:
    """Return the ``item_counts`` of every name [N, C, 3]."""
    column = {name: index for index, name in enumerate(scored.names)}
    cells = [
        (example * len(column) + column[name_of(item)]) * 3 + count
        for count, side in enumerate(scored.kind.items(scored))
        for example, items in enumerate(side)
        for item in items
    ]
    shape = len(scored), len(column), 3
    counts = np.bincount(np.array(cells, dtype=np.int64), minlength=math.prod(shape))
    return counts.reshape(shape)


def weighted_ranks(values: npt.ArrayLike, weights: np.ndarray) -> np.ndarray:
    """Return mean ranks, from 1, where value n occurs ``weights[r, n]`` times: [R, N]."""
    if weights.shape[1] == 0:
        return np.zeros_like(weights)
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 1))
    each = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks: np.ndarray = (np.cumsum(each, axis=1) - (each - 1) / 2)[:, group]
    return ranks


def confidence_counts(confidences: Sequence[Sequence[tuple[float, bool]]]) -> np.ndarray:
    """Return the ``bin_counts`` of the predictions of each example [N, 3, bins].

    ``confidences`` are the probability of each prediction, and whether it is right.
    """
    rows = [np.array(each, dtype=np.float64).reshape(-1, 2).T for each in confidences]
    return np.array([bin_counts(*row) for row in rows]).reshape(-1, 3, NUM_BINS)


def bin_counts(
    confidences: npt.ArrayLike, correct: npt.ArrayLike, num_bins: int = NUM_BINS
) -> np.ndarray:
    """Return number, summed confidence and correct predictions of each bin [3, bins].

    A bin includes its upper end, the first one also 0.
    """
    index = np.ceil(np.asarray(confidences) * num_bins - 1e-9).astype(int) - 1
    index = np.clip(index, 0, num_bins - 1)
    sides = np.ones(len(index)), confidences, correct
    return np.stack([np.bincount(index, weights=side, minlength=num_bins) for side in sides])


# --- Values of sums -------------------------------------------------------------------------------


def ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> np.ndarray:
    """Return quotients, 0 where there is nothing to divide by."""
    whole = np.asarray(whole)
    found: np.ndarray = np.divide(part, whole, out=np.zeros(whole.shape), where=whole != 0)
    return found


def mean(sums: np.ndarray) -> np.ndarray:
    """Return the first count over the second [..., K] -> [...]."""
    return ratio(sums[..., 0], sums[..., 1])


precision = mean
"""Correct over predicted, from correct, predicted and gold [..., 3] -> [...]."""


def recall(sums: np.ndarray) -> np.ndarray:
    """Return correct over gold [..., 3] -> [...]."""
    return ratio(sums[..., 0], sums[..., 2])


def f1(sums: np.ndarray) -> np.ndarray:
    """Return the harmonic mean of precision and recall, ``2 tp / (2 tp + fp + fn)`` [..., 3].

    van Rijsbergen 1979; Jurafsky & Martin, "Evaluation: precision, recall, F-measure".
    """
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def macro_f1(sums: np.ndarray) -> np.ndarray:
    """Return the mean F1 of the names that occur [..., C, 3] -> [...]."""
    occurs = (sums[..., 1:] > 0).any(axis=-1)
    return ratio(_exact_sum(f1(sums)), occurs.sum(axis=-1))


def weighted_f1(sums: np.ndarray) -> np.ndarray:
    """Return the mean F1 of names, weighted by their gold count [..., C, 3] -> [...]."""
    weighted = f1(sums) * sums[..., 2]
    return ratio(sum(np.moveaxis(weighted, -1, 0)), sums[..., 2].sum(axis=-1))


def matthews(sums: np.ndarray) -> np.ndarray:
    """Return the Matthews correlation of any number of classes [..., C, 3] -> [...].

    ``(c n - sum_k g_k p_k) / sqrt((n² - sum_k g_k²) (n² - sum_k p_k²))`` (Matthews 1975; Gorodkin
    2004) of n examples, c correct, g_k and p_k of class k; 0 where a side has one class only.
    """
    correct, predicted, gold = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    n = gold.sum(axis=-1)
    covariance = correct.sum(axis=-1) * n - (gold * predicted).sum(axis=-1)
    spread = [n * n - (side * side).sum(axis=-1) for side in (gold, predicted)]
    spread[1] -= (n - predicted.sum(axis=-1)) ** 2  # predictions of no class are a class, too
    return ratio(covariance, np.sqrt(spread[0] * spread[1]))


def calibration_error(sums: np.ndarray) -> np.ndarray:
    """Return the expected calibration error from ``bin_counts`` [..., 3, bins] -> [...].

    The mean distance of confidence and accuracy over bins, weighted by the number of predictions
    (Naeini, Cooper & Hauskrecht 2015). Resamples, which repeat examples, have a larger error.
    """
    number, confidence, correct = np.moveaxis(sums, -2, 0)
    gaps = number * np.abs(ratio(correct, number) - ratio(confidence, number))
    return ratio(_exact_sum(gaps), number.sum(axis=-1))


def _exact_sum(values: np.ndarray) -> np.ndarray:
    exact: np.ndarray = np.apply_along_axis(math.fsum, -1, values)
    return exact


RATES = {"precision": precision, "recall": recall, "f1": f1}
"""The rates of correct, predicted and gold items."""


# --- Scores ---------------------------------------------------------------------------------------


def total(
    counts: Callable[[Scored], np.ndarray], scored: Scored, by_class: bool = False
) -> np.ndarray:
    """Return the sum of the counts of all examples; sums of floats are rounded once."""
    if by_class:
        chunks = [slice(start, start + 1024) for start in range(0, max(1, len(scored)), 1024)]
        parts = [
            replace(scored, gold=scored.gold[c], predicted=scored.predicted[c]) for c in chunks
        ]
        rows = np.array([counts(part).sum(axis=0) for part in parts])
    else:
        rows = counts(scored)
    return rows.sum(axis=0) if rows.dtype.kind == "i" else _exact_sum(np.moveaxis(rows, 0, -1))


def score(scored: Scored) -> dict[str, float]:
    """Return the reported metrics of gold and predictions, by name."""
    sums: dict[Callable[[Scored], np.ndarray], np.ndarray] = {}
    found = {}
    for name, metric in scored.kind.metrics.items():
        if metric.reported and metric.applies(scored):
            if metric.counts not in sums:
                sums[metric.counts] = total(metric.counts, scored, metric.by_class)
            found[name] = float(metric.value(sums[metric.counts]))
    return found | dict(scored.kind.further_scores(scored))


def metrics_of_names(scored: Scored) -> dict[str, Metric]:
    """Return precision, recall and F1 of each label, tag or type: ``f1:NAME`` and so on."""
    return {
        f"{form.format(rate)}:{name}": Metric(partial(item_counts, name=name, strict=strict), value)
        for form, strict in scored.kind.named
        for rate, value in RATES.items()
        for name in scored.names
    }
