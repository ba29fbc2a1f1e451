"""Learning curves: a power law of scores by amount of training data, and its extrapolation.

A score tends to a limit as score(n) = limit - scale · n^(-exponent) (Hestness et al., 2017, "Deep
Learning Scaling is Predictable, Empirically"; Frey & Fisher, 1999). Shapes: R resamples, P points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from finetune.config.metric_facts import facts_of
from finetune.evaluation.significance import ALPHA, Estimate

EXPONENTS = np.linspace(0.05, 2.0, 79)
LEAST_SIZES = 3
"""Sizes of data that a power law is fitted to, at least."""
NUM_RESAMPLES = 1000


class PowerLaw(NamedTuple):
    """score(n) = limit - scale · n^(-exponent); the scale is negative where lower is better."""

    limit: float
    scale: float
    exponent: float

    def at(self, size: float) -> float:
        """Return the score with ``size`` training examples."""
        return float(self.limit - self.scale * size**-self.exponent)


class LearningCurve(NamedTuple):
    """Scores by number of training examples, the fitted law, and its predictions.

    ``predicted`` has an interval for each number of examples, measured or not. ``checked`` is the
    prediction for the largest measured number by a law fitted without it. Both are empty, and the
    law is None, if too few sizes are measured.
    """

    metric: str
    split: str
    scores: Mapping[int, Sequence[float]]
    law: PowerLaw | None
    predicted: Mapping[int, Estimate]
    checked: Estimate | None

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows: the scores of each size, and the fitted ones."""
        rows: list[list[Any]] = []
        for size in sorted({*self.scores, *self.predicted}):
            found = self.scores.get(size, ())
            mean = float(np.mean(found)) if found else None
            deviation = float(np.std(found, ddof=1)) if len(found) > 1 else None
            fitted = self.predicted.get(size, (None, None, None))
            rows.append([size, len(found), mean, deviation, *fitted])
        return ["examples", "runs", self.metric, "deviation", "fitted", "low", "high"], rows

    def lines(self) -> list[str]:
        """Return sentences about the law."""
        if self.law is None:
            return [f"No power law: it needs {LEAST_SIZES} sizes or more."]
        lines = [
            f"{self.metric} on {self.split} = {self.law.limit:.4f} - {self.law.scale:.4g} · "
            f"n^-{self.law.exponent:.3g}; low and high: 95 % interval, if this law holds"
        ]
        if self.checked:
            largest = max(self.scores)
            measured = float(np.mean(self.scores[largest]))
            low, high = self.checked.low, self.checked.high
            lines.append(
                f"Check: the law without the largest size predicts {self.checked.value:.4f} "
                f"({low:.4f} to {high:.4f}) at {largest:,} examples, measured {measured:.4f}: "
                f"error {measured - self.checked.value:+.4f}"
            )
        return lines

    def record(self) -> dict[str, Any]:
        """Return the curve as JSON values."""
        return {
            "metric": self.metric,
            "split": self.split,
            "scores": {str(size): list(values) for size, values in self.scores.items()},
            "law": self.law and self.law._asdict(),
            "predicted": {str(size): each._asdict() for size, each in self.predicted.items()},
            "checked": self.checked and self.checked._asdict(),
        }


def learning_curve(
    metric: str,
    split: str,
    scores: Mapping[int, Sequence[float]],
    sizes: Sequence[int],
    lower_is_better: bool | None = None,
) -> LearningCurve:
    """Fit a power law to scores of several runs by size, and predict the score at ``sizes``.

    Intervals are percentiles of laws fitted to resampled runs of each size (bootstrap). They hold
    if the scores follow a power law; ``checked`` tests this at the largest size. A custom metric
    needs ``lower_is_better``; its values have no known limit.
    """
    if len(scores) < LEAST_SIZES:
        return LearningCurve(metric, split, scores, None, {}, None)
    lower = facts_of(metric).lower_is_better if lower_is_better is None else lower_is_better
    limited = lower_is_better is None
    best, laws = _laws(scores, lower, limited)
    predicted = {size: _predict(best, laws, size) for size in sizes}
    checked = None
    if len(scores) > LEAST_SIZES:
        largest = max(scores)
        shorter = {size: values for size, values in scores.items() if size != largest}
        checked = _predict(*_laws(shorter, lower, limited), largest)
    return LearningCurve(metric, split, scores, best, predicted, checked)


def _predict(best: PowerLaw, laws: np.ndarray, size: int) -> Estimate:
    values = laws[:, 0] - laws[:, 1] * float(size) ** -laws[:, 2]
    low, high = np.quantile(values, [ALPHA / 2, 1 - ALPHA / 2])
    return Estimate(best.at(size), float(low), float(high))


def _laws(
    scores: Mapping[int, Sequence[float]], lower_is_better: bool, limited: bool
) -> tuple[PowerLaw, np.ndarray]:
    """Return the law of the scores, and the laws [R, 3] of resampled scores.

    A resample draws the runs of a size with replacement and adds the residuals of their mean: with
    one run of each size only the residuals vary.
    """
    sign = -1.0 if lower_is_better else 1.0
    sizes = np.array(sorted(scores), dtype=float)
    means = sign * np.array([np.mean(scores[int(size)]) for size in sizes])
    # the limit of a score from 0 to 1 is at most 1, of an error at least 0
    highest = np.inf
    if limited:
        highest = 0.0 if sign < 0 else 1.0 if np.abs(means).max() <= 1 else np.inf
    best = _fit(sizes, means[None], highest)
    residuals = means - (best[0, 0] - best[0, 1] * sizes ** -best[0, 2])
    random = np.random.default_rng(0)
    drawn = np.stack(
        [
            sign * random.choice(scores[int(size)], (NUM_RESAMPLES, len(scores[int(size)]))).mean(1)
            for size in sizes
        ],
        axis=1,
    )
    fitted = means - residuals
    spread = np.sqrt(len(sizes) / max(1, len(sizes) - 2))  # three values are fitted
    noise = random.choice(residuals, drawn.shape) * spread
    laws = _fit(sizes, drawn - means + fitted + noise, highest)
    return PowerLaw(*map(float, best[0] * [sign, sign, 1])), laws * [sign, sign, 1]


def _fit(sizes: np.ndarray, values: np.ndarray, highest: float) -> np.ndarray:
    """Return the law of least squares with a scale of at least 0 and such a limit [R, 3]."""
    best = np.zeros((len(values), 3))
    least = np.full(len(values), np.inf)
    for exponent in EXPONENTS:
        x = sizes**-exponent
        centered = x - x.mean()
        scale = np.maximum(0, -(values @ centered) / (centered @ centered))
        limit = values.mean(1) + scale * x.mean()
        over = limit > highest
        if over.any():
            limit = np.where(over, highest, limit)
            scale = np.where(over, np.maximum(0, (highest - values) @ x / (x @ x)), scale)
        error = np.square(values - limit[:, None] + scale[:, None] * x).sum(1)
        better = error < least
        least = np.where(better, error, least)
        best[better] = np.stack([limit, scale, np.full(len(values), exponent)], 1)[better]
    return best
