"""Labels of texts: names, tuples of names, numbers, or None where a row has no label."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.data.dataset import DataError
from finetune.types import TextExample, abbreviated

MISSING = ("", "-", "nan")
"""Texts, in lower case, that mean *no label*: empty, ``-`` (SNLI, no majority), pandas' ``NaN``."""
MISSING_NUMBER = -1
"""A number that means *no label* (GLUE test), unless it is one of the classes."""
MIN_CLASS_FRACTION = 0.05
"""Fraction of the labels from which -1 is a class, as in -1, 0, 1 for negative, neutral, positive;
SNLI without a majority is 0.1 % of train and 1.6 % of test."""

RawLabel = str | int | float | tuple[str, ...] | None
"""A label before the whole column is known: JSON integers are not yet names or numbers."""
Label = str | tuple[str, ...] | float | None


def raw_label(value: Any, names: Sequence[str] | None, where: str) -> RawLabel:
    """Return one value of a label column; ``names`` are the class names of its integers."""
    if isinstance(value, list | tuple):
        labels = tuple(_label_name(item, names, where) for item in value)
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
    if isinstance(value, int) and names is not None:
        return None if value == MISSING_NUMBER else _label_name(value, names, where)
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return None if value.strip().lower() in MISSING else value.strip()
    legal = "a text, a number or a list of texts"
    raise DataError(f"{where}: a label must be {legal}, not {value!r}: --columns label=NAME?")


def _label_name(value: Any, names: Sequence[str] | None, where: str) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        if names is None:
            return str(value)
        if 0 <= value < len(names):
            return names[value]
        classes = f"the {len(names)} classes of the data set ({abbreviated(names)})"
        raise DataError(f"{where}: label {value} is outside {classes}.")
    raise DataError(f"{where}: {value!r} in a list of labels is not a name: write texts.")


def convert_labels(
    columns: Mapping[str, Sequence[tuple[RawLabel, str]]], typed: bool
) -> tuple[dict[str, list[Label]], str | None]:
    """Convert the labels of all splits to one kind, with a note if a choice was made.

    ``columns`` are the labels of each split with their ``file:line``; ``typed`` is False if all are
    text (CSV). Labels are numbers if every label is one and at least one has a decimal point. Other
    integers become names.
    """
    columns = {  # a split in which all labels are -1 or missing has none (the test sets of GLUE)
        split: rows if any(not (label is None or _is_minus_one(label)) for label, _ in rows)
        else [(None, where) for _, where in rows]
        for split, rows in columns.items()
    }  # fmt: skip
    flat = [pair for rows in columns.values() for pair in rows if pair[0] is not None]
    labels = [label for label, _ in flat]
    if any(isinstance(label, tuple) for label in labels):
        return {split: [_as_tuple(*row) for row in rows] for split, rows in columns.items()}, None
    if _are_numbers(labels, typed):
        for label, where in flat:
            if isinstance(label, str) and not _is_number(label):
                raise DataError(
                    f"{where}: label {label!r} is a name where other rows have numbers with a "
                    "decimal point: write all labels as names (texts) or all as numbers."
                )
        note = "labels have decimal points: read as numbers"
        return {split: _to_numbers(rows) for split, rows in columns.items()}, note
    is_class = _minus_one_is_class(labels)
    names: dict[str, list[Label]] = {
        split: [None if label is None or (_is_minus_one(label) and not is_class) else str(label)
                for label, _ in rows]
        for split, rows in columns.items()
    }  # fmt: skip
    note = "-1 is read as a class, not as no label: leave the label empty where there is none"
    return names, note if is_class else None


def without_missing_labels(examples: Sequence[TextExample]) -> list[TextExample]:
    """Return the streamed examples of one file with -1 as None where it means *no label*."""
    labels = [example.label for example in examples if example.label is not None]
    kept = _minus_one_is_class(labels) or _are_numbers(labels, False)
    if kept and not all(map(_is_minus_one, labels)):
        return list(examples)
    return [
        dataclasses.replace(example, label=None) if _is_minus_one(example.label) else example
        for example in examples
    ]


def _minus_one_is_class(labels: Sequence[RawLabel]) -> bool:
    """Return whether labels are whole numbers with -1 frequent or not the only negative one."""
    if not all(_is_integer(label) for label in labels):
        return False
    count = sum(map(_is_minus_one, labels))
    others = any(int(label) < 0 for label in labels if not _is_minus_one(label))  # type: ignore[arg-type]
    return 0 < count and (others or count >= MIN_CLASS_FRACTION * len(labels))


def _is_minus_one(label: RawLabel) -> bool:
    return isinstance(label, int | str) and str(label) == str(MISSING_NUMBER)


def _is_integer(label: RawLabel) -> bool:
    return isinstance(label, int) or (isinstance(label, str) and label.lstrip("-").isdecimal())


def _as_tuple(label: RawLabel, where: str) -> tuple[str, ...] | None:
    if isinstance(label, float):
        raise DataError(
            f"{where}: label {label} is a number where other rows have lists of names: write names."
        )
    if label is None or _is_minus_one(label):
        return None
    return label if isinstance(label, tuple) else (str(label),)


def _are_numbers(labels: Sequence[RawLabel], typed: bool) -> bool:
    if typed:
        return any(isinstance(label, float) for label in labels)
    return any("." in str(label) for label in labels) and all(map(_is_number, labels))


def _is_number(label: RawLabel) -> bool:
    try:
        return math.isfinite(float(label))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _to_numbers(rows: Sequence[tuple[RawLabel, str]]) -> list[Label]:
    """Convert to floats; a split in which all are -1.0 has no labels (the test sets of GLUE)."""
    numbers = [None if label is None else float(label) for label, _ in rows]  # type: ignore[arg-type]
    return [None] * len(numbers) if set(numbers) <= {-1.0, None} else list(numbers)
