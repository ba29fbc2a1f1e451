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

KINDS = ("correct", "type", "boundary", "boundary and type", "false positive", "miss")
"""Kinds of pairs, which are correct or wrong in type, in boundaries, or in both."""

CRITERIA = {
    "strict": (("correct",), ()),
    "exact": (("correct", "type"), ()),
    "partial": (("correct", "type"), ("boundary", "boundary and type")),
    "type": (("correct", "boundary"), ()),
}
"""By criterion: the kinds of pairs that get full credit, and those that get half."""


class Match(NamedTuple):
    """A gold span and the predicted span paired with it; one of them may be missing."""

    gold: Span | None
    predicted: Span | None

    @property
    def kind(self) -> str:
        """Return one of ``KINDS``."""
        if self.gold is None:
            return "false positive"
        if self.predicted is None:
            return "miss"
        same_type = self.gold.label == self.predicted.label
        if self.gold[:2] == self.predicted[:2]:
            return "correct" if same_type else "type"
        return "boundary" if same_type else "boundary and type"


def match_spans(gold: Collection[Span], predicted: Collection[Span]) -> list[Match]:
    """Return pairs that contain every gold and every predicted span of a sentence once, in order.

    Equal spans are paired first, then spans with equal boundaries, then spans of one type that
    share words, then others that share words, the closest first. Each span has at most one partner:
    nervaluate counts a gold span that several predicted spans cover several times.
    """
    equal = set(gold) & set(predicted)
    free_gold, free_predicted = set(gold) - equal, set(predicted) - equal
    matches = [Match(span, span) for span in equal]
    for pair in sorted(_overlapping(free_gold, free_predicted), key=_closest_first):
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
    others = max(gold.end, predicted.end) - min(gold.start, predicted.start) - shared
    return KINDS.index(Match(gold, predicted).kind), -shared, others, gold, predicted


def credit_counts(kinds: Mapping[str, int], criterion: str) -> tuple[float, int, int]:
    """Return the credit under a criterion, and the numbers of predicted and gold spans."""
    full, half = (sum(kinds[kind] for kind in some) for some in CRITERIA[criterion])
    paired = sum(kinds[kind] for kind in KINDS[:4])
    return full + half / 2, paired + kinds["false positive"], paired + kinds["miss"]
