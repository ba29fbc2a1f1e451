"""Confident learning: find labels that are probably wrong by the probabilities of a model.

Northcutt, Jiang & Chuang 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels". The
model must not have been trained on the labels [N], of C classes, and must be good: a poor or
overconfident model contradicts correct labels too.
"""

from __future__ import annotations

import numpy as np


def probable_label_errors(probabilities: np.ndarray, labels: np.ndarray) -> list[tuple[int, int]]:
    """Find the examples whose label is probably wrong, each with the class that the model predicts.

    Takes probabilities [N, C] and labels [N]. A label is an issue if the most likely of the
    ``confident_classes`` is more likely than it. The largest margin of the class comes first.
    """
    better = confident_classes(probabilities, labels)
    issues = np.flatnonzero((better >= 0) & (better != labels))
    margins = probabilities[issues, better[issues]] - probabilities[issues, labels[issues]]
    order = issues[np.argsort(-margins, kind="stable")]
    return [(int(index), int(better[index])) for index in order]


def confident_classes(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Find the most likely class [N] that the model is confident about, or -1.

    A model is confident of a class if its probability reaches the mean probability of the class
    over the examples with this label. Unlike in the paper, the class must also be more likely than
    the label: a rare class that a model cannot predict has a threshold near 0.
    """
    if len(labels) == 0:
        return np.zeros(0, dtype=int)
    rows = np.arange(len(labels))
    number = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, probabilities[rows, labels], minlength=probabilities.shape[1])
    # a model is never confident of a class without examples
    thresholds = np.where(number > 0, sums / np.maximum(number, 1), np.inf)
    confident = probabilities >= thresholds - 1e-12  # [N, C]
    confidences = np.where(confident, probabilities, -1.0)
    best = confidences.argmax(1)
    is_better = confidences[rows, best] > probabilities[rows, labels]
    return np.where(is_better, best, np.where(confident[rows, labels], labels, -1))


def confident_joint(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Estimate the joint distribution [C, C] of labels in the data (row) and true labels (column).

    Equation 3 of the paper; a row without confident examples counts as correct.
    """
    better = confident_classes(probabilities, labels)
    num_classes = probabilities.shape[1]
    counts = np.zeros((num_classes, num_classes))
    is_confident = better >= 0
    np.add.at(counts, (labels[is_confident], better[is_confident]), 1)
    number = np.bincount(labels, minlength=num_classes)
    empty = counts.sum(1) == 0
    counts[empty, empty] = 1.0
    joint: np.ndarray = counts / counts.sum(1, keepdims=True) * number[:, None]
    return joint / max(1, len(labels))
