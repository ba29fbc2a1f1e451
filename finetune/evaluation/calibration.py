"""Whether probabilities mean what they say, and one number that makes them more honest.

Expected calibration error: Naeini, Cooper & Hauskrecht 2015; its use and temperature scaling: Guo,
Pleiss, Sun & Weinberger 2017, "On Calibration of Modern Neural Networks".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from finetune.types import UserError

NUM_BINS = 15
"""Bins of equal width, as in Guo et al."""
LOWEST, HIGHEST = 0.05, 20.0
"""Temperatures beyond these are not looked for: where every answer on validation is right, no
temperature is low enough."""
_TINY = 1e-15  # probabilities of 0 and 1 have no finite log odds


class Bin(NamedTuple):
    """The answers whose confidence is above ``low`` and at most ``high`` (0 is in the first)."""

    low: float
    high: float
    number: int
    confidence: float
    """Mean over the bin, 0.0 where it is empty."""
    accuracy: float


def reliability(
    confidences: Sequence[float], right: Sequence[bool], num_bins: int = NUM_BINS
) -> list[Bin]:
    """The reliability diagram: bins of equal width from 0 to 1.

    Raises ValueError if the lengths differ, and for a confidence that is no probability.
    """
    if len(confidences) != len(right):
        raise UserError(f"{len(confidences)} confidences of {len(right)} answers")
    values = np.asarray(confidences, dtype=float)  # [N]
    bad = values[~((values >= 0) & (values <= 1 + 1e-6))]
    if len(bad):
        raise UserError(f"{bad[0]} is no probability: confidences are from 0 to 1")
    place = bins_of(values, num_bins)
    number, confidence, accuracy = (
        np.bincount(place, weights=weights, minlength=num_bins)
        for weights in (None, values, np.asarray(right, dtype=float))
    )
    whole = np.maximum(number, 1)
    rows = zip(number.tolist(), confidence / whole, accuracy / whole, strict=True)
    return [
        Bin(index / num_bins, (index + 1) / num_bins, count, float(mean), float(share))
        for index, (count, mean, share) in enumerate(rows)
    ]


def bins_of(confidences: np.ndarray, num_bins: int = NUM_BINS) -> np.ndarray:
    """The number of the bin of each confidence [N], from 0."""
    return np.clip(np.ceil(confidences * num_bins - 1e-9).astype(int) - 1, 0, num_bins - 1)


def calibration_error(
    confidences: Sequence[float], right: Sequence[bool], num_bins: int = NUM_BINS
) -> float:
    """Expected calibration error: the mean distance of confidence and accuracy, bin by bin,
    weighted by the answers in each bin; 0.0 for no answers."""
    return error_of(reliability(confidences, right, num_bins))


def error_of(bins: Sequence[Bin]) -> float:
    """The expected calibration error of a reliability diagram."""
    total = sum(each.number for each in bins)
    gaps = math.fsum(each.number * abs(each.accuracy - each.confidence) for each in bins)
    return gaps / total if total else 0.0


def fit_temperature(logs: np.ndarray, gold: np.ndarray) -> float:
    """The temperature under which gold classes [N] are most likely, given log-probabilities [N, C].

    Log-probabilities are logits up to a constant for each row, which scaling does not see. The
    negative log-likelihood is convex in 1 / temperature, so the one minimum between ``LOWEST`` and
    ``HIGHEST`` is found. 1.0 without rows.
    """
    from scipy.optimize import minimize_scalar  # imported late: it costs half a second

    if len(logs) == 0:
        return 1.0
    logs = np.maximum(np.asarray(logs, dtype=float), -1e4)
    rows = np.arange(len(gold))

    def loss(log_temperature: float) -> float:
        return -float(tempered(logs, math.exp(log_temperature))[rows, gold].mean())

    bounds = (math.log(LOWEST), math.log(HIGHEST))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(float(found.x))


def tempered(logs: np.ndarray, temperature: float) -> np.ndarray:
    """Log-probabilities [N, C] with their logits divided by a temperature."""
    scaled = logs / temperature
    scaled = scaled - scaled.max(-1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))


def log_probabilities(chances: np.ndarray) -> np.ndarray:
    """Logarithms of probabilities; 0 becomes very small."""
    return np.log(np.maximum(chances, np.finfo(float).tiny))


def two_classes(chances: np.ndarray) -> np.ndarray:
    """Log-probabilities [N, 2] of no and yes, from probabilities of yes [N]."""
    chances = np.clip(chances, _TINY, 1 - _TINY)
    return np.stack([np.log1p(-chances), np.log(chances)], axis=-1)
