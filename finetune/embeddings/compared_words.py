"""Words to compare in their contexts: the columns that name one in each text of a pair."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from finetune.data.dataset import DataError
from finetune.data.files import Row
from finetune.data.tables import Table, whole_number
from finetune.types import TextExample, quantity

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
