"""Pairs of gold and predicted spans, and what nervaluate and this toolkit's F1 make of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.evaluation.prediction_types import scores_of
from finetune.evaluation.span_matching import (
    CRITERIA,
    Match,
    _overlapping,
    match_spans,
    scores_by_criterion,
)
from finetune.types import Span

PER, LOC, ORG = "PER", "LOC", "ORG"
drawn = st.lists(
    st.builds(
        lambda start, length, label: Span(start, start + length, label),
        st.integers(0, 6),
        st.integers(1, 4),
        st.sampled_from([PER, LOC]),
    ),
    max_size=6,
)
sentences = st.lists(st.tuples(drawn, drawn), min_size=1, max_size=4)


KINDS_BY_HAND = {
    "correct": Match(Span(0, 2, PER), Span(0, 2, PER)),
    "type": Match(Span(3, 4, LOC), Span(3, 4, ORG)),
    "boundary": Match(Span(5, 8, ORG), Span(6, 8, ORG)),
    "boundary and type": Match(Span(9, 11, ORG), Span(10, 12, LOC)),
    "miss": Match(Span(12, 13, PER), None),
    "false positive": Match(None, Span(14, 15, LOC)),
}


def test_every_kind():
    gold, predicted = zip(*KINDS_BY_HAND.values(), strict=True)
    found = match_spans(list(filter(None, gold)), list(filter(None, predicted)))
    assert {match.category: match for match in found} == KINDS_BY_HAND


@given(drawn, drawn)
def test_every_pair_that_shares_words_is_looked_at(gold: list[Span], predicted: list[Span]):
    shared = [(g, p) for p in predicted for g in gold if set(range(*g[:2])) & set(range(*p[:2]))]
    assert sorted(_overlapping(gold, predicted)) == sorted(shared)


def by_criterion(matches: list[list[Match]]) -> dict[str, dict]:
    kinds = [match.category for sentence in matches for match in sentence]
    return {row["counted"]: row for row in scores_by_criterion(kinds)}


def test_scores_by_hand():
    """One span of each kind, 5 gold and 5 predicted; nervaluate 1.2.1 answers the same."""
    scores = by_criterion([[*KINDS_BY_HAND.values()]])
    counts = {
        criterion: [scores[criterion][name] for name in ("correct", "incorrect", "partial")]
        for criterion in CRITERIA
    }
    assert counts == {
        "strict": [1, 3, 0],
        "exact": [2, 2, 0],
        "partial": [2, 0, 2],
        "type": [2, 2, 0],
    }
    f1 = {criterion: each["f1"] for criterion, each in scores.items()}
    assert f1 == {"strict": 0.2, "exact": 0.4, "partial": 0.6, "type": 0.4}
    assert all(each["missed"] == each["spurious"] == 1 for each in scores.values())


def test_the_nearest_partner_is_taken():
    gold = [Span(0, 6, PER), Span(2, 4, LOC)]
    predicted = [Span(0, 5, PER), Span(1, 6, PER), Span(2, 4, ORG)]
    found = match_spans(gold, predicted)
    assert found == [
        Match(gold[0], predicted[0]),
        Match(None, predicted[1]),
        Match(gold[1], predicted[2]),
    ]


@given(sentences)
def test_kinds_partition_spans(rows: list[tuple[list[Span], list[Span]]]):
    for right, answers in rows:
        matches = match_spans(right, answers)
        assert sorted(m.gold for m in matches if m.gold) == sorted(set(right))
        assert sorted(m.predicted for m in matches if m.predicted) == sorted(set(answers))
        assert match_spans(right[::-1], answers[::-1]) == matches


@given(sentences)
def test_strict_is_span_f1_and_criteria_are_ordered(rows: list[tuple[list[Span], list[Span]]]):
    gold, predicted = zip(*rows, strict=True)
    matches = [match_spans(*sides) for sides in rows]
    scores, expected = by_criterion(matches), scores_of("spans", gold, predicted)
    for name in ("precision", "recall", "f1"):
        assert scores["strict"][name] == pytest.approx(expected[f"span_{name}_strict"])
        assert scores["strict"][name] <= scores["exact"][name] <= scores["partial"][name] <= 1
        assert scores["strict"][name] <= scores["type"][name] <= 1
    for each in scores.values():
        paired = each["correct"] + each["incorrect"] + each["partial"]
        assert paired + each["missed"] == sum(len(set(spans)) for spans in gold)
        assert paired + each["spurious"] == sum(len(set(spans)) for spans in predicted)


def test_nothing_at_all():
    scores = by_criterion([match_spans([], [])])
    assert all(each["f1"] == 0.0 for each in scores.values())
