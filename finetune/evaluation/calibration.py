"""Calibration: reliability diagrams, and temperature scaling of probabilities.

Expected calibration error: Naeini, Cooper & Hauskrecht 2015 (``metrics.calibration_error``); its
use and temperature scaling: Guo, Pleiss, Sun & Weinberger 2017, "On Calibration of Modern Neural
Networks". Logarithms of probabilities are the logits up to a constant, which is enough for it.

Shapes: N examples or words, W words, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from finetune.evaluation.metrics import NUM_BINS, bin_counts
from finetune.evaluation.tables import TableRows
from finetune.evaluation.temperature import log_probabilities, log_softmax
from finetune.types import IGNORED, quantity

LOWEST, HIGHEST = 0.05, 20.0
"""Bounds of the temperature: without errors on validation, no temperature is low enough."""


def reliability(confidences: npt.ArrayLike, correct: npt.ArrayLike) -> TableRows:
    """Compute the reliability diagram of predictions: bins of equal width from 0 to 1.

    A bin has the ``number`` of predictions with a confidence above ``low`` and at most ``high`` (0
    is in the first bin), and the means of their ``confidence`` and ``accuracy``, 0.0 without any.
    """
    ((number, confidence, accuracy),) = bin_counts(confidences, correct)
    divisor = np.maximum(number, 1)
    edges = np.arange(NUM_BINS + 1) / NUM_BINS
    columns = (edges[:-1], edges[1:], number.astype(int), confidence / divisor, accuracy / divisor)
    names = ("low", "high", "number", "confidence", "accuracy")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def fit_temperature(logs: np.ndarray, gold: np.ndarray) -> tuple[float, str]:
    """Fit the temperature under which the gold classes [N] are most likely, 1 without any.

    Returns:
        The temperature, and a note for the user that describes it.
    """
    from scipy.optimize import minimize_scalar  # imported late: it costs half a second

    logs = np.maximum(np.asarray(logs, dtype=float), -1e4)
    rows, temperature = np.arange(len(gold)), 1.0

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(logs / math.exp(log_temperature))[rows, gold].mean())

    if len(logs):
        bounds = (math.log(LOWEST), math.log(HIGHEST))
        minimum = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
        temperature = math.exp(float(minimum.x))
    note = (
        f"temperature {temperature:.3f} fitted on {quantity(len(gold), 'prediction')} of validation"
    )
    if temperature < LOWEST * 1.01 or temperature > HIGHEST * 0.99:
        note += ", the end of the range: validation has too few errors to fit it"
    return temperature, note


def fit_on_probabilities(
    probabilities: np.ndarray, gold: np.ndarray, independent: bool
) -> tuple[float, str]:
    """Fit and describe a temperature for probabilities [N, C]; multi-label gold is [N, C]."""
    logs = log_probabilities(probabilities, independent)
    return fit_temperature(logs.reshape(-1, logs.shape[-1]), gold.astype(int).reshape(-1))


def fit_on_words(
    targets: Sequence[Sequence[int] | None], logs: Sequence[np.ndarray]
) -> tuple[float, str]:
    """Fit and describe a temperature for log-probabilities [W, C] of each sentence."""
    pairs = [(tags, rows) for tags, rows in zip(targets, logs, strict=True) if tags is not None]
    if not pairs:
        return 1.0, "temperature 1: no words of validation have tags"
    gold = np.array([tag for tags, _ in pairs for tag in tags], dtype=int)
    has_tag = gold != IGNORED
    return fit_temperature(np.concatenate([rows for _, rows in pairs])[has_tag], gold[has_tag])
