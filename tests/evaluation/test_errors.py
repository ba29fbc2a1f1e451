"""Error lists: every wrong prediction in one category, with its sentence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.evaluation.alignment import AlignedPredictions
from finetune.evaluation.errors import (
    count_categories,
    excerpt,
    label_errors,
    label_set_errors,
    most_confident,
    number_errors,
    span_errors,
    word_errors,
)
from finetune.evaluation.span_matching import KINDS
from finetune.types import Span, TextExample, TokenExample

WORDS = ("Ana", "Lima", "saw", "New", "York")
SENTENCE = TokenExample(7, WORDS, where="a.conll:3")
TEXTS = [TextExample(index, f"text {index}", where=f"a:{index}") for index in range(3)]


def aligned(kind, gold, predicted, rows=None, examples=None):
    examples = examples or ([SENTENCE] if kind == "tags" else TEXTS[: len(gold)])
    rows = rows or [{}] * len(gold)
    return AlignedPredictions(kind, gold, predicted, examples=examples, rows=rows)


def test_a_boundary_error_with_its_sentence():
    gold, predicted = (
        [[Span(0, 2, "PER"), Span(3, 5, "LOC")]],
        [[Span(0, 2, "PER"), Span(4, 5, "LOC")]],
    )
    (found,) = span_errors([SENTENCE], gold, predicted, [{Span(4, 5, "LOC"): 0.75}])
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


def test_errors_of_a_sentence_share_its_text():
    """A document with thousands of errors holds its text once."""
    run = aligned("tags", [["A"] * 5], [["B"] * 5])
    assert len({id(error.text) for error in word_errors(run)}) == 1
    spans = [[Span(n, n + 1, "A") for n in range(5)]]
    assert len({id(error.text) for error in span_errors([SENTENCE], spans, [[]])}) == 1


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
    found = span_errors([SENTENCE], [gold], [predicted])
    for side, spans, other in (("gold", gold, predicted), ("predicted", predicted, gold)):
        records = [getattr(error, side) for error in found]
        there = [Span(r["start"], r["end"], r["label"]) for r in records if r is not None]
        assert sorted(there) == sorted(set(spans) - set(other))
    assert {error.category for error in found} <= {*KINDS[1:]}  # all but the right ones
    assert sum(count_categories(found).values()) == len(found)


def test_words():
    found = word_errors(
        aligned(
            "tags",
            [["N", "N", "V", "N", "N"]],
            [["N", "V", "V", "D", "V"]],
            [{"scores": [0.9, 0.8, 1.0, 0.6, 0.95]}],
        )
    )
    assert count_categories(found) == {"N taken for V": 2, "N taken for D": 1}
    assert [m.gold["text"] for m in found] == ["Lima", "New", "York"]
    assert [m.gold["text"] for m in most_confident(found, 2)] == ["York", "Lima"]


def test_labels_sets_and_numbers():
    rows = [{"score": score} for score in (0.9, 0.6, 0.7)]
    found = label_errors(aligned("label", ["a", "b", "a"], ["a", "a", "b"], rows))
    assert [(m.category, m.id, m.confidence) for m in found] == [
        ("b taken for a", 1, 0.6),
        ("a taken for b", 2, 0.7),
    ]
    rows = [{"scores": {"x": 0.2, "y": 0.9, "z": 0.6}}]
    found = label_set_errors(aligned("labels", [("x", "y")], [("y", "z")], rows))
    assert [(m.category, m.gold, m.predicted, m.confidence) for m in found] == [
        ("miss", "x", None, pytest.approx(0.8)),
        ("false positive", None, "z", 0.6),
    ]
    found = number_errors(aligned("number", [1.0, 2.0, 3.0], [1.5, 0.0, 3.0]))
    assert [m.id for m in found] == [1, 0, 2]
    assert most_confident(found, 9) == []


def test_excerpts_are_cut():
    words = [f"w{index}" for index in range(40)]
    shown = excerpt(words, 20, 21).split()
    assert (shown[0], shown[-1], len(shown)) == ("…", "…", 27) and "[w20]" in shown
    pair = TextExample(0, "one " * 100, "two")
    (found,) = label_errors(aligned("label", ["a"], ["b"], examples=[pair]))
    assert found.excerpt.endswith("…") and len(found.excerpt) == 201
    assert found.text.endswith("||| two")
