"""Scores of spans that may nest: a naive count, seqeval on flat data, and numbers by hand."""

import json
import time
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import IOB2

from finetune.data.tag_schemes import spans_to_tags
from finetune.evaluation.metrics import span_scores
from finetune.types import Span

TYPES = ["X", "Y", "art-film"]
BY_DEPTH = {"span_f1_outermost", "span_f1_inner", "inner_gold", "inner_predicted", "inner_found"}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")

span = st.tuples(st.integers(0, 4), st.integers(1, 4), st.sampled_from(TYPES)).map(
    lambda drawn: Span(drawn[0], drawn[0] + drawn[1], drawn[2])
)
sentences = st.lists(st.tuples(st.lists(span, max_size=6), st.lists(span, max_size=6)), max_size=4)


def naive_f1(gold, predicted):
    right = [item for item in predicted if item in gold]
    if not right:
        return 0.0
    precision, recall = len(right) / len(predicted), len(right) / len(gold)
    return 2 * precision * recall / (precision + recall)


def is_inner(item, side):
    """Whether another span of the same sentence and side, a wider one, holds this one."""
    sentence, (start, end, _) = item
    return any(
        number == sentence
        and other.start <= start
        and end <= other.end
        and other.end - other.start > end - start
        for number, other in side
    )


def naive(pairs):
    gold = {(i, item) for i, (right, _) in enumerate(pairs) for item in right}
    predicted = {(i, item) for i, (_, answer) in enumerate(pairs) for item in answer}
    scores = {
        "span_precision_strict": len(gold & predicted) / len(predicted) if predicted else 0.0,
        "span_recall_strict": len(gold & predicted) / len(gold) if gold else 0.0,
        "span_f1_strict": naive_f1(gold, predicted),
    }
    inner_gold = {item for item in gold if is_inner(item, gold)}
    inner_predicted = {item for item in predicted if is_inner(item, predicted)}
    if inner_gold:
        for name, of_gold, of_predicted in (
            ("outermost", gold - inner_gold, predicted - inner_predicted),
            ("inner", inner_gold, inner_predicted),
        ):
            precision = len(of_predicted & gold) / max(1, len(of_predicted))
            recall = len(of_gold & predicted) / max(1, len(of_gold))
            total = precision + recall
            scores[f"span_f1_{name}"] = 2 * precision * recall / total if total else 0.0
        scores["inner_gold"] = len(inner_gold)
        scores["inner_predicted"] = len(inner_predicted)
        scores["inner_found"] = len(inner_gold & predicted)
    for name in sorted({item.label for _, item in gold | predicted}):
        sides = [{item for item in side if item[1].label == name} for side in (gold, predicted)]
        scores[f"span_f1_strict:{name}"] = naive_f1(*sides)
    return scores


@settings(max_examples=300, deadline=None)
@given(sentences)
def test_against_a_naive_count(pairs):
    gold, predicted = [right for right, _ in pairs], [answer for _, answer in pairs]
    scores = span_scores(gold, predicted)
    assert scores == pytest.approx(naive(pairs))
    assert list(scores) == list(naive(pairs))
    assert all(type(value) is float for value in scores.values())
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores


@st.composite
def flat_spans(draw, num_words=8):
    """Spans side by side, with gaps."""
    cuts = sorted(draw(st.sets(st.integers(0, num_words), max_size=num_words)))
    return [
        Span(start, end, draw(st.sampled_from(TYPES)))
        for start, end in zip(cuts, cuts[1:], strict=False)
        if draw(st.booleans())
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(flat_spans(), flat_spans()), min_size=1, max_size=5))
def test_flat_spans_score_as_in_strict_seqeval(pairs):
    gold, predicted = [right for right, _ in pairs], [answer for _, answer in pairs]
    scores = span_scores(gold, predicted)
    tags = [[spans_to_tags(spans, 8, "BIO") for spans in side] for side in (gold, predicted)]
    strict = {"mode": "strict", "scheme": IOB2, "zero_division": 0}
    assert scores["span_f1_strict"] == pytest.approx(f1_score(*tags, **strict))
    assert scores["span_precision_strict"] == pytest.approx(precision_score(*tags, **strict))
    assert scores["span_recall_strict"] == pytest.approx(recall_score(*tags, **strict))
    assert not BY_DEPTH & set(scores)
    types = sorted({span.label for side in (gold, predicted) for spans in side for span in spans})
    by_type = {name: value for name, value in scores.items() if ":" in name}
    assert list(by_type) == [f"span_f1_strict:{name}" for name in types]
    if types:
        each = f1_score(*tags, average=None, **strict)
        assert list(by_type.values()) == pytest.approx(list(each))


def test_depth_by_hand():
    """ORG(0-5) holds LOC(2-3) and, inside the same words twice labelled, two of 3-5."""
    gold = [[Span(0, 5, "ORG"), Span(2, 3, "LOC"), Span(3, 5, "PER"), Span(3, 5, "LOC")], []]
    predicted = [[Span(2, 3, "LOC"), Span(3, 5, "PER"), Span(3, 4, "PER")], [Span(0, 1, "LOC")]]
    scores = span_scores(gold, predicted)
    assert scores["span_f1_strict"] == pytest.approx(2 * 2 / (4 + 4))
    assert (scores["inner_gold"], scores["inner_predicted"], scores["inner_found"]) == (3, 1, 2)
    assert scores["span_f1_inner"] == 0.0  # the one predicted inner span, 3-4, is not gold
    assert scores["span_f1_outermost"] == 0.0  # 0-5 was not found
    better = span_scores(gold, [[*predicted[0], Span(0, 5, "ORG")], []])
    assert better["inner_predicted"] == 3
    assert better["span_f1_inner"] == pytest.approx(2 / 3)
    assert better["span_f1_outermost"] == 1.0


def test_nothing_scores_zero_and_sides_must_agree():
    assert span_scores([], []) == span_scores([[]], [[]]) == {
        "span_precision_strict": 0.0, "span_recall_strict": 0.0, "span_f1_strict": 0.0}  # fmt: skip
    flat = span_scores([[Span(0, 1, "X")]], [[Span(0, 2, "X"), Span(0, 1, "Y")]])
    assert flat["span_f1_strict"] == 0.0 and not BY_DEPTH & set(flat)
    with pytest.raises(ValueError, match="2 gold and 1 predicted sentences"):
        span_scores([[], []], [[]])


def test_a_hundred_thousand_spans_take_seconds():
    starts = list(accumulate([3] * 50))
    one = [Span(s, s + width, "X") for s in starts for width in (1, 2)]
    gold = [one] * 1000
    begin = time.process_time()
    assert span_scores(gold, gold)["span_f1_inner"] == 1.0
    assert time.process_time() - begin < 10
