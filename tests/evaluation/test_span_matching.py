"""Pairs of gold and predicted spans, and what nervaluate and this toolkit's F1 make of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from finetune.evaluation.metrics import total
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.prediction_types.spans import CRITERIA, match_kind, match_spans
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
    "correct": (Span(0, 2, PER), Span(0, 2, PER)),
    "type": (Span(3, 4, LOC), Span(3, 4, ORG)),
    "boundary": (Span(5, 8, ORG), Span(6, 8, ORG)),
    "boundary and type": (Span(9, 11, ORG), Span(10, 12, LOC)),
    "miss": (Span(12, 13, PER), None),
    "false positive": (None, Span(14, 15, LOC)),
}


def test_every_kind():
    gold, predicted = zip(*KINDS_BY_HAND.values(), strict=True)
    found = match_spans(list(filter(None, gold)), list(filter(None, predicted)))
    assert {match_kind(*pair): pair for pair in found} == KINDS_BY_HAND


@given(drawn, drawn)
def test_spans_that_share_words_do_not_both_stay_alone(gold: list[Span], predicted: list[Span]):
    pairs = match_spans(gold, predicted)
    missed = [one for one, other in pairs if one and other is None]
    wrong = [other for one, other in pairs if other and one is None]
    assert not any(set(range(*a[:2])) & set(range(*b[:2])) for a in missed for b in wrong)


def rates(gold: list[list[Span]], predicted: list[list[Span]]) -> dict[str, float]:
    tables = TYPES["spans"].of_values(gold, predicted)
    metrics = tables.type.metrics.items()
    known = {name: metric for name, metric in metrics if name.rsplit("_", 1)[-1] in CRITERIA}
    return {name: float(m.value(total(m.counts, tables))) for name, m in known.items()}


def test_scores_by_hand():
    """One span of each kind, 5 gold and 5 predicted; nervaluate 1.2.1 answers the same."""
    gold, predicted = zip(*KINDS_BY_HAND.values(), strict=True)
    scores = rates([[*filter(None, gold)]], [[*filter(None, predicted)]])
    expected = {"strict": 0.2, "exact": 0.4, "partial": 0.6, "type": 0.4}
    assert {criterion: scores[f"span_f1_{criterion}"] for criterion in CRITERIA} == expected


def test_the_nearest_partner_is_taken():
    gold = [Span(0, 6, PER), Span(2, 4, LOC)]
    predicted = [Span(0, 5, PER), Span(1, 6, PER), Span(2, 4, ORG)]
    found = match_spans(gold, predicted)
    assert found == [(gold[0], predicted[0]), (None, predicted[1]), (gold[1], predicted[2])]


def test_a_long_document_is_matched_in_time():
    """Of 20,000 spans; comparing each with each takes minutes."""
    gold = [Span(3 * number, 3 * number + 2, PER) for number in range(20_000)]
    predicted = [Span(start + 1, end, LOC) for start, end, _ in gold]
    assert match_spans(gold, predicted) == list(zip(gold, predicted, strict=True))


@given(sentences)
def test_kinds_partition_spans(rows: list[tuple[list[Span], list[Span]]]):
    for right, answers in rows:
        matches = match_spans(right, answers)
        assert sorted(one for one, _ in matches if one) == sorted(set(right))
        assert sorted(other for _, other in matches if other) == sorted(set(answers))
        assert match_spans(right[::-1], answers[::-1]) == matches


@given(sentences)
def test_strict_is_span_f1_and_criteria_are_ordered(rows: list[tuple[list[Span], list[Span]]]):
    gold, predicted = (list(side) for side in zip(*rows, strict=True))
    scores = rates(gold, predicted)
    for name in ("precision", "recall", "f1"):
        strict, exact, partial, type = (scores[f"span_{name}_{each}"] for each in CRITERIA)
        assert strict <= exact <= partial <= 1 and strict <= type <= 1
