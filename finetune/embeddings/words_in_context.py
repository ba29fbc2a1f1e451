"""Words to compare in their contexts: the columns that name them, and a threshold on their cosine.

Pilehvar & Camacho-Collados 2019, "WiC: the Word-in-Context dataset for evaluating context-sensitive
meaning representations": do two uses of a word have the same sense? The threshold is chosen on
training pairs; cosines of other models, layers or normalizations do not compare with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from finetune.data.dataset import DataError
from finetune.data.files import Row
from finetune.data.tables import Table, whole_number
from finetune.types import TextExample, UserError, abbreviated, quantity

TARGET_ROLES = ("index", "index_pair")
"""Columns that name the compared word in each text: its number among the words between white space,
from 0."""
Characters = tuple[int, int]
"""The characters ``start`` to ``end - 1`` of a text."""


def word_locator(
    table: Table, columns: Mapping[str, str]
) -> Callable[[Row, TextExample], TextExample]:
    """Make the function that adds the compared words of a row to its pair, if columns name them.

    Raises:
        DataError: One of the two columns is missing.
    """
    first, second = (table.find(role, columns, [role]) for role in TARGET_ROLES)
    if first is not None and second is not None:
        return lambda row, pair: replace(
            pair,
            targets=(_characters(pair.text, row, first), _characters(pair.pair or "", row, second)),
        )
    if columns.keys() & {*TARGET_ROLES}:
        missing = TARGET_ROLES[first is not None]
        raise DataError(
            f"{table.name}: words in context need the columns index and index_pair, and "
            f"{missing!r} is missing: name it, --columns {missing}=NAME."
        )
    return lambda _, pair: pair


def _characters(text: str, row: Row, column: str) -> Characters:
    number = whole_number(row.values.get(column))
    if number is None or number < 0:
        raise DataError(
            f"{row.where}: {column} must be a whole number from 0, not "
            f"{row.values.get(column)!r:.40}."
        )
    words = list(re.finditer(r"\S+", text))
    if number >= len(words):
        raise DataError(
            f"{row.where}: there is no word {number} among {quantity(len(words), 'word')} between "
            "white space (the first is 0)."
        )
    return words[number].span()


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
    labeled = [number for number, pair in enumerate(pairs) if pair.label is not None]
    cosines, labels = cosines[labeled], [str(label_name(pairs[number])) for number in labeled]
    names = sorted({*labels})
    if len(names) != 2:
        listed = f": {abbreviated(names)}" if names else ""
        raise UserError(
            "a threshold separates two labels, and the training pairs have "
            f"{quantity(len(names), 'label')}{listed}."
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
