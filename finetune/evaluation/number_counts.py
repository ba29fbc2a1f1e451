"""What each example counts of numbers: moments, and ranks.

Every function makes the counts of one run; ``seen`` are the answers of all runs. N examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from finetune.evaluation.counts import Ranks, Sums, ratio
from finetune.evaluation.item_counts import mean_of
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.evaluation.alignment import AlignedPredictions


def answers_of(runs: Sequence[AlignedPredictions]) -> list[float]:
    """The answers of all runs; raises ValueError if one of them, or of gold, is not finite."""
    for number in (number for run in runs for number in (*run.predicted, *run.gold)):
        if not np.isfinite(number):
            raise UserError(f"gold or a prediction is {number}: only finite numbers have a score.")
    return [answer for run in runs for answer in run.predicted]


def squared_error(run: AlignedPredictions, seen: Sequence[float]) -> Sums:
    """The mean of squared differences."""
    return mean_of([(g - a) ** 2 for g, a in zip(run.gold, run.predicted, strict=True)])


def pearson(run: AlignedPredictions, seen: Sequence[float]) -> Sums:
    """Five moments and the number.

    Numbers are standardised first, so that little cancels; answers by those of all runs, which
    keeps runs comparable whose answers are swapped.
    """
    x = _standardised(run.gold, run.gold)
    y = _standardised(run.predicted, seen)
    rows = np.column_stack([x * y, x, y, x * x, y * y, np.ones(len(x))])
    return Sums(rows, _correlation)


def _standardised(values: Sequence[float], seen: Sequence[float]) -> np.ndarray:
    return (np.asarray(values, dtype=np.float64) - np.mean(seen)) / (np.std(seen) or 1.0)


def _correlation(sums: np.ndarray) -> np.ndarray:
    xy, x, y, xx, yy, number = np.moveaxis(sums, -1, 0)
    roots = []
    for total, squares in ((x, xx), (y, yy)):
        spread = number * squares - total**2
        rounding = 1e-13 * number * squares  # what is left of a constant side
        roots.append(np.sqrt(np.where(spread > rounding, spread, 0.0)))
    return np.clip(ratio(number * xy - x * y, roots[0] * roots[1]), -1, 1)


def spearman(run: AlignedPredictions, seen: Sequence[float]) -> Ranks:
    """Both sides, to be ranked."""
    gold, answers = (np.asarray(side, dtype=np.float64) for side in (run.gold, run.predicted))
    return Ranks(gold, answers)
