"""Labels: their values, votes of annotators, and one spelling of their names.

Labels of texts are names, tuples of names, numbers, or None where a row has no label.

A text with the votes of several annotators, or their distribution over labels, has the label of the
majority, and ``TextExample.votes`` besides: training and scores that know nothing of votes take the
majority.
"""

from __future__ import annotations

import contextlib
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, NamedTuple

from finetune.config.values import conforms
from finetune.data.dataset import CONVERT_ADVICE, DataError, Dataset
from finetune.data.examples import Examples
from finetune.data.json_files import json_cell
from finetune.types import TextExample, abbreviated, quantity

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


def read_label(
    value: Any, names: Sequence[str] | None, where: str
) -> tuple[RawLabel, Votes | None]:
    """Read one value of a label column, and its votes if it has any.

    ``names`` are the class names of its integers.
    """
    cell = json_cell(value)
    if isinstance(cell, Mapping):
        votes = read_votes(cell, where)
        return majority(votes), votes
    if isinstance(value, str) and not conforms(cell, list[str]):
        name = value.strip()
        return None if name.lower() in MISSING else name, None
    if isinstance(cell, list | tuple):
        labels = tuple(_label_name(item, names, where) for item in cell)
        repeated = next((name for name in labels if labels.count(name) > 1), None)
        if repeated is not None:
            raise DataError(
                f"{where}: the list of labels holds {repeated!r} twice: list the names of the "
                'labels that apply, such as ["joy", "surprise"], not a 0/1 vector.'
            )
        return labels, None
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None, None
    if isinstance(value, bool):
        return str(value).lower(), None
    if isinstance(value, int) and names is not None:
        return None if value == MISSING_NUMBER else _label_name(value, names, where), None
    if isinstance(value, int | float):
        return value, None
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
    raise DataError(
        f"{where}: {value!r} in a list of labels is not a name: write texts; {CONVERT_ADVICE}."
    )


class _Label(NamedTuple):
    """A label of a split: the number of examples that have it, and the first of them."""

    value: Any
    number: int
    rows: Examples
    first: int


def _labels_of(rows: Examples, values: Sequence[Any], codes: Any) -> list[_Label]:
    import numpy as np

    _, firsts, numbers = np.unique(codes, return_index=True, return_counts=True)
    labels = zip(values, numbers.tolist(), repeat(rows), firsts.tolist())
    return [_Label(*label) for label in labels if label[0] is not None]


def _converted(
    rows: Examples, values: Sequence[Any], codes: Any, convert: Callable[[Any], Any]
) -> Examples:
    labels = list(map(convert, values))
    if all(new is old for new, old in zip(labels, values, strict=True)):
        return rows
    return rows.replace("label", (labels[code] for code in codes.tolist()))


def convert_labels(
    splits: Mapping[str, Sequence[TextExample]], typed: bool
) -> tuple[dict[str, Examples], str | None]:
    """Convert the labels of all splits to one type, with a note if a choice was made.

    ``typed`` is False if all labels are text (CSV). Labels are numbers if every label is one and at
    least one has a decimal point. Other integers become names.

    Raises:
        DataError: Some labels are of another type than others.
    """
    read = {split: Examples.of(rows) for split, rows in splits.items()}
    coded = {split: (rows, *rows.codes("label")) for split, rows in read.items()}
    distinct = {split: _labels_of(*column) for split, column in coded.items()}
    filled = {  # the test sets of GLUE have no label but -1
        split: labels
        for split, labels in distinct.items()
        if not all(_is_minus_one(label.value) for label in labels)
    }
    labels = list(chain.from_iterable(filled.values()))
    values = [label.value for label in labels]
    lists = any(isinstance(value, tuple) for value in values)
    if lists and all(isinstance(value, str) or _is_single(value) for value in values):
        only = {
            split: _converted(*column, lambda x: x[0] if isinstance(x, tuple) and x else x)
            for split, column in coded.items()
        }
        examples, note = convert_labels(only, typed)
        return examples, f"{SINGLE}; {note}" if note else SINGLE
    numbers = any(isinstance(value, float) for value in values)
    if not typed:
        numbers = any("." in str(x) for x in values) and all(_number(x) is not None for x in values)
    numbers = numbers and not lists
    is_class = not lists and not numbers and _minus_one_is_class(labels)
    if lists:
        _refuse_among_lists(read.values(), labels)
    else:
        _check_spelling(labels, numbers)

    def converted(label: RawLabel) -> Label:
        if label is None or (not numbers and not is_class and _is_minus_one(label)):
            return None
        if lists:
            return label if isinstance(label, tuple) else (str(label),)
        return float(label) if numbers else str(label)  # type: ignore[arg-type]

    note = "-1 is read as a class, not as no label: leave the label empty where there is none"
    note = "labels have decimal points: read as numbers" if numbers else note
    return {
        split: _converted(*column, converted if split in filled else lambda _: None)
        for split, column in coded.items()
    }, note if numbers or is_class else None


