"""What the types of predictions of texts, of pairs of texts and of questions share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from finetune.evaluation.items import Grouping, Items, Tables, check_names, right_by_group
from finetune.types import TextExample

TEXT_LENGTHS = (1, 11, 26, 51, 101, 201)
"""The first value of each subgroup of lengths in words."""


def text_of_row(index: int, where: str, row: Mapping[str, Any]) -> TextExample:
    """Return the text of a row with its gold."""
    gold = row["gold"]
    if gold is not None:
        check_names(where, "gold", gold)
    label = tuple(gold) if isinstance(gold, list) else gold
    text, pair = row.get("text", ""), row.get("text_pair")
    return TextExample(index, text, pair, label, row.get("where", where), row.get("id"))


def withheld(predictions: Sequence[Any], number: int) -> list[Any]:
    """Return the answer of each prediction that is withheld; None where one is given."""
    return [p.decided.get("withheld") for p in predictions] or [None] * number


def decided_items(
    gold: Sequence[Any],
    predicted: Sequence[Any],
    predictions: Sequence[Any],
    kept_back: Sequence[Any] | None = None,
    columns: Callable[[Any, Any], Mapping[str, Any]] = lambda *_: {},
) -> Items:
    """Return an item for each example, which holds the answer that is withheld.

    ``kept_back`` are these answers, by default those of ``predictions``; ``columns`` returns
    further columns from gold and answers.
    """
    kept_back = withheld(predictions, len(gold)) if kept_back is None else kept_back
    pairs = zip(predicted, kept_back, strict=True)
    answers = [given if own is None else own for given, own in pairs]
    return Items.of(
        range(len(gold)),
        gold,
        answers,
        (prediction.score for prediction in predictions),
        abstained=[own is not None for own in kept_back],
        **columns(gold, answers),
    )


def by_length(tables: Tables, unit: str) -> Grouping:
    """Return the grouping of texts, or pairs of texts, by length."""
    lengths = (bucket(num_words(example), TEXT_LENGTHS) for example in tables.examples)
    return right_by_group(tables.items, lengths, buckets(TEXT_LENGTHS), unit)


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


def best_labels(tables: Tables, index: int) -> list[tuple[str, float, str]]:
    """Return the most probable labels of a text."""
    scores = tables.predictions[index].scores or {}
    return [(*item, "") for item in sorted(scores.items(), key=lambda item: -item[1])[:4]]


def taken_for(tables: Tables) -> list[str]:
    """Return the categories of pairs of labels."""
    items: Items = tables.items
    return [f"{g} taken for {p}" for g, p in zip(items.gold, items.given, strict=True)]
