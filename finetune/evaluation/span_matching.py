"""Predicted spans paired with gold spans, and the four criteria of a correct pair.

SemEval-2013 task 9.1 defines the criteria (Segura-Bedmar, Martínez & Herrero-Zazo 2013): ``strict``
asks for equal boundaries and type, ``exact`` for equal boundaries, ``type`` for a shared word and
equal type; ``partial`` is ``exact`` with half credit for a shared word.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from finetune.types import Span

MATCHES = ("correct", "type", "boundary", "boundary and type", "false positive", "miss")
"""Kinds of pairs, which are correct or wrong in type, in boundaries, or in both."""

_SAME_PLACE = {"correct": 1.0, "type": 1.0}
CRITERIA: Mapping[str, Mapping[str, float]] = {
    "strict": {"correct": 1.0},
    "exact": _SAME_PLACE,
    "partial": _SAME_PLACE | {"boundary": 0.5, "boundary and type": 0.5},
    "type": {"correct": 1.0, "boundary": 1.0},
}
"""By criterion: the credit of each category of pairs, 0 for all others."""


class Match(NamedTuple):
    """A gold span and the predicted span paired with it; one of them may be missing."""

    gold: Span | None
    predicted: Span | None

    @property
    def category(self) -> str:
        """One of ``MATCHES``."""
        if self.gold is None:
            return "false positive"
        if self.predicted is None:
            return "miss"
        same_type = self.gold.label == self.predicted.label
        if self.gold[:2] == self.predicted[:2]:
            return "correct" if same_type else "type"
        return "boundary" if same_type else "boundary and type"


def match_spans(gold: Collection[Span], predicted: Collection[Span]) -> list[Match]:
    """Pair gold and predicted spans of a sentence; every span is in one pair, in order.

    Equal spans are paired first, then spans with equal boundaries, then spans of one type that
    share words, then others that share words, the closest first. Each span has at most one partner:
    nervaluate counts a gold span that several predicted spans cover several times.
    """
    equal = set(gold) & set(predicted)
    free_gold, free_predicted = set(gold) - equal, set(predicted) - equal
    matches = [Match(span, span) for span in equal]
    overlapping = _overlapping(free_gold, free_predicted) if free_gold and free_predicted else ()
    for pair in sorted(overlapping, key=_closest_first):
        if pair[0] in free_gold and pair[1] in free_predicted:
            free_gold.remove(pair[0])
            free_predicted.remove(pair[1])
            matches.append(Match(*pair))
    matches += [Match(span, None) for span in free_gold]
    matches += [Match(None, span) for span in free_predicted]
    return sorted(matches, key=lambda match: (match.gold or match.predicted, match.gold is None))


def _overlapping(gold: Iterable[Span], predicted: Iterable[Span]) -> Iterator[tuple[Span, Span]]:
    gold = sorted(gold)
    starts = [span.start for span in gold]
    widest = max((span.end - span.start for span in gold), default=0)
    for span in predicted:
        # earlier gold spans end before this one starts: long documents have thousands of spans
        for gold_span in gold[bisect_right(starts, span.start - widest) :]:
            if gold_span.start >= span.end:
                break
            if gold_span.end > span.start:
                yield gold_span, span


def _closest_first(pair: tuple[Span, Span]) -> tuple[int, int, int, Span, Span]:
    gold, predicted = pair
    shared = min(gold.end, predicted.end) - max(gold.start, predicted.start)
    unshared = max(gold.end, predicted.end) - min(gold.start, predicted.start) - shared
    return MATCHES.index(Match(gold, predicted).category), -shared, unshared, gold, predicted
