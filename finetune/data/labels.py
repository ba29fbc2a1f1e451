"""Labels as files write them -> label names, tuples of names, numbers, or None for no label."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from finetune.data.dataset import DataError
from finetune.types import TextExample, shortened

MISSING = ("", "-", "nan")
"""Texts, in lower case, that mean *no label*: empty, ``-`` (SNLI, no majority), pandas' ``NaN``."""
MARK = -1
"""A number that means *no label* (GLUE test), unless it is one of the classes."""
SHARE_OF_MARKS = 0.05
"""From this share of the labels on -1 is a class, as in -1, 0, 1 for negative, neutral, positive;
SNLI without a majority is 0.1 % of train and 1.6 % of test."""

Raw = str | int | float | tuple[str, ...] | None
"""A label before the whole column is known: JSON integers are not yet names or numbers."""


def raw_label(value: Any, names: Sequence[str] | None, where: str) -> Raw:
    """One value of a label column; ``names`` are the class names its integers stand for."""
    if isinstance(value, list | tuple):
        labels = tuple(_name(item, names, where) for item in value)
        repeated = next((name for name in labels if labels.count(name) > 1), None)
        if repeated is not None:
            raise DataError(
                f"{where}: the list of labels holds {repeated!r} twice: list the names of the "
                'labels that apply, such as ["joy", "surprise"], not a 0/1 vector.'
            )
        return labels
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if names is None else None if value == MARK else _name(value, names, where)
    if isinstance(value, str):
        return None if value.strip().lower() in MISSING else value.strip()
    raise DataError(
        f"{where}: a label must be a text, a number or a list of texts, not {value!r}: name "
        "another column, for instance --columns label=NAME."
    )


def _name(value: Any, names: Sequence[str] | None, where: str) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        if names is None:
            return str(value)
        if 0 <= value < len(names):
            return names[value]
        raise DataError(
            f"{where}: label {value} is outside the {len(names)} classes of the data set "
            f"({shortened(names)})."
        )
    raise DataError(f"{where}: {value!r} in a list of labels is no name: write texts.")


def settle(
    columns: Mapping[str, Sequence[tuple[Raw, str]]], typed: bool
) -> tuple[dict[str, list[str | tuple[str, ...] | float | None]], str | None]:
    """Final labels by split, and a note: one kind of label for the whole data set.

    ``columns`` has the raw labels of each split with their ``file:line``. All are numbers where
    every label is one and at least one has a decimal point; otherwise integers become names.
    """
    columns = {split: _without_only_marks(rows) for split, rows in columns.items()}
    flat = [pair for rows in columns.values() for pair in rows if pair[0] is not None]
    if any(isinstance(label, tuple) for label, _ in flat):
        return {split: [_tuple(*row) for row in rows] for split, rows in columns.items()}, None
    if _numeric([label for label, _ in flat], typed):
        _check_numbers(flat)
        note = "labels have decimal points: read as numbers"
        return {split: _numbers(rows) for split, rows in columns.items()}, note
    is_class = _mark_is_class([label for label, _ in flat])
    names = {
        split: [
            None if label is None or (_is_mark(label) and not is_class) else str(label)
            for label, _ in rows
        ]
        for split, rows in columns.items()
    }
    note = "-1 is read as a class, not as no label: leave the label empty where there is none"
    return names, note if is_class else None


def settle_gold(examples: Sequence[TextExample]) -> list[TextExample]:
    """Examples of one file, read one by one, with -1 as no label where that is what it means."""
    labels = [example.label for example in examples]
    only = all(label is None or _is_mark(label) for label in labels)
    if not only and (
        _mark_is_class(labels) or _numeric([x for x in labels if x is not None], False)
    ):
        return list(examples)
    return [
        dataclasses.replace(example, label=None) if _is_mark(example.label) else example
        for example in examples
    ]


def _without_only_marks(rows: Sequence[tuple[Raw, str]]) -> Sequence[tuple[Raw, str]]:
    """A split whose every label is -1 has none (the test sets of GLUE)."""
    only = all(label is None or _is_mark(label) for label, _ in rows)
    return [(None, where) for _, where in rows] if only else rows


def _mark_is_class(labels: Sequence[Raw]) -> bool:
    """Whether -1 is one of the classes of a column: all its labels are whole numbers, and it is
    not rare, or not the only one below 0."""
    given = [label for label in labels if label is not None]
    if not all(_is_whole(label) for label in given):
        return False
    num_marks = sum(map(_is_mark, given))
    others = any(int(label) < 0 for label in given if not _is_mark(label))  # type: ignore[arg-type]
    return 0 < num_marks and (others or num_marks >= SHARE_OF_MARKS * len(given))


def _is_mark(label: Raw) -> bool:
    return isinstance(label, int | str) and str(label) == str(MARK)


def _is_whole(label: Raw) -> bool:
    return isinstance(label, int) or (isinstance(label, str) and label.lstrip("-").isdecimal())


def _tuple(label: Raw, where: str) -> tuple[str, ...] | None:
    if isinstance(label, float):
        raise DataError(f"{where}: label {label} is a number where other rows have lists of names.")
    if label is None or _is_mark(label):
        return None
    return label if isinstance(label, tuple) else (str(label),)


def _numeric(labels: Sequence[Raw], typed: bool) -> bool:
    if typed:
        return any(isinstance(label, float) for label in labels)
    return any("." in str(label) for label in labels) and all(_is_number(x) for x in labels)


def _is_number(label: Raw) -> bool:
    try:
        return math.isfinite(float(label))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _check_numbers(rows: Iterable[tuple[Raw, str]]) -> None:
    for label, where in rows:
        if isinstance(label, str) and not _is_number(label):
            raise DataError(
                f"{where}: label {label!r} is a name where other rows have numbers with a decimal "
                "point: write all labels as names (texts) or all as numbers."
            )


def _numbers(rows: Sequence[tuple[Raw, str]]) -> list[str | tuple[str, ...] | float | None]:
    """Numbers; a split in which all are -1.0 has no labels (the test sets of GLUE)."""
    numbers = [None if label is None else float(label) for label, _ in rows]  # type: ignore[arg-type]
    return [None] * len(numbers) if set(numbers) <= {-1.0, None} else list(numbers)
