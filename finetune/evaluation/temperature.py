"""Temperature scaling of a task's probabilities (Guo et al. 2017), fitted on validation.

Dividing all logits by one number changes no argmax; it only makes probabilities more or less
extreme. Probabilities are enough to do it: their logarithms are the logits up to a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finetune.evaluation.calibration import (
    HIGHEST,
    LOWEST,
    calibration_error,
    fit_temperature,
    log_probabilities,
    tempered,
    two_classes,
)
from finetune.types import IGNORED, LabelSet, TokenPrediction


def fitted(logs: np.ndarray, gold: np.ndarray) -> tuple[float, str]:
    """The temperature for log-probabilities [N, C] of which classes [N] are right, and a line
    about it to read."""
    temperature = fit_temperature(logs, gold)
    note = f"temperature {temperature:.3f} fitted on {len(gold):,} answers of validation"
    if temperature < LOWEST * 1.01 or temperature > HIGHEST * 0.99:
        note += ", the end of the range: validation has too few mistakes to say how sure to be"
    return temperature, note


def fitted_on_chances(
    chances: np.ndarray, gold: np.ndarray, independent: bool
) -> tuple[float, str]:
    """The same for probabilities [N, C]; ``independent`` ones have gold [N, C], yes or no each."""
    if independent:
        return fitted(two_classes(chances).reshape(-1, 2), gold.astype(int).reshape(-1))
    return fitted(log_probabilities(chances), gold)


def scaled(chances: np.ndarray, temperature: float, independent: bool) -> np.ndarray:
    """Probabilities [..., C] with their logits divided by a temperature.

    They sum to 1 over the classes, or are those of independent decisions.
    """
    if independent:
        return np.exp(tempered(two_classes(chances), temperature))[..., 1]
    return np.exp(tempered(log_probabilities(chances), temperature))


def errors(
    right: Sequence[bool], after: Sequence[float], before: Sequence[float] | None
) -> dict[str, float]:
    """``ece``, the expected calibration error of the probabilities as they are given, and
    ``ece_uncalibrated``, that without the temperature (where those are known)."""
    found = {"ece": calibration_error(after, right)}
    if before is not None:
        found["ece_uncalibrated"] = calibration_error(before, right)
    return found


def chances_of(ids: Sequence[int], logs: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """The probabilities [W] of tags [W] from log-probabilities [W, C] and a temperature."""
    if temperature != 1.0:
        logs = tempered(logs, temperature)
    return np.exp(logs[np.arange(len(ids)), ids])


def fitted_on_words(
    targets: Sequence[Sequence[int] | None], logs: Sequence[np.ndarray]
) -> tuple[float, str]:
    """``fitted`` on the words of sentences; unknown tags, and sentences without gold, are left
    out."""
    pairs = [pair for pair in zip(targets, logs, strict=True) if pair[0] is not None]
    if not pairs:
        return 1.0, "temperature 1: no words of validation have tags"
    gold = np.array([tag for tags, _ in pairs for tag in tags or ()], dtype=int)
    known = gold != IGNORED
    return fitted(np.concatenate([rows for _, rows in pairs])[known], gold[known])


def word_errors(
    gold: Sequence[Sequence[str]], predicted: Sequence[TokenPrediction], labels: LabelSet
) -> dict[str, float]:
    """``errors`` of the tags of words; gold in the scheme of the predictions."""
    right: list[bool] = []
    before: list[float] = []
    for tags, prediction in zip(gold, predicted, strict=True):
        right += map(str.__eq__, tags, prediction.tags)
        if prediction.logs is not None:
            ids = [labels.id(tag) for tag in prediction.tags]
            before += chances_of(ids, prediction.logs).tolist()
    after = [score for prediction in predicted for score in prediction.scores]
    return errors(right, after, before if len(before) == len(after) else None)
