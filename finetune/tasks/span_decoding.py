"""Labeled spans of words: decoding under a constraint, and the choice of thresholds.

The score p of a candidate is the probability that it is a span of its type rather than none, and t
is the threshold of the type. A candidate with p >= t has the weight log(p / (1 - p)) - log(t / (1 -
t)). The prediction is the set of largest total weight that the constraint allows, found exactly.
If candidates are independent given the text, this is the most probable set for thresholds of 0.5.
The common greedy method (Yu, Bohnet & Poesio 2020, "Named Entity Recognition as Dependency
Parsing") takes candidates by falling score, so one span can displace two of larger total weight.

Constraints: ``overlapping`` allows all sets. ``flat`` allows no two spans that share a word.
``nested`` allows no two spans that cross, that is overlap while neither contains the other;
several labels for the same words are allowed.

Numpy alone, as exported models decode with this file too.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import compress
from operator import not_
from typing import NamedTuple

import numpy as np

from finetune.preprocessing.span_candidates import candidates as candidate_spans
from finetune.preprocessing.span_candidates import num_candidates, predicted_candidates
from finetune.tasks.decoding import Decoder, check_complete, sigmoid
from finetune.types import Span, SpanPrediction, TokenExample, WindowOutput

ScoredSpans = Sequence[tuple[Span, float]]
"""Spans with their scores; of a span that occurs twice the higher score counts."""
LOWEST_THRESHOLD = 0.02
"""Candidates with lower scores are never predicted and are dropped early."""
GRID = tuple(sorted((k / 40 for k in range(2, 39)), key=lambda t: (round(abs(t - 0.5), 6), t)))
"""Thresholds to try: 0.05 to 0.95 by 0.025, nearest to 0.5 first, so that these win ties."""

Weighted = tuple[Span, int]


class ScoredCandidates(NamedTuple):
    """The candidates of a window that may become spans: index, class and score, each [K]."""

    num_words: int
    indices: np.ndarray
    classes: np.ndarray
    scores: np.ndarray


class SpanDecoder(Decoder):
    """Decodes labeled spans of words."""

    max_width: int
    """Number of words of the widest candidate."""
    multi_label: bool
    """Whether a span can have several types."""
    constraint: str
    """The spans that may be predicted together (``best_spans``)."""
    thresholds: Mapping[str, float]
    """The threshold of each span type; 0.5 for types without one."""

    def windows(self, logits: np.ndarray, num_words: Sequence[int]) -> list[ScoredCandidates]:
        """Select the candidates of each sequence whose score could reach a threshold.

        ``logits`` [S, C] belong to the candidates of all sequences. The score of a type is its
        probability against no type: for a softmax p / (p + p of none).
        """
        if self.multi_label:
            scores = sigmoid(logits)  # [S, C]
            rows, classes = (scores >= LOWEST_THRESHOLD).nonzero()
            best = scores[rows, classes]
        else:
            scores = sigmoid(logits[:, 1:].max(-1) - logits[:, 0])  # [S]
            (rows,) = (scores >= LOWEST_THRESHOLD).nonzero()
            classes, best = logits[rows, 1:].argmax(-1), scores[rows]
        sizes = [num_candidates(number, self.max_width) for number in num_words]
        ends = np.cumsum(sizes)
        arrays = (rows, classes, best.astype(np.float64))
        split = (np.split(array, np.searchsorted(rows, ends[:-1])) for array in arrays)
        return [
            ScoredCandidates(number, indices - (end - size), *columns)
            for number, end, size, indices, *columns in zip(
                num_words, ends, sizes, *split, strict=True
            )
        ]

    def postprocess(self, example: TokenExample, outputs: Sequence[WindowOutput]) -> SpanPrediction:
        """Predict the most probable set of spans that the constraint allows."""
        check_complete(example, max(p.first_word + p.values.num_words for p in outputs))
        prediction = SpanPrediction(
            example.id,
            example.words,
            (),
            (),
            tuple(self._candidates(outputs)),
            offsets=example.offsets,
            text=example.text,
        )
        return self.decide(prediction)

    def _candidates(self, outputs: Sequence[WindowOutput]) -> Iterator[tuple[Span, float]]:
        bounds = [(p.first_word, p.first_word + p.values.num_words) for p in outputs]
        for index, (start, end) in enumerate(bounds):
            _, indices, classes, scores = outputs[index].values
            if len(bounds) > 1:
                predicted = predicted_candidates(bounds, index, self.max_width)[indices]
                indices, classes, scores = indices[predicted], classes[predicted], scores[predicted]
            spans = candidate_spans(end - start, self.max_width)[indices] + start
            for (first, last), number, score in zip(
                spans.tolist(), classes.tolist(), scores.tolist(), strict=True
            ):
                yield Span(first, last, self.labels[number]), score

    def decide(self, prediction: SpanPrediction) -> SpanPrediction:
        """Choose among the candidates of a prediction."""
        chosen = best_spans(prediction.candidates, self.constraint, self.thresholds)
        spans, scores = zip(*chosen, strict=True) if chosen else ((), ())
        return replace(prediction, spans=spans, scores=scores)


def best_spans(
    candidates: ScoredSpans, decoding: str, thresholds: Mapping[str, float]
) -> list[tuple[Span, float]]:
    """Find the set of spans of largest total weight that a decoding allows, with their scores.

    Among sets of equal weight the largest set wins, then position and label decide; the order of
    candidates never matters. Spans are sorted by start, the longer first, and label.
    """
    scores = _unique(candidates)
    chosen = _decided(scores, decoding, thresholds)
    return [(span, scores[span]) for span in sorted(chosen, key=_order)]


def _order(span: Span) -> tuple[int, int, str]:
    return span.start, -span.end, span.label


def _unique(candidates: ScoredSpans) -> dict[Span, float]:
    scores: dict[Span, float] = {}
    for span, score in candidates:
        scores[span] = max(score, scores.get(span, score))
    return {span: scores[span] for span in sorted(scores, key=_order)}


def _decided(
    scores: Mapping[Span, float], decoding: str, thresholds: Mapping[str, float]
) -> list[Span]:
    weights = {}
    for span, score in scores.items():
        threshold = max(thresholds.get(span.label, 0.5), LOWEST_THRESHOLD)
        if score >= threshold:
            # Weights in steps of 2^-24, followed by 16 bits for the number of spans, 1. Whole
            # numbers have the same sum in any order; sums compare weights first, then numbers.
            weight = max(0, _log_odds(score) - _log_odds(threshold))
            weights[span] = (weight << 16) + 1
    chosen = []
    for group in _groups(list(weights), decoding):
        if len(group) == 1:
            chosen += group
        else:
            solve = _best_disjoint if decoding == "flat" else _best_laminar
            chosen += solve([(span, weights[span]) for span in group])
    return chosen


@lru_cache(maxsize=65536)
def _log_odds(probability: float) -> int:
    probability = min(max(probability, 1e-9), 1 - 1e-9)  # so that weights are finite
    return round(math.log(probability / (1 - probability)) * 2**24)


def _groups(spans: Sequence[Span], decoding: str) -> list[list[Span]]:
    if decoding == "overlapping":
        return [[span] for span in spans]
    groups: list[list[Span]] = []
    reach = -1
    for span in spans:
        if span.start >= reach:
            groups.append([])
        groups[-1].append(span)
        reach = max(reach, span.end)
    return groups if decoding == "flat" else [run for group in groups for run in _crossing(group)]


def _crossing(spans: list[Span]) -> list[list[Span]]:
    groups, remaining = [], spans
    while remaining:
        group, remaining = [remaining[0]], remaining[1:]
        for start, end, _ in group:  # the list grows while it is read: breadth first
            crosses = [s < start < e < end or start < s < end < e for s, e, _ in remaining]
            group += compress(remaining, crosses)
            remaining = list(compress(remaining, map(not_, crosses)))
        groups.append(sorted(group, key=_order))
    return groups


def _best_disjoint(weighted: Sequence[Weighted]) -> list[Span]:
    """Weighted interval scheduling (Kleinberg & Tardos, *Algorithm Design*, 2005, section 6.1)."""
    by_end = sorted(weighted, key=lambda item: item[0].end)
    ends = [span.end for span, _ in by_end]
    best = [0]  # with only the first 0, 1, 2, … spans
    for span, weight in by_end:
        best.append(max(best[-1], best[bisect_right(ends, span.start)] + weight))
    chosen, number = [], len(by_end)
    while number:
        if best[number] > best[number - 1]:
            span = by_end[number - 1][0]
            chosen.append(span)
            number = bisect_right(ends, span.start)
        else:
            number -= 1
    return chosen


def _best_laminar(weighted: Sequence[Weighted]) -> list[Span]:
    """CKY over the m different boundaries of spans instead of all words, in O(m^3).

    Nested entities as constituents: Finkel & Manning 2009, "Nested Named Entity Recognition".
    """
    points = sorted({point for span, _ in weighted for point in span[:2]})
    index = {point: number for number, point in enumerate(points)}
    best = np.zeros((len(points), len(points)), np.int64)  # the best of each stretch
    for span, weight in weighted:
        best[index[span.start], index[span.end]] += weight

    def parts(start: int, end: int) -> np.ndarray:
        return best[start, start + 1 : end] + best[start + 1 : end, end]

    for length in range(2, len(points)):
        for start in range(len(points) - length):
            best[start, start + length] += parts(start, start + length).max()
    kept, todo = set(), [(0, len(points) - 1)]
    while todo:
        start, end = todo.pop()
        kept.add((points[start], points[end]))
        if end - start > 1:
            middle = start + 1 + int(parts(start, end).argmax())
            todo += [(start, middle), (middle, end)]
    return [span for span, _ in weighted if span[:2] in kept]


def choose_span_thresholds(
    gold: Sequence[Collection[Span]],
    candidates: Sequence[ScoredSpans],
    decoding: str,
    labels: Sequence[str],
) -> dict[str, float]:
    """Choose the threshold of all labels, one of ``GRID``, with the best micro F1 over all texts.

    Ties go to the value nearest to 0.5. If scores are calibrated, the best threshold is half the F1
    it gives (Lipton, Elkan & Narayanaswamy 2014), so values below 0.5 are common.
    """
    scores = list(map(_unique, candidates))

    def f1(threshold: float) -> float:
        thresholds, correct, total = dict.fromkeys(labels, threshold), 0, 0
        for spans, of_text in zip(map(set, gold), scores, strict=True):
            chosen = _decided(of_text, decoding, thresholds)
            correct += len(spans.intersection(chosen))
            total += len(spans) + len(chosen)
        return 2 * correct / total if total else 0.0

    return dict.fromkeys(labels, max(GRID, key=f1))
