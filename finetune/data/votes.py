"""The votes of several annotators for the label of a text, or its distribution over labels.

A text with votes has the label of the majority, and ``TextExample.votes`` besides: training and
scores that know nothing of votes take the majority.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.examples import Examples
from finetune.data.json_files import parse_json
from finetune.types import quantity

Votes = tuple[tuple[str, float], ...]
"""The labels with votes in alphabetical order, each with its number of votes or probability."""

LEGAL = 'write the number of votes, or the probability, of each label, such as {"a": 3, "b": 1}'
MOST = 1e12
"""Largest number of votes."""


def read_votes(value: Mapping[Any, Any], where: str) -> Votes:
    """Return the votes of an object, without labels that have none.

    A label whose number is None has none, as in a column of objects of a Parquet file.

    Raises:
        DataError: A number is no number of votes, or no label has any.
    """
    found = Counter[str]()
    for name, number in value.items():
        label = name.strip() if isinstance(name, str) else ""
        legal = not isinstance(number, bool) and isinstance(number, int | float | None)
        if not label or not legal or not 0 <= (number or 0) <= MOST:
            raise DataError(
                f"{where}: {number!r:.40} votes for the label {name!r:.40}: {LEGAL}, from 0 on."
            )
        found[label] += number or 0
    votes = tuple(sorted(each for each in found.items() if each[1]))
    if not votes:
        raise DataError(f"{where}: no label has a vote: {LEGAL}; a row without gold has no label.")
    return votes


def object_of(value: Any) -> Mapping[Any, Any] | None:
    """Return a value that is an object, or a cell that holds one as JSON; None for any other."""
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        with contextlib.suppress(DataError):
            value = parse_json(value, "")
    return value if isinstance(value, Mapping) else None


def counted_votes(labels: Iterable[Any], where: str) -> Votes | None:
    """Return the votes of annotators, a label of each; None if none of them has a label.

    Raises:
        DataError: A label is a list, or a number that is not whole.
    """
    votes = Counter[str]()
    for label in labels:
        fraction = isinstance(label, float) and not label.is_integer()
        if fraction or isinstance(label, tuple):
            raise DataError(
                f"{where}: the label of one of several columns must be a name, not {label!r:.40}: "
                "correct it, or name one column, --columns label=NAME."
            )
        if label is not None:  # a column of whole numbers with empty cells may hold 1.0
            votes[str(int(label) if isinstance(label, float) else label)] += 1
    return tuple(sorted(votes.items())) or None


def majority(votes: Votes) -> str:
    """Return the label with most votes; of several with as many, the first in the alphabet."""
    return min(votes, key=lambda each: (-each[1], each[0]))[0]


def renamed_votes(votes: Votes | None, names: Mapping[str, str]) -> Votes | None:
    """Return votes with other names of labels; the votes of labels with one name are added."""
    if votes is None:
        return None
    found = Counter[str]()
    for name, number in votes:
        found[names.get(name, name)] += number  # type: ignore[assignment]
    return tuple(sorted(found.items()))


def voted_names(splits: Iterable[Examples]) -> set[str]:
    """Return the labels with votes in texts; none of words."""
    columns = (rows.column("votes") for rows in splits if not rows.are_words)
    return {name for column in columns for votes in column for name, _ in votes or ()}


def agreement(votes: Votes) -> tuple[str, float]:
    """Return ``unanimous``, ``majority`` or ``tied``, and the share of the majority."""
    numbers = sorted((number for _, number in votes), reverse=True)
    tied = numbers[1:2] == numbers[:1]
    how = "unanimous" if len(numbers) == 1 else "tied" if tied else "majority"
    return how, numbers[0] / math.fsum(numbers)


def votes_notes(split: str, column: Iterable[Votes | None]) -> list[str]:
    """Return a note on the votes of a split, and how far they agree; none without votes."""
    found = [agreement(votes) for votes in column if votes is not None]
    if not found:
        return []
    counts = Counter(how for how, _ in found)
    share = math.fsum(share for _, share in found) / len(found)
    tied = f", {counts['tied']:,} tied (the first label counts)" if counts["tied"] else ""
    return [
        f"{split}: votes for {quantity(len(found), 'text')}, on average {share:.1%} of them for "
        f"the majority; {counts['unanimous']:,} unanimous{tied}"
    ]
