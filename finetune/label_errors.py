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
    confident of is another than its label (off the diagonal of the confident joint). Ordered by the
    margin of that class over the label. Raises ValueError if the lengths differ.
    """
    if len(chances) != len(given):
        raise ValueError(f"probabilities of {len(chances)} examples with {len(given)} labels")
    if len(given) == 0:
        return []
    rows = np.arange(len(given))
    number = np.bincount(given, minlength=chances.shape[1])  # [C]
    sums = np.bincount(given, weights=chances[rows, given], minlength=chances.shape[1])
    # a class without examples is never confidently found
    thresholds = np.where(number > 0, sums / np.maximum(number, 1), np.inf)
    confident = np.where(chances >= thresholds - 1e-12, chances, -1.0)  # [N, C]
    better = confident.argmax(1)
    suspects = np.flatnonzero((confident.max(1) >= 0) & (better != given))
    margins = chances[suspects, better[suspects]] - chances[suspects, given[suspects]]
    order = suspects[np.argsort(-margins, kind="stable")]
    return [(int(index), int(better[index])) for index in order]
