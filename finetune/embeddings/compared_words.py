"""Words to compare in their contexts: the columns that name one in each text of a pair."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.files import Row
from finetune.data.tables import Table, whole_number
from finetune.types import TextExample, quantity

WORD_ROLES = ("index", "index_pair")
CHARACTER_ROLES = ("start", "end", "start_pair", "end_pair")
TARGET_ROLES = (*CHARACTER_ROLES, *WORD_ROLES)
"""Columns that name the compared word in each text: by its characters, or by its number among the
words between white space, from 0."""
Characters = tuple[int, int]
"""The characters ``start`` to ``end - 1`` of a text."""


def word_locator(
    table: Table, columns: Mapping[str, str]
) -> Callable[[Row, TextExample], TextExample]:
    """Make the function that adds the compared words of a row to its pair, if columns name them.

    Raises:
        DataError: One of several columns is missing.
    """
    names = _target_columns(table, columns)
    size = len(names) // 2
    if not names:
        return lambda _, pair: pair

    def locate(row: Row, pair: TextExample) -> TextExample:
        numbers = [_whole_number(row, name) for name in names]
        find: Any = _characters_of_word if size == 1 else _characters
        first = find(pair.text, row.where, *numbers[:size])
        second = find(pair.pair or "", row.where, *numbers[size:])
        return replace(pair, targets=(first, second))

    return locate


def _target_columns(table: Table, columns: Mapping[str, str]) -> list[str]:
    for roles in (CHARACTER_ROLES, WORD_ROLES):
        names = {role: table.find(role, columns, [role]) for role in roles}
        missing = [role for role, name in names.items() if name is None]
        if missing and any(columns.get(role) for role in roles):
            raise DataError(
                f"{table.name}: words in context need the columns {', '.join(roles)}, and "
                f"{missing[0]!r} is missing: name it, --columns {missing[0]}=NAME."
            )
        if not missing:
            return [name for name in names.values() if name is not None]
    return []


def _whole_number(row: Row, column: str) -> int:
    number = whole_number(row.values.get(column))
    if number is None or number < 0:
        raise DataError(
            f"{row.where}: {column} must be a whole number from 0, not "
            f"{row.values.get(column)!r:.40}."
        )
    return number


def _characters(text: str, where: str, start: int, end: int) -> Characters:
    if not start < end <= len(text) or not text[start:end].strip():
        raise DataError(
            f"{where}: characters {start} to {end} hold no word of a text of {len(text)} "
            "characters: correct the offsets (from 0, the end excluded)."
        )
    return start, end


def _characters_of_word(text: str, where: str, index: int) -> Characters:
    words = list(re.finditer(r"\S+", text))
    if index >= len(words):
        raise DataError(
            f"{where}: there is no word {index} among {quantity(len(words), 'word')} between "
            "white space (the first is 0)."
        )
    return words[index].span()
