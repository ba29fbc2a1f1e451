"""Functions that the prediction types of texts, pairs of texts and questions share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from finetune.data.labels import read_votes
from finetune.evaluation.items import Grouping, Items, Tables, check_names, right_by_group
from finetune.types import TextExample

TEXT_LENGTHS = (1, 11, 26, 51, 101, 201)
"""The first value of each subgroup of lengths in words."""


def text_of_row(index: int, where: str, row: Mapping[str, Any]) -> TextExample:
    """Read the text of a row with its gold."""
    gold = row["gold"]
    if gold is not None:
        check_names(where, "gold", gold)
    label = tuple(gold) if isinstance(gold, list) else gold
    text, pair = row.get("text", ""), row.get("text_pair")
    votes = read_votes(row["votes"], where) if "votes" in row else None
    where, key = row.get("where", where), row.get("id")
    return TextExample(index, text, pair, label, where, key, votes=votes)


def decided_items(
    gold: Sequence[Any],
    predicted: Sequence[Any],
    predictions: Sequence[Any],
    left_out: Sequence[Any] | None = None,
) -> Items:
    """Make an item for each example, also of answers ``left_out`` by a model that abstains."""
    if left_out is None:
        left_out = [prediction.decided.get("withheld") for prediction in predictions]
    scores, abstained = [prediction.score for prediction in predictions], None
    if left_out.count(None) < len(left_out):
        pairs = zip(predicted, left_out, strict=True)
        predicted = [answer if other is None else other for answer, other in pairs]
        abstained = [other is not None for other in left_out]
    return Items.of(np.arange(len(gold)), gold, predicted, scores, abstained=abstained)


def by_length(tables: Tables, unit: str) -> Grouping:
    """Group texts, or pairs of texts, by length."""
    lengths = (bucket(num_words(example), TEXT_LENGTHS) for example in tables.examples)
    return right_by_group(tables.items, lengths, buckets(TEXT_LENGTHS), unit)


def num_words(example: TextExample) -> int:
    """The length of a text, or of both texts of a pair, in words."""
    return len(example.text.split()) + len((example.pair or "").split())


def bucket(value: int, starts: Sequence[int]) -> str:
    """Name the subgroup of a number; subgroups begin at ``starts``.

    >>> bucket(7, (1, 2, 11))
    '2-10'
    """
    return buckets(starts)[max(0, bisect_right(starts, value) - 1)]


def buckets(starts: Sequence[int]) -> list[str]:
    """Name the subgroups of ``bucket`` in order: ``1``, ``2-10``, ``11+``."""
    ranges = [(start, after - 1) for start, after in pairwise(starts)]
    closed = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return [*closed, f"{starts[-1]}+"]
