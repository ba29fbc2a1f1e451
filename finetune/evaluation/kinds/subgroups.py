"""Subgroups of a data set: names of ranges of numbers, and groupings that several kinds share.

The subgroups of a grouping do not overlap, so their counts sum to the counts of the whole data set.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from finetune.evaluation.kinds.kind import Grouping, Scored
from finetune.evaluation.metrics import mean
from finetune.types import TextExample

# The first value of each subgroup: lengths are in words, the first word of a sentence is at 1.
SENTENCE_LENGTHS = (1, 11, 21, 41, 81, 161)
TEXT_LENGTHS = (1, 11, 26, 51, 101, 201)
POSITIONS = (1, 2, 11, 51, 101, 201)


def right_by_group(
    groups: Sequence[Sequence[str]], order: Sequence[str], unit: str, single: bool = False
) -> Grouping:
    """Return the grouping whose table counts right predictions of each subgroup.

    ``groups`` are the subgroups of the units of each example, which are words, or ``single`` for
    one unit in each; ``unit`` is their name in the table.
    """

    def cells(scored: Scored) -> Iterator[tuple[int, str, tuple[int, int]]]:
        for index, (names, sides) in enumerate(zip(groups, scored.sides, strict=True)):
            pairs: Any = [sides] if single else zip(*sides, strict=True)
            for name, (gold, predicted) in zip(names, pairs, strict=True):
                yield index, name, (int(gold == predicted), 1)

    def row(sums: np.ndarray) -> dict[str, Any]:
        correct, number = sums.tolist()
        return {unit: number, "correct": correct, "accuracy": correct / number}

    return Grouping(cells, 2, order, row, "accuracy", mean)


def by_length(examples: Iterable[Any]) -> tuple[list[list[str]], list[str]]:
    """Return the subgroup of each text, or pair of texts, by its length; and all in order."""
    lengths = [[bucket(num_words(example), TEXT_LENGTHS)] for example in examples]
    return lengths, buckets(TEXT_LENGTHS)


def num_words(example: TextExample) -> int:
    """Return the length of a text, or of both texts of a pair, in words."""
    return len(example.text.split()) + len((example.pair or "").split())


def bucket(value: int, starts: Sequence[int]) -> str:
    """Return the subgroup of a number, where subgroups begin at ``starts``.

    >>> bucket(7, (1, 2, 11))
    '2-10'
    """
    return buckets(starts)[max(0, bisect_right(starts, value) - 1)]


def buckets(starts: Sequence[int]) -> list[str]:
    """Return the names of the subgroups of ``bucket`` in order: ``1``, ``2-10``, ``11+``."""
    ranges = [(start, after - 1) for start, after in pairwise(starts)]
    closed = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return [*closed, f"{starts[-1]}+"]
