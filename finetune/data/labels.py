"""Labels: their values, votes of annotators, and one spelling of their names.

Labels of texts are names, tuples of names, numbers, or None where a row has no label.

A text with the votes of several annotators, or their distribution over labels, has the label of the
majority, and ``TextExample.votes`` besides: training and scores that know nothing of votes take the
majority.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from finetune.config.values import finite_number
from finetune.data.examples import Dataset, Examples
from finetune.data.files import CONVERT_ADVICE
from finetune.data.json_files import json_cell
from finetune.types import DataError, TextExample, abbreviated, quantity

MISSING = ("", "-", "nan")
"""Texts, in lower case, that mean *no label*: empty, ``-`` (SNLI, no majority), pandas' ``NaN``."""
MISSING_NUMBER = -1
"""A number that means *no label* (GLUE test), unless it is one of the classes."""
MIN_CLASS_FRACTION = 0.05
"""Fraction of the labels from which -1 is a class, as in -1, 0, 1 for negative, neutral, positive;
SNLI without a majority is 0.1 % of train and 1.6 % of test."""

SINGLE = "each label is a list of one: read as one label for each text, unless --problem multi"
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
    if isinstance(value, str) and value.lstrip()[:1] not in ("{", "["):
        name = value.strip()
        return None if name.lower() in MISSING else name, None
    cell = json_cell(value)
    if isinstance(cell, Mapping):
        votes = read_votes(cell, where)
        return majority(votes), votes
    are_names = isinstance(cell, list) and all(isinstance(item, str) for item in cell)
    if isinstance(value, str) and not are_names:
        name = value.strip()
        if re.match(r"\[['\"]", name):
            raise DataError(
                f"{where}: label {name!r:.60} is no list that can be read: write JSON, "
                'such as ["joy", "surprise"].'
            )
        return name, None
    if isinstance(cell, list | tuple):
        labels = tuple(_label_name(item, names, where) for item in cell)
        repeated = next((name for name in labels if labels.count(name) > 1), None)
        if repeated is not None:
            raise DataError(
                f"{where}: the list of labels holds {repeated!r} twice: list the names of the "
                'labels that apply, such as ["joy", "surprise"], not a 0/1 vector; the votes of '
                'several annotators are an object, such as {"joy": 2, "anger": 1}.'
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

    @property
    def where(self) -> str:
        return self.rows.locations([self.first])[0]


def convert_labels(
    splits: Mapping[str, Examples], typed: bool
) -> tuple[Mapping[str, Examples], str | None]:
    """Convert the labels of all splits to one type, with a note if a choice was made.

    ``typed`` is False if all labels are text (CSV). Labels are numbers if every label is one and at
    least one has a decimal point. Other integers become names.

    Raises:
        DataError: Some labels are of another type than others.
    """
    different = {*chain.from_iterable(rows.column("label") for rows in splits.values())} - {None}
    if all(isinstance(label, str) and not any(map(str.isdigit, label)) for label in different):
        return splits, None  # names, which no number looks like
    filled = {  # the test sets of GLUE have no label but -1
        split: labels
        for split, labels in zip(splits, map(_labels_of, splits.values()), strict=True)
        if not all(_is_minus_one(label.value) for label in labels)
    }
    labels = list(chain.from_iterable(filled.values()))
    lists = [label.value for label in labels if isinstance(label.value, tuple)]
    names = [label.value for label in labels if isinstance(label.value, str)]
    if lists and len(lists) + len(names) == len(labels) and all(len(names) == 1 for names in lists):
        single = {
            split: rows.recoded("label", lambda x, _: x[0] if isinstance(x, tuple) and x else x)
            for split, rows in splits.items()
        }
        examples, note = convert_labels(single, typed)
        return examples, f"{SINGLE}; {note}" if note else SINGLE
    if typed:
        are_numbers = any(isinstance(label.value, float) for label in labels)
    else:
        numbers = [finite_number(label.value) for label in labels]
        are_numbers = None not in numbers and any("." in str(label.value) for label in labels)
    are_numbers = are_numbers and not lists
    is_class = not lists and not are_numbers and _minus_one_is_class(labels)
    if lists:
        _check_lists(splits.values(), labels)
    else:
        _check_spelling(labels, are_numbers)

    def convert(label: RawLabel, _: int) -> Label:
        if label is None or (not are_numbers and not is_class and _is_minus_one(label)):
            return None
        if lists:
            return label if isinstance(label, tuple) else (str(label),)
        return float(label) if are_numbers else str(label)  # type: ignore[arg-type]

    note = "-1 is read as a class, not as no label: leave the label empty where there is none"
    note = "labels have decimal points: read as numbers" if are_numbers else note
    return {
        split: rows.recoded("label", convert if split in filled else lambda *_: None)
        for split, rows in splits.items()
    }, note if are_numbers or is_class else None


def _labels_of(rows: Examples) -> list[_Label]:
    values, codes = rows.codes("label")
    _, firsts, numbers = np.unique(codes, return_index=True, return_counts=True)
    columns = zip(values, numbers.tolist(), repeat(rows), firsts.tolist(), strict=False)
    return [_Label(*label) for label in columns if label[0] is not None]


def _is_minus_one(label: Any) -> bool:
    return str(label) in (str(MISSING_NUMBER), str(float(MISSING_NUMBER)))


def _check_lists(splits: Iterable[Examples], labels: Sequence[_Label]) -> None:
    for rows in splits:
        for votes, where in rows.columns("votes", "where"):
            if votes is not None:
                raise DataError(
                    f"{where}: votes for labels where other rows have lists of labels: write votes "
                    'or one label for each text, such as "label": "a".'
                )
    for label in labels:
        if isinstance(label.value, float) and not _is_minus_one(label.value):
            problem = f"label {label.value} is a number where other rows have lists of names"
            raise DataError(f"{label.where}: {problem}: write names.")


def _check_spelling(labels: Sequence[_Label], are_numbers: bool) -> None:
    comma = next((label for label in labels if "," in str(label.value)), None)
    if comma and all(_WITH_COMMA.fullmatch(str(label.value)) for label in labels):
        raise DataError(
            f"{comma.where}: label {str(comma.value)!r} is a number with a decimal comma: write a "
            "point (several labels are a list in JSON Lines)."
        )
    if not are_numbers:
        return
    numbers = [label for label in labels if not _is_minus_one(label.value)]
    numbers = [label for label in numbers if finite_number(label.value) is not None]
    point = next((label for label in numbers if "." in str(label.value)), None)
    plain = next((label for label in numbers if "." not in str(label.value)), None)
    if point and plain and all(float(label.value).is_integer() for label in numbers):
        raise DataError(
            f"{point.where}: label {point.value} where {plain.where} has {plain.value}: write all "
            "as 1 if they are classes, or all as 1.0 if they are numbers."
        )
    for label in labels:
        if finite_number(label.value) is None:
            raise DataError(
                f"{label.where}: label {label.value!r} is a name where other rows have numbers "
                "with a decimal point: write all labels as names (texts) or all as numbers."
            )


def _minus_one_is_class(labels: Sequence[_Label]) -> bool:
    integers = all(str(label.value).lstrip("-").isdecimal() for label in labels)
    missing = [label for label in labels if _is_minus_one(label.value)]
    if not integers or not missing:
        return False
    if min(finite_number(label.value) or 0 for label in labels) < MISSING_NUMBER:
        return True
    total = sum(label.number for label in labels)
    return sum(label.number for label in missing) >= MIN_CLASS_FRACTION * total


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


def votes_note(split: str, column: Iterable[Votes | None]) -> str:
    """Note the votes of a split, and how far they agree; there must be some."""
    shares = [agreement(votes) for votes in column if votes is not None]
    counts = Counter(how for how, _ in shares)
    share = math.fsum(share for _, share in shares) / len(shares)
    tied = f", {counts['tied']:,} tied (the first label counts)" if counts["tied"] else ""
    return (
        f"{split}: votes for {quantity(len(shares), 'text')}, on average {share:.1%} of them for "
        f"the majority; {counts['unanimous']:,} unanimous{tied}"
    )


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


def canonical_name(name: str) -> str:
    """The usual spelling of an NLI label; any other name unchanged."""
    return _ALIASES.get(name.strip().lower(), name)


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Find the usual spelling of each name if all are NLI labels; else they stay unchanged."""
    names = list(names)
    are_standard = all(name.strip().lower() in _ALIASES for name in names)
    return {name: canonical_name(name) if are_standard else name for name in names}


def with_standard_names(data: Dataset) -> Dataset:
    """Rename the labels if all of them are NLI labels, with a note."""
    every = chain.from_iterable(rows.column("label") for rows in data.splits.values())
    names = {label for label in every if isinstance(label, str)}
    names |= voted_names(data.splits.values())
    mapped = canonical_names(names)
    if all(name == standard for name, standard in mapped.items()):
        return data

    def renamed(_: int, row: TextExample) -> TextExample:
        if row.votes is None:
            is_name = isinstance(row.label, str)
            return replace(row, label=mapped[row.label]) if is_name else row  # type: ignore[index]
        counts = Counter[str]()
        for name, number in row.votes:
            counts[mapped[name]] += number  # type: ignore[assignment]
        votes = tuple(sorted(counts.items()))  # those of labels with one name are added
        return replace(row, label=majority(votes), votes=votes)

    changed = sorted(name for name, standard in mapped.items() if name != standard)
    listed = ", ".join(f"{name!r} is {mapped[name]}" for name in changed)
    return replace(
        data,
        splits={split: rows.map(renamed) for split, rows in data.splits.items()},
        notes=[*data.notes, f"labels mapped by name: {listed}"],
        label_order=tuple(dict.fromkeys(mapped.get(name, name) for name in data.label_order)),
    )


def numbered_order(labels: Collection[str], order: Sequence[str]) -> list[str]:
    """Sort labels in the order of their numbers; none if they are not all in ``order``."""
    return [name for name in order if name in labels] if {*labels} <= {*order} else []
