"""Predicted spans paired with gold ones, and the four ways of counting the pairs.

The ways are those of SemEval-2013 task 9.1 (Segura-Bedmar, Martínez & Herrero-Zazo 2013), which the
library nervaluate made common: a span is right by ``strict`` if extent and type are, by ``exact``
if the extent is, by ``partial`` half if it only shares words, and by ``type`` if it shares words
and has the type.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from finetune.types import Span, UserError

KINDS = ("correct", "type", "boundary", "boundary and type", "false positive", "miss")
"""What becomes of a span: right; wrong in type, in extent, in both; without a gold one; without a
predicted one."""

_CREDIT = {  # by way of counting: the kinds that are right, and those that are half right
    "strict": (("correct",), ()),
    "exact": (("correct", "type"), ()),
    "partial": (("correct", "type"), ("boundary", "boundary and type")),
    "type": (("correct", "boundary"), ()),
}
WAYS = tuple(_CREDIT)
"""Names of the four ways of counting."""


class Match(NamedTuple):
    """A gold span and the predicted one it was paired with; one of them may be missing."""

    gold: Span | None
    predicted: Span | None

    @property
    def kind(self) -> str:
        """One of ``KINDS``."""
        if self.gold is None:
            return "false positive"
        if self.predicted is None:
            return "miss"
        return _kind(self.gold, self.predicted)


def match_spans(gold: Iterable[Span], predicted: Iterable[Span]) -> list[Match]:
    """Every gold and every predicted span of a sentence in exactly one pair, in order of place.

    Equal spans are paired first, then spans of equal extent, then spans of one type that share
    words, then others that share words; among these the pair that shares most words, and then the
    one with fewest others. What is left has no partner. Each span has one partner at most: where
    several predicted spans lie on one gold span, nervaluate counts that gold span several times,
    and this does not. A repeated span counts once.
    """
    free_gold, free_predicted = set(gold), set(predicted)
    both = free_gold & free_predicted
    free_gold -= both
    free_predicted -= both
    matches = [Match(span, span) for span in both]
    for right, answer in sorted(_sharing(free_gold, free_predicted), key=_closest_first):
        if right in free_gold and answer in free_predicted:
            free_gold.remove(right)
            free_predicted.remove(answer)
            matches.append(Match(right, answer))
    matches += [Match(span, None) for span in free_gold]
    matches += [Match(None, span) for span in free_predicted]
    return sorted(matches, key=lambda match: (match.gold or match.predicted, match.gold is None))


def _sharing(gold: Iterable[Span], predicted: Iterable[Span]) -> Iterator[tuple[Span, Span]]:
    """Pairs of spans that share words."""
    gold = sorted(gold)
    starts = [right.start for right in gold]
    widest = max((right.end - right.start for right in gold), default=0)
    for answer in predicted:
        # what begins before that ends before the answer: long documents hold thousands of spans
        for right in gold[bisect_right(starts, answer.start - widest) :]:
            if right.start >= answer.end:
                break
            if right.end > answer.start:
                yield right, answer


def _closest_first(pair: tuple[Span, Span]) -> tuple[int, int, int, Span, Span]:
    gold, predicted = pair
    shared = min(gold.end, predicted.end) - max(gold.start, predicted.start)
    others = max(gold.end, predicted.end) - min(gold.start, predicted.start) - shared
    return KINDS.index(_kind(gold, predicted)), -shared, others, gold, predicted


def _kind(gold: Span, predicted: Span) -> str:
    same_type = gold.label == predicted.label
    if gold[:2] == predicted[:2]:
        return "correct" if same_type else "type"
    return "boundary" if same_type else "boundary and type"


def match_sentences(
    gold: Sequence[Collection[Span]], predicted: Sequence[Collection[Span]]
) -> list[list[Match]]:
    """``match_spans`` of each sentence; raises ValueError if their numbers differ."""
    if len(gold) != len(predicted):
        raise UserError(
            f"{len(gold)} gold and {len(predicted)} predicted sentences: every one needs exactly "
            "one prediction"
        )
    return [match_spans(*sides) for sides in zip(gold, predicted, strict=True)]


def kinds_of(matches: Iterable[Iterable[Match]]) -> dict[str, int]:
    """How many pairs there are of each kind."""
    counts = Counter(match.kind for sentence in matches for match in sentence)
    return {kind: counts[kind] for kind in KINDS}


def credit(kinds: Mapping[str, int], way: str) -> tuple[float, int, int]:
    """What counts as right under a way, and how many predicted and gold spans there are."""
    right, half = (sum(kinds[kind] for kind in some) for some in _CREDIT[way])
    paired = sum(kinds[kind] for kind in KINDS[:4])
    return right + half / 2, paired + kinds["false positive"], paired + kinds["miss"]


def scores_by_way(matches: Iterable[Iterable[Match]]) -> dict[str, dict[str, float]]:
    """Counts and scores under each of the four ways.

    ``correct``, ``incorrect``, ``partial``, ``missed`` and ``spurious`` count pairs; precision is
    (correct + partial / 2) over the predicted spans, recall the same over the gold spans, and F1
    their harmonic mean. ``strict`` has the scores of ``metrics.span_scores``.
    """
    counts = kinds_of(matches)
    paired = sum(counts[kind] for kind in KINDS[:4])
    scores = {}
    for way, kinds in _CREDIT.items():
        right, half = (sum(counts[kind] for kind in some) for some in kinds)
        credited, num_predicted, num_gold = credit(counts, way)
        scores[way] = {
            "precision": _ratio(credited, num_predicted),
            "recall": _ratio(credited, num_gold),
            "f1": _ratio(2 * credited, num_gold + num_predicted),
            "correct": right,
            "incorrect": paired - right - half,
            "partial": half,
            "missed": counts["miss"],
            "spurious": counts["false positive"],
        }
    return scores


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
