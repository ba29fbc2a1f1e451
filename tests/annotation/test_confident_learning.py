"""Confident learning on labels that were turned round on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from finetune.annotation.confident_learning import confident_joint, probable_label_errors


def test_by_hand():
    """Thresholds are (0.9 + 0.8 + 0.1) / 3 = 0.6 for class 0 and (0.7 + 0.5) / 2 = 0.6 for 1."""
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.5, 0.5]])
    given = np.array([0, 0, 0, 1, 1])
    assert probable_label_errors(probabilities, given) == [(2, 1)]
    probabilities[4] = 0.62, 0.38  # now 0.54 for class 1, and the last is confidently of class 0
    assert probable_label_errors(probabilities, given) == [(2, 1), (4, 0)]


def test_noise_is_found_in_order_of_doubt():
    rng = np.random.default_rng(1)
    true = rng.integers(0, 4, 3000)
    logits = rng.normal(0, 1, (3000, 4)) + 4 * np.eye(4)[true]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wrong = rng.random(3000) < 0.08
    given = np.where(wrong, (true + rng.integers(1, 4, 3000)) % 4, true)
    found = probable_label_errors(probabilities, given)
    suspects = np.array([index for index, _ in found])
    assert wrong[suspects].mean() > 0.85 and wrong[suspects].sum() > 0.8 * wrong.sum()
    assert wrong[suspects[:50]].all()
    assert np.mean([label == true[index] for index, label in found if wrong[index]]) > 0.95


def test_nothing_and_what_never_occurs():
    assert probable_label_errors(np.zeros((0, 2)), np.zeros(0, dtype=int)) == []
    sure = np.array([[0.05, 0.05, 0.9], [0.9, 0.05, 0.05]])
    assert probable_label_errors(sure, np.array([0, 0])) == [], "class 2 has no example"


def test_a_class_that_models_do_not_know():
    """Of class 2 the model says 0.01 everywhere, its one example as well: all reach that mean, and
    the two of class 0 that fall short of theirs, 0.78, would be called class 2."""
    first = np.array([0.9, 0.9, 0.8, 0.7, 0.6, 0.3])
    probabilities = np.stack([first, 0.99 - first, np.full(6, 0.01)], 1)
    given = np.array([0, 0, 0, 0, 0, 2])
    assert probable_label_errors(probabilities, given) == []
    assert np.trace(confident_joint(probabilities, given)) == pytest.approx(1)


def test_a_tie_is_no_contradiction():
    probabilities = np.full((4, 2), 0.5)
    given = np.array([0, 0, 1, 1])
    assert probable_label_errors(probabilities, given) == []
    assert np.allclose(confident_joint(probabilities, given), np.eye(2) / 2)


def test_joint_by_hand():
    """As above: of class 0 two are confidently 0 and one 1; of class 1 one is 1, one is neither."""
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.5, 0.5]])
    joint = confident_joint(probabilities, np.array([0, 0, 0, 1, 1]))
    assert np.allclose(joint, np.array([[2, 1], [0, 2]]) / 5)


def test_the_joint_estimates_the_noise():
    rng = np.random.default_rng(2)
    true = rng.integers(0, 3, 6000)
    logits = rng.normal(0, 1, (6000, 3)) + 5 * np.eye(3)[true]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    given = np.where((true == 0) & (rng.random(6000) < 0.3), 2, true)
    joint = confident_joint(probabilities, given)
    real = np.array([[np.mean((given == i) & (true == j)) for j in range(3)] for i in range(3)])
    assert np.abs(joint - real).max() < 0.03  # shares from 0.1 to 0.4
    assert joint.sum() == pytest.approx(1)
    assert np.allclose(joint.sum(1), np.bincount(given) / 6000)
    assert confident_joint(np.zeros((0, 2)), np.zeros(0, dtype=int)).shape == (2, 2)
