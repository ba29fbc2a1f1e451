"""Decoding equals enumeration of all subsets; thresholds equal trying all, and never do harm."""

from __future__ import annotations

import math
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.models.heads.span_classifier import DECODINGS
from finetune.tasks.span_decoding import (
    GRID,
    LOWEST_THRESHOLD,
    SpanDecoder,
    best_spans,
    choose_span_thresholds,
)
from finetune.types import Span

THRESHOLDS = {"A": 0.3, "B": 0.5}  # and C has the default
ROUND = [0.0, 0.01, 0.3, 0.31, 0.5, 0.6, 0.9, 1.0]
scores = st.sampled_from(ROUND) | st.floats(0, 1)


@st.composite
def spans(draw, num_words=7):
    start = draw(st.integers(0, num_words - 1))
    end = draw(st.integers(start + 1, num_words))
    return Span(start, end, draw(st.sampled_from("ABC")))


def scored(most=9):
    return st.dictionaries(spans(), scores, max_size=most).map(lambda found: [*found.items()])


def log_odds(p: float) -> float:
    p = min(max(p, 1e-9), 1 - 1e-9)
    return math.log(p) - math.log(1 - p)


def weight(span: Span, score: float) -> float:
    return log_odds(score) - log_odds(THRESHOLDS.get(span.label, 0.5))


def legal(candidates):
    return [
        (s, p) for s, p in candidates if p >= max(THRESHOLDS.get(s.label, 0.5), LOWEST_THRESHOLD)
    ]


def conflict(a: Span, b: Span, decoding: str) -> bool:
    words, others = set(range(a.start, a.end)), set(range(b.start, b.end))
    if decoding == "overlapping" or not words & others:
        return False
    return decoding == "flat" or not (words <= others or others <= words)


def allowed(chosen, decoding: str) -> bool:
    return not any(conflict(a, b, decoding) for (a, _), (b, _) in combinations(chosen, 2))


def total(chosen) -> float:
    return sum(weight(*item) for item in chosen)


def best_total(candidates, decoding: str) -> tuple[float, int]:
    """Of all allowed subsets: the largest weight, and the most spans that reach it."""
    possible = legal(candidates)
    found = []
    for picks in product((False, True), repeat=len(possible)):
        chosen = [item for item, pick in zip(possible, picks, strict=True) if pick]
        if allowed(chosen, decoding):
            found.append((total(chosen), len(chosen)))
    highest = max(found)[0]
    return highest, max(number for weight, number in found if weight > highest - 1e-9)


@pytest.mark.parametrize("decoding", DECODINGS)
@given(scored(), st.randoms(use_true_random=False))
def test_decoding_equals_enumeration(decoding, candidates, shuffle):
    chosen = best_spans(candidates, decoding, THRESHOLDS)
    assert {*chosen} <= {*legal(candidates)}
    assert allowed(chosen, decoding)
    highest, most = best_total(candidates, decoding)
    assert total(chosen) == pytest.approx(highest, abs=1e-5)
    if {p for _, p in candidates} <= {*ROUND}:  # others tie within the decoder's precision
        assert len(chosen) == most
    assert chosen == sorted(chosen, key=lambda item: (item[0].start, -item[0].end, item[0].label))
    mixed = [*candidates]
    shuffle.shuffle(mixed)
    assert best_spans(mixed, decoding, THRESHOLDS) == chosen


def answer(candidates, decoding, **thresholds):
    found = best_spans([(Span(*s), p) for s, p in candidates], decoding, thresholds)
    return [tuple(span) for span, _ in found]


def test_the_score_of_a_candidate_is_its_best_type_against_none():
    decoder: Any = SimpleNamespace(multi_label=False, max_width=1)
    logits = np.array([[0.0, 2.0, 1.0], [0.0, -9.0, -9.5], [1.0, 0.0, 3.0]])
    two, one = SpanDecoder.windows(decoder, logits, [2, 1])
    found = [(*own.indices, *own.classes, *own.scores) for own in (two, one)]
    expected = [1 / (1 + math.exp(-logit)) for logit in (2.0, 2.0)]
    assert found == [(0, 0, pytest.approx(expected[0])), (0, 1, pytest.approx(expected[1]))]


def test_low_scores_never_become_answers():
    """So that throwing them away early changes nothing."""
    low = [((0, 2, "A"), LOWEST_THRESHOLD / 2), ((3, 4, "A"), LOWEST_THRESHOLD)]
    for decoding in DECODINGS:
        assert answer(low, decoding, A=0.0) == [(3, 4, "A")]
    assert LOWEST_THRESHOLD < min(GRID)


def test_a_span_given_twice_counts_once():
    twice = [(Span(0, 1, "A"), 0.6), (Span(0, 1, "A"), 0.8)]
    for decoding in DECODINGS:
        assert best_spans(twice, decoding, {}) == best_spans(twice[::-1], decoding, {}) == twice[1:]


# Thresholds


def f1(gold, candidates, decoding, thresholds) -> float:
    answers = [{s for s, _ in best_spans(c, decoding, thresholds)} for c in candidates]
    right = sum(len(a & set(g)) for a, g in zip(answers, gold, strict=True))
    size = sum(map(len, answers)) + sum(len(set(g)) for g in gold)
    return 2 * right / size if size else 0.0


@st.composite
def validation(draw, most_texts=4, most=6):
    candidates = draw(st.lists(scored(most), min_size=1, max_size=most_texts))
    gold = [
        [s for s, _ in found if draw(st.booleans())] + draw(st.lists(spans(), max_size=1))
        for found in candidates
    ]
    return gold, candidates


@pytest.mark.parametrize("decoding", DECODINGS)
@given(validation())
def test_one_threshold_equals_trying_all(decoding, data):
    gold, candidates = data
    found = choose_span_thresholds(gold, candidates, decoding, "ABC")
    assert len({*found.values()}) == 1
    tried = {t: f1(gold, candidates, decoding, dict.fromkeys("ABC", t)) for t in GRID}
    nearest = min(round(abs(t - 0.5), 6) for t in GRID if tried[t] == max(tried.values()))
    assert tried[found["A"]] == max(tried.values())
    assert round(abs(found["A"] - 0.5), 6) == nearest


def test_nothing_to_choose_from_leaves_one_half():
    assert choose_span_thresholds([], [], "flat", ["A"]) == {"A": 0.5}
    assert choose_span_thresholds([[Span(0, 1, "A")]], [[]], "nested", ["A"]) == {"A": 0.5}
    with pytest.raises(ValueError, match="zip"):
        choose_span_thresholds([[]], [], "flat", ["A"])
