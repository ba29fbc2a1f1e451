"""Labels in the data that are probably wrong, by what a model says that did not learn from them.

Confident learning: Northcutt, Jiang & Chuang 2021, "Confident Learning: Estimating Uncertainty in
Dataset Labels".
"""

from __future__ import annotations

import numpy as np


def probable_label_errors(chances: np.ndarray, given: np.ndarray) -> list[tuple[int, int]]:
    """Examples whose label is probably wrong, the most probable first, with the better label.

    ``chances`` [N, C] are probabilities of a model that was not trained on these examples,
    ``given`` [N] their labels. A model is confident of a class where the probability reaches the
    mean that examples labelled so have; an example is suspect if the likeliest class that it is
    confident of is likelier than its label (``confident_classes``). Ordered by the margin of that
    class over the label. Raises ValueError if the lengths differ.
    """
    better = confident_classes(chances, given)
    suspects = np.flatnonzero((better >= 0) & (better != given))
    margins = chances[suspects, better[suspects]] - chances[suspects, given[suspects]]
    order = suspects[np.argsort(-margins, kind="stable")]
    return [(int(index), int(better[index])) for index in order]


def confident_classes(chances: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The likeliest class [N] of those that the model is confident of, -1 where it is of none.

    As in ``probable_label_errors``, for probabilities [N, C] and labels [N]. Unlike in the paper a
    class that is no likelier than the label is not found: where unseeing models do not know a rare
    class its threshold is next to 0, and it would be found in all the examples of others that fall
    short of theirs.
    """
    if len(chances) != len(given):
        raise ValueError(f"probabilities of {len(chances)} examples with {len(given)} labels")
    if len(given) == 0:
        return np.zeros(0, dtype=int)
    rows = np.arange(len(given))
    confident = chances >= thresholds(chances, given) - 1e-12  # [N, C]
    known = np.where(confident, chances, -1.0)
    likeliest = known.argmax(1)
    likelier = known[rows, likeliest] > chances[rows, given]
    return np.where(likelier, likeliest, np.where(confident[rows, given], given, -1))


def thresholds(chances: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The mean probability [C] that examples of each class have for it.

    A class without examples is never confidently found: infinity.
    """
    rows = np.arange(len(given))
    number = np.bincount(given, minlength=chances.shape[1])  # [C]
    sums = np.bincount(given, weights=chances[rows, given], minlength=chances.shape[1])
    return np.where(number > 0, sums / np.maximum(number, 1), np.inf)


def confident_joint(chances: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The estimated joint distribution [C, C] of given (row) and true (column) labels.

    Counts of the classes that the model is confident of, each row scaled to the number of examples
    that are labelled so, and all to a sum of 1 (equation 3 of the paper). A row without confident
    examples is taken as right.
    """
    better = confident_classes(chances, given)
    num_classes = chances.shape[1]
    counts = np.zeros((num_classes, num_classes))
    known = better >= 0
    np.add.at(counts, (given[known], better[known]), 1)
    number = np.bincount(given, minlength=num_classes)
    empty = counts.sum(1) == 0
    counts[empty, empty] = 1.0
    joint = counts / counts.sum(1, keepdims=True) * number[:, None]
    return joint / max(1, len(given))
