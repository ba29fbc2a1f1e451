"""The base classes of the kinds of predictions of texts and of words, and their subgroups.

The subgroups of a grouping do not overlap, so their counts sum to the counts of the whole data set.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np

from finetune.data import DataError
from finetune.data.spans import words_to_chars
from finetune.data.tag_schemes import detect_scheme
from finetune.data.token_records import TokenRecord, read_relations, read_spans
from finetune.evaluation.kinds.kind import Answer, Grouping, Kind, Scored, check_names
from finetune.evaluation.metrics import mean
from finetune.types import Span, TextExample, TokenExample, quantity


class OfTexts(Kind):
    """A kind of predictions of texts, of pairs of texts, or of questions."""

    def gold_of_row(self, index: int, where: str, row: Mapping[str, Any]) -> TextExample:
        """Return the text of a line with its gold."""
        gold = row["gold"]
        if gold is not None:
            check_names(where, "gold", gold)
        label = tuple(gold) if isinstance(gold, list) else gold
        text, pair = row.get("text", ""), row.get("text_pair")
        return TextExample(index, text, pair, label, row.get("where", where), row.get("id"))

    def asked(self, example: TextExample) -> tuple[object, ...]:
        """Return the texts and the choices."""
        return tuple(example.texts())

    def is_right(self, gold: Any, predicted: Any) -> bool:
        """Return whether a prediction is right."""
        return bool(gold == predicted)

    def rated(self, scored: Scored) -> list[list[Answer]]:
        """Return the prediction of each text, also if withheld; a blank one has no probability."""
        if not self.wording.rated:
            return super().rated(scored)
        sides_of_all = zip(scored.gold, scored.forced or scored.predicted, strict=True)
        scores = [math.nan if p.score is None else p.score for p in scored.predictions]
        return [
            [Answer(score, self.is_right(*sides), self.name_of(sides[1]))]
            for score, sides in zip(scores, sides_of_all, strict=False)
        ]

    def name_of(self, predicted: Any) -> str:
        """Return the class of a prediction; empty where classes differ by example."""
        return ""


def confidence_of(scored: Scored) -> list[float | None]:
    """Return the probability of each prediction; all None where one is not known."""
    found = [prediction.score for prediction in scored.predictions]
    known = bool(found) and not any(score is None or math.isnan(score) for score in found)
    return found if known else [None] * len(scored)


CharacterSpans = Sequence[tuple[set[Span], set[Span]]]


def _sentence_of_row(index: int, where: str, row: Mapping[str, Any]) -> TokenExample:
    gold, words = row["gold"] or {}, row.get("words")
    if not isinstance(gold, Mapping) or not isinstance(words, list):
        raise DataError(
            f'{where}: next to `words`, `gold` must be an object such as {{"tags": ["B-PER", "O"]}}'
            f' or {{"spans": [[0, 2, "PER"]]}}, not {gold!r:.60}; or name a file with --gold FILE.'
        )
    tags, spans = gold.get("tags"), gold.get("spans")
    if tags is not None:
        check_names(where, "gold", tags, tags=True)
        if len(tags) != len(words):
            raise DataError(
                f"{where}: {quantity(len(tags), 'gold tag')} for {quantity(len(words), 'word')}."
            )
    offsets, relations = row.get("offsets"), gold.get("relations")
    if relations is not None:
        record = TokenRecord(tuple(words), where)
        relations = read_relations(relations, where, spans or (), record)
    return TokenExample(
        index,
        tuple(words),
        spans if spans is None else read_spans(spans, where, len(words)).spans,
        tags if tags is None else tuple(tags),
        row.get("document"),
        row.get("text"),
        offsets if offsets is None else tuple((start, end) for start, end in offsets),
        row.get("where", where),
        unreachable=tuple(Span(*span) for span in gold.get("unreachable", ())),
        key=row.get("id"),
        relations=relations,
    )


class OfSentences(Kind):
    """A kind of predictions of words."""

    def gold_of_row(self, index: int, where: str, row: Mapping[str, Any]) -> TokenExample:
        """Return the sentence of a line with its gold."""
        return _sentence_of_row(index, where, row)

    def asked(self, example: TokenExample) -> tuple[str, ...]:
        """Return the words."""
        return example.words

    def document(self, example: TokenExample) -> str | None:
        """Return the name of the document."""
        return example.document


def check_words(where: str, words: Any, example: TokenExample) -> None:
    """Raise DataError if a prediction has other words than the gold example."""
    if not isinstance(words, list) or len(words) != len(example.words):
        found = quantity(len(words), "word") if isinstance(words, list) else f"{words!r:.60}"
        raise DataError(
            f"{where}: {found} for the {quantity(len(example.words), 'word')} of {example.where}: "
            "the files do not belong together."
        )
    for index, (word, gold) in enumerate(zip(words, example.words, strict=True)):
        if word != gold:
            raise DataError(
                f"{where}: word {index} is {word!r:.40}, but {gold!r:.40} in {example.where}: "
                "the files do not belong together."
            )


def spans_in_characters(
    examples: Sequence[TokenExample],
    predicted: Iterable[Iterable[Span]],
    unreachable: Iterable[Iterable[Span]] = (),
) -> CharacterSpans:
    """Return the gold and predicted spans of each text in characters, nothing for gold in words.

    ``predicted`` are in words, ``unreachable`` in characters: spans that words cannot represent.
    """
    pairs = []
    others = chain(unreachable, repeat(()))
    for example, spans, more in zip(examples, predicted, others, strict=False):
        if example.offsets is None or example.spans is None:
            return ()
        gold = {*words_to_chars(example.offsets, example.spans), *example.unreachable}
        pairs.append((gold, {*words_to_chars(example.offsets, spans), *more}))
    return pairs


def predicted_scheme(predicted: Sequence[Sequence[str]], scheme: str | None) -> str | None:
    """Return the scheme of predicted tags, next to gold of a ``scheme``."""
    found = detect_scheme(predicted)
    if found in ("IO", "IOB1") and scheme not in ("IO", "IOB1"):
        found = "BIO"  # a few ill-formed tags do not make another scheme
    return found


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