def _is_minus_one(label: Any) -> bool:
    return str(label) in (str(MISSING_NUMBER), str(float(MISSING_NUMBER)))


def _is_single(label: Any) -> bool:
    return isinstance(label, tuple) and len(label) == 1


def _number(label: Any) -> float | None:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return number if math.isfinite(number := float(label)) else None
    return None


def _first(labels: Iterable[_Label], which: Callable[[Any], bool]) -> TextExample | None:
    return next((label.rows[label.first] for label in labels if which(label.value)), None)


def _refuse_among_lists(splits: Iterable[Examples], labels: Sequence[_Label]) -> None:
    for rows in splits:
        for votes, where in rows.columns("votes", "where"):
            if votes is not None:
                raise DataError(
                    f"{where}: votes for labels where other rows have lists of labels: write votes "
                    'or one label for each text, such as "label": "a".'
                )
    wrong = _first(labels, lambda label: isinstance(label, float) and not _is_minus_one(label))
    if wrong is not None:
        problem = f"label {wrong.label} is a number where other rows have lists of names"
        raise DataError(f"{wrong.where}: {problem}: write names.")


def _check_spelling(labels: Sequence[_Label], numbers: bool) -> None:
    values = [label.value for label in labels]
    have_commas = all(_WITH_COMMA.fullmatch(str(value)) for value in values)
    comma = _first(labels, lambda label: "," in str(label)) if have_commas else None
    if comma is not None:
        raise DataError(
            f"{comma.where}: label {str(comma.label)!r} is a number with a decimal comma: "
            "write a point (several labels are a list in JSON Lines)."
        )
    if not numbers:
        return
    numeric_labels = [x for x in values if _number(x) is not None and not _is_minus_one(x)]
    if all(float(label).is_integer() for label in numeric_labels):
        spellings = {*map(str, numeric_labels)}
        point = _first(labels, lambda label: str(label) in spellings and "." in str(label))
        plain = _first(labels, lambda label: str(label) in spellings and "." not in str(label))
        if point and plain:
            raise DataError(
                f"{point.where}: label {point.label} where {plain.where} has {plain.label}: write "
                "all as 1 if they are classes, or all as 1.0 if they are numbers."
            )
    if (wrong := _first(labels, lambda label: _number(label) is None)) is not None:
        raise DataError(
            f"{wrong.where}: label {wrong.label!r} is a name where other rows have numbers with a "
            "decimal point: write all labels as names (texts) or all as numbers."
        )


def _minus_one_is_class(labels: Sequence[_Label]) -> bool:
    values = [label.value for label in labels]
    if not any(map(_is_minus_one, values)) or not all(map(_is_integer, values)):
        return False
    if any((_number(value) or 0) < 0 and not _is_minus_one(value) for value in values):
        return True
    total = sum(label.number for label in labels)
    missing = sum(label.number for label in labels if _is_minus_one(label.value))
    return missing >= MIN_CLASS_FRACTION * total


def _is_integer(label: Any) -> bool:
    return type(label) is int or (isinstance(label, str) and label.lstrip("-").isdecimal())


Votes = tuple[tuple[str, float], ...]
"""The labels with votes in alphabetical order, each with its number of votes or probability."""

_LEGAL = 'write the number of votes, or the probability, of each label, such as {"a": 3, "b": 1}'
MOST_VOTES = 1e12
"""Largest number of votes."""


def read_votes(value: Mapping[Any, Any], where: str) -> Votes:
    """Read the votes of an object, without labels that have none.

    A label whose number is None has none, as in a column of objects of a Parquet file.

    Raises:
        DataError: A number is no number of votes, or no label has any.
    """
    counts = Counter[str]()
    for name, number in value.items():
        label = name.strip() if isinstance(name, str) else ""
        legal = not isinstance(number, bool) and isinstance(number, int | float | None)
        if not label or not legal or not 0 <= (number or 0) <= MOST_VOTES:
            raise DataError(
                f"{where}: {number!r:.40} votes for the label {name!r:.40}: {_LEGAL}, from 0 "
                f"on; {CONVERT_ADVICE}."
            )
        counts[label] += number or 0
    votes = tuple(sorted(vote for vote in counts.items() if vote[1]))
    if not votes:
        raise DataError(f"{where}: no label has a vote: {_LEGAL}; a row without gold has no label.")
    return votes


def majority(votes: Votes) -> str:
    """The label with most votes; of several with as many, the first in the alphabet."""
    return min(votes, key=lambda vote: (-vote[1], vote[0]))[0]


