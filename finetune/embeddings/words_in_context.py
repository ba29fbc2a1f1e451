"""`finetune similarity --threshold`: do two uses of a word have the same sense?

Pilehvar & Camacho-Collados 2019, "WiC: the Word-in-Context dataset for evaluating context-sensitive
meaning representations". The threshold on their cosine is chosen on training pairs; cosines of
other models, layers or normalizations do not compare with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from finetune.types import TextExample, UserError


class Threshold(NamedTuple):
    """Pairs with at least this cosine have the label ``above``, the others ``below``."""

    value: float
    above: str
    below: str

    def labels(self, cosines: np.ndarray) -> list[str]:
        """Label pairs by their cosines."""
        labels: list[str] = np.where(cosines >= self.value, self.above, self.below).tolist()
        return labels


def best_threshold(cosines: np.ndarray, pairs: Sequence[TextExample]) -> Threshold:
    """Choose the threshold with the highest accuracy on the pairs that have a label, of two.

    ``above`` is the label with the higher mean cosine. Thresholds lie midway between two cosines;
    if several are equally good, the lowest one is chosen.

    Raises:
        UserError: There are not exactly two labels.
    """
    known = [number for number, pair in enumerate(pairs) if pair.label is not None]
    cosines, labels = cosines[known], [str(label_name(pairs[number])) for number in known]
    names = sorted({*labels})
    if len(names) != 2:
        raise UserError(
            f"a threshold separates two labels, and the training pairs have {len(names)}: "
            f"{', '.join(names[:5])}."
        )
    is_second = np.array([label == names[1] for label in labels])
    if cosines[is_second].mean() < cosines[~is_second].mean():
        names, is_second = names[::-1], ~is_second
    values = np.unique(cosines)
    cuts = np.concatenate(
        [values[:1], (values[:-1] + values[1:]) / 2, np.nextafter(values[-1:], np.inf)]
    )
    below, above = np.sort(cosines[~is_second]), np.sort(cosines[is_second])
    num_right = np.searchsorted(below, cuts) + len(above) - np.searchsorted(above, cuts)
    return Threshold(float(cuts[np.argmax(num_right)]), names[1], names[0])


def label_name(pair: TextExample) -> str | None:
    """The label of a pair as a text; None without one."""
    label: Any = pair.label
    return f"{label:g}" if isinstance(label, float) else label
