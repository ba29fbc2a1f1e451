"""Labels that a model contradicts with more confidence than is usual for its answer: where it is
good and did not learn from them, they are probably wrong.

Confident learning: Northcutt, Jiang & Chuang 2021, "Confident Learning: Estimating Uncertainty in
Dataset Labels".
"""

from __future__ import annotations

import numpy as np

from finetune.types import UserError

CREDIBLE_ACCURACY, CREDIBLE_ERROR = 0.9, 0.05
"""What a model says against gold is worth a look where its accuracy is at least the one, or its
expected calibration error at most the other. Short of both its own mistakes are among its surest
answers: of 56 labels contradicted at accuracy 0.68 and error 0.24 all that were read were right."""


def why_not_credible(accuracy: float, error: float) -> str:
    """Why what a model of this accuracy and expected calibration error says against gold is not
    worth a look; empty where it is."""
    if accuracy >= CREDIBLE_ACCURACY or error <= CREDIBLE_ERROR:
        return ""
    return (
        f"Doubts in gold are not listed: that takes an accuracy of {CREDIBLE_ACCURACY:g} or an "
        f"expected calibration error of at most {CREDIBLE_ERROR:g}, and these answers have "
        f"{accuracy:.4f} and {error:.4f}."
    )


def probable_label_errors(chances: np.ndarray, given: np.ndarray) -> list[tuple[int, int]]:
    """Examples whose label a model contradicts, the surest first, with the label it has for them.

    They are probably wrong as far as the model can be believed: a poor or overconfident one
    contradicts right labels too.

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
        raise UserError(f"probabilities of {len(chances)} examples with {len(given)} labels")
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