def renamed_votes(votes: Votes | None, names: Mapping[str, str]) -> Votes | None:
    """Rename the labels of votes; the votes of labels with one name are added."""
    if votes is None:
        return None
    counts = Counter[str]()
    for name, number in votes:
        counts[names.get(name, name)] += number  # type: ignore[assignment]
    return tuple(sorted(counts.items()))


def voted_names(splits: Iterable[Examples]) -> set[str]:
    """The labels with votes in texts; none of words."""
    columns = (rows.column("votes") for rows in splits if not rows.are_words)
    return {name for column in columns for votes in column for name, _ in votes or ()}


def agreement(votes: Votes) -> tuple[str, float]:
    """The agreement, ``unanimous``, ``majority`` or ``tied``, and the share of the majority."""
    numbers = sorted((number for _, number in votes), reverse=True)
    tied = numbers[1:2] == numbers[:1]
    how = "unanimous" if len(numbers) == 1 else "tied" if tied else "majority"
    return how, numbers[0] / math.fsum(numbers)


def votes_notes(split: str, column: Iterable[Votes | None]) -> list[str]:
    """Note the votes of a split, and how far they agree; nothing without votes."""
    shares = [agreement(votes) for votes in column if votes is not None]
    if not shares:
        return []
    counts = Counter(how for how, _ in shares)
    share = math.fsum(share for _, share in shares) / len(shares)
    tied = f", {counts['tied']:,} tied (the first label counts)" if counts["tied"] else ""
    return [
        f"{split}: votes for {quantity(len(shares), 'text')}, on average {share:.1%} of them for "
        f"the majority; {counts['unanimous']:,} unanimous{tied}"
    ]


NLI_LABELS = ("entailment", "neutral", "contradiction")
"""The three classes in the order of our models."""

_ALIASES = {
    **dict.fromkeys(("entailment", "entails", "entailed", "e"), "entailment"),
    **dict.fromkeys(("neutral", "n"), "neutral"),
    **dict.fromkeys(("contradiction", "contradicts", "contradictory", "c"), "contradiction"),
    **dict.fromkeys(("not_entailment", "not-entailment", "not entailment"), "not_entailment"),
}
"""Other spellings of the NLI labels, in lower case."""


def variants(labels: Iterable[str]) -> list[list[str]]:
    """Group labels that differ only in case, blanks or invisible characters."""
    groups = defaultdict(list)
    for name in sorted({*labels}):
        plain = unicodedata.normalize("NFKC", name).casefold()
        visible = "".join(c for c in plain if unicodedata.category(c) != "Cf")
        groups[" ".join(visible.split())].append(name)
    return [names for names in groups.values() if len(names) > 1]


def _with_names(row: TextExample, names: Mapping[str, str]) -> TextExample:
    if (votes := renamed_votes(row.votes, names)) is not None:
        return replace(row, label=majority(votes), votes=votes)
    label = row.label
    return replace(row, label=names.get(label, label)) if isinstance(label, str) else row


def canonical_name(name: str) -> str:
    """The usual spelling of an NLI label; any other name unchanged."""
    return _ALIASES.get(name.strip().lower(), name)


def canonical_names(names: Iterable[str]) -> list[str]:
    """The names in their usual spelling if all are NLI labels, else unchanged."""
    names = list(names)
    if all(name.strip().lower() in _ALIASES for name in names):
        return [canonical_name(name) for name in names]
    return names


def with_standard_names(data: Dataset) -> Dataset:
    """Rename the labels if all of them are NLI labels, with a note."""
    every = chain.from_iterable(rows.column("label") for rows in data.splits.values())
    names = {label for label in every if isinstance(label, str)}
    names |= voted_names(data.splits.values())
    mapped = dict(zip(names, canonical_names(names), strict=True))
    if all(name == standard for name, standard in mapped.items()):
        return data
    renamed = sorted(name for name, standard in mapped.items() if name != standard)
    listed = ", ".join(f"{name!r} is {mapped[name]}" for name in renamed)
    return replace(
        data,
        splits={
            split: rows.map(lambda _, row: _with_names(row, mapped))
            for split, rows in data.splits.items()
        },
        notes=[*data.notes, f"labels mapped by name: {listed}"],
        label_order=tuple(dict.fromkeys(mapped.get(name, name) for name in data.label_order)),
    )


def without_gold(split: str, examples: Examples, name: str) -> list[str]:
    """Note the examples without a value of a field."""
    missing = sum(value is None for value in examples.column(name))
    counted = f"{missing:,} of {quantity(len(examples), 'row')}"
    return [f"{split}: {counted} without label"] if missing else []
