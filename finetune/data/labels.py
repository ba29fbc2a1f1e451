"""Labels of texts: names, tuples of names, numbers, or None where a row has no label."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.example_store import column, columns, relabeled
from finetune.data.json_files import parse_json
from finetune.types import TextExample, abbreviated

MISSING = ("", "-", "nan")
"""Texts, in lower case, that mean *no label*: empty, ``-`` (SNLI, no majority), pandas' ``NaN``."""
MISSING_NUMBER = -1
"""A number that means *no label* (GLUE test), unless it is one of the classes."""
MIN_CLASS_FRACTION = 0.05
"""Fraction of the labels from which -1 is a class, as in -1, 0, 1 for negative, neutral, positive;
SNLI without a majority is 0.1 % of train and 1.6 % of test."""

SINGLE = "each label is a list of one: read as one label for each text (--problem multi otherwise)"
"""The note on lists of one label everywhere, as doccano exports them."""

_WITH_COMMA = re.compile(r"[-+]?\d+([.,]\d+)?")

RawLabel = str | int | float | tuple[str, ...] | None
"""A label before the whole column is known: JSON integers are not yet names or numbers."""
Label = str | tuple[str, ...] | float | None


def raw_label(value: Any, names: Sequence[str] | None, where: str) -> RawLabel:
    """Return one value of a label column; ``names`` are the class names of its integers."""
    if isinstance(value, str):
        name = value.strip()
        listed = _listed(name)
        if listed is None:
            return None if name.lower() in MISSING else name
        value = listed
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
    legal = "a text, a number or a list of texts"
    raise DataError(f"{where}: a label must be {legal}, not {value!r}: --columns label=NAME?")


def _listed(cell: str) -> list[str] | None:
    """Return the labels of a cell that is a JSON list of texts; None for any other cell."""
    if cell[:1] != "[":
        return None
    try:
        found = parse_json(cell, "")
    except DataError:
        return None
    is_list = isinstance(found, list) and all(isinstance(each, str) for each in found)
    return found if is_list else None


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
    splits: Mapping[str, Sequence[TextExample]], typed: bool
) -> tuple[dict[str, Sequence[TextExample]], str | None]:
    """Convert the labels of all splits to one kind, with a note if a choice was made.

    ``typed`` is False if all labels are text (CSV). Labels are numbers if every label is one and at
    least one has a decimal point. Other integers become names.
    """
    # a split in which all labels are -1 or missing has none (the test sets of GLUE)
    empty = {
        split
        for split, rows in splits.items()
        if all(label is None or _is_minus_one(label) for label in column(rows, "label"))
    }
    kept = [rows for split, rows in splits.items() if split not in empty]

    def labels() -> Iterator[Any]:
        every = chain.from_iterable(column(rows, "label") for rows in kept)
        return (label for label in every if label is not None)

    lists = any(isinstance(label, tuple) for label in labels())
    if lists and all(
        isinstance(x, str) or (isinstance(x, tuple) and len(x) == 1) for x in labels()
    ):
        single = {split: relabeled(rows, _without_list) for split, rows in splits.items()}
        return convert_labels(single, typed)[0], SINGLE
    numbers = not lists and _are_numbers(labels, typed)
    if not lists:
        _check_spelling(kept, numbers)
    is_class = not lists and not numbers and _minus_one_is_class(labels)

    def converted(example: TextExample) -> Label:
        label: RawLabel = example.label
        if label is None or (_is_minus_one(label) and not (numbers or is_class)):
            return None
        if lists and isinstance(label, float):
            problem = f"label {label} is a number where other rows have lists of names"
            raise DataError(f"{example.where}: {problem}: write names.")
        if lists:
            return label if isinstance(label, tuple) else (str(label),)
        if numbers and not _is_number(label):
            raise DataError(
                f"{example.where}: label {label!r} is a name where other rows have numbers with a "
                "decimal point: write all labels as names (texts) or all as numbers."
            )
        return float(label) if numbers else str(label)  # type: ignore[arg-type]

    note = "-1 is read as a class, not as no label: leave the label empty where there is none"
    note = "labels have decimal points: read as numbers" if numbers else note
    return {
        split: relabeled(rows, (lambda example: None) if split in empty else converted)
        for split, rows in splits.items()
    }, note if numbers or is_class else None


def _without_list(example: TextExample) -> RawLabel:
    label = example.label
    return label[0] if isinstance(label, tuple) and label else label


def _check_spelling(splits: Sequence[Sequence[TextExample]], numbers: bool) -> None:
    """Raise DataError for decimal commas, and for whole numbers both as 1 and as 1.0."""

    def labels() -> Iterator[tuple[str, str]]:
        for rows in splits:
            for label, where in columns(rows, ("label", "where")):
                if label is not None:
                    yield str(label), where

    if (comma := next((each for each in labels() if "," in each[0]), None)) is not None and all(
        _WITH_COMMA.fullmatch(label) for label, _ in labels()
    ):
        raise DataError(
            f"{comma[1]}: label {comma[0]!r} is a number with a decimal comma: "
            "write a point (several labels are a list in JSON Lines)."
        )
    if not numbers:
        return
    point = plain = None
    for label, where in labels():
        if not _is_minus_one(label) and _is_number(label):
            if not float(label).is_integer():
                return
            if "." in label:
                point = point or (label, where)
            else:
                plain = plain or (label, where)
    if point and plain:
        raise DataError(
            f"{point[1]}: label {point[0]} where {plain[1]} has {plain[0]}: write "
            "all as 1 if they are classes, or all as 1.0 if they are numbers."
        )


def _minus_one_is_class(labels: Callable[[], Iterator[RawLabel]]) -> bool:
    """Return whether labels are whole numbers with -1 frequent or not the only negative one."""
    if not all(_is_integer(label) for label in labels()):
        return False
    count = sum(map(_is_minus_one, labels()))
    if not count:
        return False
    others = any(int(label) < 0 for label in labels() if not _is_minus_one(label))  # type: ignore[arg-type]
    return others or count >= MIN_CLASS_FRACTION * sum(1 for _ in labels())


def _is_minus_one(label: RawLabel) -> bool:
    return str(label) in (str(MISSING_NUMBER), str(float(MISSING_NUMBER)))


def _is_integer(label: RawLabel) -> bool:
    return isinstance(label, int) or (isinstance(label, str) and label.lstrip("-").isdecimal())


def _are_numbers(labels: Callable[[], Iterator[RawLabel]], typed: bool) -> bool:
    if typed:
        return any(isinstance(label, float) for label in labels())
    return any("." in str(label) for label in labels()) and all(map(_is_number, labels()))


def _is_number(label: RawLabel) -> bool:
    try:
        return math.isfinite(float(label))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
