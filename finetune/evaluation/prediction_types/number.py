"""A number for each text.

Ties share their mean rank, as in scipy. The correlation with a constant is 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from finetune.evaluation.items import Items, PredictionType, Tables, Wording
from finetune.evaluation.metrics import Metric, mean, ratio, weighted_ranks
from finetune.evaluation.prediction_types.label import OF_LABELS, unified_numbers
from finetune.types import UserError


def _squared_errors(tables: Tables) -> np.ndarray:
    difference = np.asarray(tables.gold) - np.asarray(tables.predicted)
    return np.column_stack([difference * difference, np.ones(len(difference))])


def moments(tables: Tables) -> np.ndarray:
    """Return the moments of gold x and predicted y: xy, x, y, xx, yy, 1 [N, 6].

    Both sides are centered and scaled, by the values of all runs: no square underflows.
    """
    x = _centered(tables.gold, tables.gold)
    y = _centered(tables.predicted, tables.scale)
    return np.column_stack([x * y, x, y, x * x, y * y, np.ones(len(x))])


def _centered(values: Sequence[float], all_values: Sequence[float]) -> np.ndarray:
    if len(set(all_values)) < 2:
        return np.zeros(len(values))
    mean = math.fsum(all_values) / len(all_values)
    return (np.asarray(values) - mean) / (np.abs(np.asarray(all_values) - mean).max() or 1.0)


def rank_moments(tables: Tables) -> np.ndarray:
    """Return the ``moments`` of ranks. In a resample ranks change: see ``significance.Counts``."""
    one = np.ones((1, len(tables)))
    gold, predicted = (weighted_ranks(side, one)[0] for side in (tables.gold, tables.predicted))
    return moments(replace(tables, gold=gold, predicted=predicted, scale=predicted))


def correlation(sums: np.ndarray) -> np.ndarray:
    """Return the Pearson correlation from ``moments`` [..., 6] -> [...], 0 for a constant side."""
    xy, x, y, xx, yy, n = np.moveaxis(sums, -1, 0)
    deviations = []
    for total, squares in ((x, xx), (y, yy)):
        spread = squares - ratio(total * total, n)
        rounding = 1e-13 * squares  # a constant side leaves no more than this
        deviations.append(np.sqrt(np.where(spread > rounding, spread, 0.0)))
    return ratio(xy - ratio(x * y, n), deviations[0] * deviations[1]).clip(-1.0, 1.0)


def _build(gold: Sequence[Any], predicted: Sequence[Any], **facts: Any) -> Tables:
    sides = [np.array(side, dtype=np.float64) for side in (gold, predicted)]
    for name, side in zip(("gold", "predicted"), sides, strict=True):
        for index in np.flatnonzero(~np.isfinite(side)):
            raise UserError(
                f"{name} value {index} is {side[index]}: only finite numbers have a score"
            )
    deviation = np.abs(sides[0] - sides[1])
    gold, predicted = (side.tolist() for side in sides)
    nothing = np.zeros(len(gold), bool)  # no number is exactly right
    items = Items.of(range(len(gold)), gold, predicted, credit=nothing, deviation=deviation)
    return Tables.of(NUMBER, gold, predicted, items, scale=predicted, **facts)


NUMBER = PredictionType(
    name="number",
    wording=Wording("numbers", "text"),
    metrics={
        "pearson": Metric(moments, correlation),
        "spearman": Metric(rank_moments, correlation),
        "mse": Metric(_squared_errors, mean),
        "pearson_all": Metric(moments, correlation, reported=False),
        "spearman_all": Metric(rank_moments, correlation, reported=False),
    },
    default="pearson",
    build=_build,
    unified=unified_numbers,
    has_categories=False,
    **OF_LABELS,
)
