"""Error lists: every wrong prediction in one category, with its sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.evaluation.error_analysis import (
    ErrorCase,
    analyze_predictions,
    count_categories,
    excerpt,
    most_confident,
)
from finetune.evaluation.kinds import KINDS
from finetune.evaluation.span_matching import KINDS as CATEGORIES
from finetune.types import (
    Span,
    SpanPrediction,
    TextExample,
    TextPrediction,
    TokenExample,
    TokenPrediction,
)

WORDS = ("Ana", "Lima", "saw", "New", "York")
SENTENCE = TokenExample(7, WORDS, where="a.conll:3")
TEXTS = [TextExample(index, f"text {index}", where=f"a:{index}") for index in range(3)]


def span_errors(gold: list[Span], predicted: list[Span], scores=None) -> list[ErrorCase]:
    scores = scores or (0.5,) * len(predicted)
    examples = [replace(SENTENCE, spans=tuple(gold))]
    prediction = SpanPrediction(7, WORDS, tuple(predicted), scores)
    return analyze_predictions(KINDS["spans"].scored(examples, [prediction])).errors


def word_errors(gold: str, predicted: str, scores=()) -> list[ErrorCase]:
    examples = [replace(SENTENCE, tags=tuple(gold))]
    prediction = TokenPrediction(7, WORDS, tuple(predicted), scores)
    return analyze_predictions(KINDS["plain tags"].scored(examples, [prediction])).errors


def text_errors(kind: str, gold: list, predictions: list, texts=TEXTS) -> list[ErrorCase]:
    examples = [replace(text, label=label) for text, label in zip(texts, gold, strict=False)]
    return analyze_predictions(KINDS[kind].scored(examples, predictions)).errors


def test_a_boundary_error_with_its_sentence():
    gold = [Span(0, 2, "PER"), Span(3, 5, "LOC")]
    (found,) = span_errors(gold, [Span(0, 2, "PER"), Span(4, 5, "LOC")], (0.5, 0.75))
    assert found.record() == {
        "category": "boundary",
        "id": 7,
        "where": "a.conll:3",
        "gold": {"start": 3, "end": 5, "label": "LOC", "text": "New York"},
        "predicted": {"start": 4, "end": 5, "label": "LOC", "text": "York"},
        "confidence": 0.75,
        "text": "Ana Lima saw New York",
    }
    assert found.excerpt == "Ana Lima saw New [York]"


drawn = st.lists(
    st.builds(
        lambda start, length, label: Span(start, min(5, start + length), label),
        st.integers(0, 4),
        st.integers(1, 3),
        st.sampled_from("AB"),
    ),
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(drawn, drawn)
def test_every_wrong_span_is_in_one_error(gold: list[Span], predicted: list[Span]):
    found = span_errors(gold, predicted)
    for side, spans, other in (("gold", gold, predicted), ("predicted", predicted, gold)):
        records = [getattr(error.mistake, side) for error in found]
        there = [Span(r["start"], r["end"], r["label"]) for r in records if r is not None]
        assert sorted(there) == sorted(set(spans) - set(other))
    assert {error.mistake.category for error in found} <= {
        *CATEGORIES[1:]
    }  # all but the right ones
    assert sum(count_categories(found).values()) == len(found)


def test_words():
    found = word_errors("NNVNN", "NVVDV", (0.9, 0.8, 1.0, 0.6, 0.95))
    assert count_categories(found) == {"N taken for V": 2, "N taken for D": 1}
    assert [m.mistake.gold["text"] for m in found] == ["Lima", "New", "York"]
    assert [m.mistake.gold["text"] for m in most_confident(found, 2)] == ["York", "Lima"]


def test_labels_sets_and_numbers():
    answers = zip("aab", (0.9, 0.6, 0.7), strict=True)
    found = text_errors("label", ["a", "b", "a"], [TextPrediction(0, *each) for each in answers])
    assert [(m.mistake.category, m.example.id, m.mistake.confidence) for m in found] == [
        ("b taken for a", 1, 0.6),
        ("a taken for b", 2, 0.7),
    ]
    answer = TextPrediction(0, ("y", "z"), scores={"x": 0.2, "y": 0.9, "z": 0.6})
    found = text_errors("labels", [("x", "y")], [answer])
    assert [m.mistake[:4] for m in found] == [
        ("miss", "x", None, pytest.approx(0.8)),
        ("false positive", None, "z", 0.6),
    ]
    numbers = [TextPrediction(0, number) for number in (1.5, 0.0, 3.0)]
    found = text_errors("number", [1.0, 2.0, 3.0], numbers)
    assert [m.example.id for m in found] == [1, 0, 2]
    assert most_confident(found, 9) == []


def test_excerpts_are_cut():
    words = [f"w{index}" for index in range(40)]
    shown = excerpt(words, 20, 21).split()
    assert (shown[0], shown[-1], len(shown)) == ("…", "…", 27) and "[w20]" in shown
    pair = [TextExample(0, "one " * 100, "two")]
    (found,) = text_errors("label", ["a"], [TextPrediction(0, "b")], pair)
    assert found.excerpt.endswith("…") and len(found.excerpt) == 201
    assert found.record()["text"].endswith("||| two")
