"""Calibration error by hand and by another road; temperatures that are known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss

from finetune.evaluation import metrics
from finetune.evaluation.calibration import (
    HIGHEST,
    LOWEST,
    fit_temperature,
    log_probabilities,
    reliability,
)


def calibration_error(confidences, correct):
    return metrics.calibration_error(metrics.bin_counts(confidences, correct)).item()


def test_error_by_hand():
    """Two of four right at 0.9 (gap 0.4), one of one right at 0.55 (gap 0.45)."""
    confidences, right = [0.9, 0.9, 0.9, 0.9, 0.55], [True, True, False, False, True]
    assert calibration_error(confidences, right) == pytest.approx(0.8 * 0.4 + 0.2 * 0.45)
    bins = reliability(confidences, right)
    filled = {index: bin["number"] for index, bin in enumerate(bins) if bin["number"]}
    assert filled == {8: 1, 13: 4}
    assert [bins[13][name] for name in ("confidence", "accuracy")] == pytest.approx([0.9, 0.5])
    (upper,) = (bin for bin in reliability([0.2], [True]) if bin["number"])
    assert upper["high"] == pytest.approx(0.2), "a bin holds its upper end"


def test_edges_and_nothing():
    assert calibration_error([], []) == 0.0
    assert calibration_error([0.0, 1.0], [False, True]) == 0.0
    assert [bin["number"] for bin in reliability([0.0, 1.0], [False, True])] == [1, *[0] * 13, 1]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_bins_hold_everything(answers: list[tuple[float, bool]]):
    confidences, right = map(list, zip(*answers, strict=True))
    bins = reliability(confidences, right)
    assert sum(bin["number"] for bin in bins) == len(answers)
    assert sum(bin["number"] * bin["confidence"] for bin in bins) == pytest.approx(sum(confidences))
    assert sum(bin["number"] * bin["accuracy"] for bin in bins) == pytest.approx(sum(right))
    distance = abs(sum(confidences) - sum(right)) / len(answers)
    assert distance - 1e-9 <= calibration_error(confidences, right) <= 1


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_the_temperature_of_sampled_labels_is_found(true: float):
    """Labels drawn from softmax(logits / true)."""
    rng = np.random.default_rng(1)
    logs = log_softmax(rng.normal(0, 2, (20_000, 4)), axis=-1)
    probabilities = softmax(logs / true, axis=-1)
    gold = (probabilities.cumsum(1) > rng.random((len(logs), 1))).argmax(1)
    found, _ = fit_temperature(logs, gold)
    assert found == pytest.approx(true, rel=0.05)
    losses = [
        log_loss(gold, softmax(logs / t, axis=-1)) for t in (found, found * 1.02, found / 1.02)
    ]
    assert losses[0] == min(losses)
    before, after = (
        calibration_error(p.max(1), p.argmax(1) == gold)
        for p in (np.exp(logs), softmax(logs / found, axis=-1))
    )
    assert after < 0.015 and after <= before + 0.002


def test_tempered_is_softmax_of_scaled_logits():
    logits = np.random.default_rng(2).normal(0, 3, (50, 5))
    again = log_softmax(log_softmax(logits, axis=-1) / 1.7, axis=-1)
    assert again == pytest.approx(log_softmax(logits / 1.7, axis=-1))
    assert (again.argmax(1) == logits.argmax(1)).all()


def test_bounds():
    logs = np.log(np.array([[0.9, 0.1], [0.2, 0.8]]))
    assert fit_temperature(logs, np.array([0, 1]))[0] == pytest.approx(LOWEST, rel=1e-3)
    assert fit_temperature(logs, np.array([1, 0]))[0] == pytest.approx(HIGHEST, rel=1e-3)
    assert fit_temperature(np.zeros((0, 2)), np.zeros(0, dtype=int))[0] == 1.0


def test_certain_probabilities_stay_finite():
    assert np.isfinite(log_probabilities(np.array([0.0, 1.0]), independent=False)).all()
    logs = log_probabilities(np.array([0.0, 0.3, 1.0]), independent=True)
    assert np.isfinite(logs).all()
    assert np.exp(logs[1]) == pytest.approx([0.7, 0.3])
