"""Raw text to words, spans of characters to spans of words, and how spans of words lie."""

import unicodedata
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.data.spans import (
    chars_to_words,
    crossing_pairs,
    inner_spans,
    multi_label_spans,
    overlapping,
    proposed_width,
    words_to_chars,
)
from finetune.data.word_splitting import split_words
from finetune.types import Span


def invisible(character):
    control = unicodedata.category(character) == "Cc" and ord(character) < 128
    return character.isspace() or unicodedata.category(character) == "Cf" or control


@settings(max_examples=25, deadline=None)
@given(
    st.text(max_size=30)
    | st.text("aé1-'’.,:  \u200b\u200d\u00ad\u0301\u0930\u093f中かก\ud800\x00", max_size=15)
)
def test_words_cover_what_is_visible(text):
    words, offsets = split_words(text)
    assert [text[start:end] for start, end in offsets] == words
    assert all(start < end for start, end in offsets)
    assert all(left[1] <= right[0] for left, right in pairwise(offsets))
    inside = {position for start, end in offsets for position in range(start, end)}
    assert all(invisible(c) for i, c in enumerate(text) if i not in inside)
    assert not any(c.isspace() for word in words for c in word)
    assert not any(all(map(invisible, word)) for word in words)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text("abcé1ሰ", min_size=1, max_size=5), max_size=6))
def test_plain_words_stay_whole(words):
    assert split_words(" ".join(words))[0] == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("An all-rounder, isn't he?", "An|all|-|rounder|,|is|n't|he|?"),
        ("l’été (U.S.) 1,458 at 12:30.", "l|’|été|(|U|.|S|.|)|1|,|458|at|12|:|30|."),
        ("London's CAN’T n't don'tx", "London|'|s|CA|N’T|n|'|t|don|'|tx"),
        ("yes,no a:b -x- 'q' a--b", "yes|,|no|a|:|b|-|x|-|'|q|'|a|-|-|b"),
        ("3.14% $5 a_b", "3|.|14|%|$|5|a|_|b"),
        ("手机iPhone 日本語で", "手|机|iPhone|日|本|語|で"),
        ("नमस्ते दुनिया।", "नमस्ते|दुनिया|।"),
        ("ሰላም ዓለም።", "ሰላም|ዓለም|።"),
        ("한국어 문장", "한국어|문장"),
        ("กำ", "ก|ำ"),
        ("cafe\u0301 \u0301", "cafe\u0301|\u0301"),
        ("a\u200bb\ufeff c\u00add e\u200d", "a|b|c\u00add|e"),
        ("❤\ufe0f!", "❤\ufe0f|!"),
        ("\x00\u200b \n", ""),
        ("fuhr\x94", "fuhr|\x94"),
    ],
)
def test_words_by_hand(text, expected):
    assert split_words(text)[0] == (expected.split("|") if expected else [])


def test_character_spans():
    text = "In New York-based Acme Corp. now"
    words, offsets = split_words(text)
    assert words == ["In", "New", "York", "-", "based", "Acme", "Corp", ".", "now"]
    given = [Span(3, 11, "LOC"), Span(17, 28, "ORG"), Span(12, 16, "X"), Span(29, 30, "X")]
    spans, misaligned = chars_to_words(offsets, given)
    assert spans == [Span(1, 3, "LOC"), Span(5, 8, "ORG")]  # the blank before Acme costs nothing
    assert misaligned == [Span(12, 16, "X"), Span(29, 30, "X")]
    assert words_to_chars(offsets, spans) == [Span(3, 11, "LOC"), Span(18, 28, "ORG")]
    assert chars_to_words(offsets, []) == ([], [])


@pytest.mark.parametrize(
    "text", ["London's", "German-Swiss", "the U.S. today", "e.g. IL-2-induced"]
)
def test_spans_between_punctuation_survive(text):
    _, offsets = split_words(text)
    edges = sorted({position for offset in offsets for position in offset})
    given = [
        Span(a, b, "X") for a in edges for b in edges if a < b and text[a:b].strip() == text[a:b]
    ]
    spans, misaligned = chars_to_words(offsets, given)
    assert words_to_chars(offsets, spans) == given and not misaligned


@pytest.mark.parametrize("span", [(1, 2), (2, 2), (0, 0), (3, 1), (3, 9), (-4, 0)])
def test_character_spans_on_no_word(span):
    with pytest.raises(ValueError, match=f"characters {span[0]} to {span[1]} .'X'. touch no word"):
        chars_to_words([(0, 1), (2, 3)], [Span(*span, "X")])


@settings(max_examples=25, deadline=None)
@given(text=st.text("ab -.中\u0301", min_size=1, max_size=20), data=st.data())
def test_character_spans_cover_what_they_touch(text, data):
    _, offsets = split_words(text)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    touched = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
    if touched:
        spans, misaligned = chars_to_words(offsets, [Span(start, end, "X")])
        first, last = offsets[touched[0]][0], offsets[touched[-1]][1]
        if first < start or last > end:
            assert (spans, misaligned) == ([], [Span(max(first, start), min(last, end), "X")])
        else:
            assert (spans, misaligned) == ([Span(touched[0], touched[-1] + 1, "X")], [])


spans_of_a_sentence = st.lists(
    st.tuples(st.integers(0, 8), st.integers(1, 5), st.sampled_from("XY")).map(
        lambda drawn: Span(drawn[0], drawn[0] + drawn[1], drawn[2])
    ),
    max_size=8,
)


def within(inner: Span, outer: Span) -> bool:
    wider = outer.end - outer.start > inner.end - inner.start
    return wider and outer.start <= inner.start and inner.end <= outer.end


@settings(max_examples=25, deadline=None)
@given(spans_of_a_sentence)
def test_geometry_by_definition(spans):
    every = set(spans)
    assert inner_spans(spans) == {s for s in every if any(within(s, other) for other in every)}
    shared = {(a, b) for a in every for b in every if a < b and a.start < b.end and b.start < a.end}
    crossing = {(a, b) for a, b in shared if a.start < b.start < a.end < b.end}
    assert set(crossing_pairs(spans)) == crossing
    assert len(crossing_pairs(spans)) == len(crossing)
    assert overlapping(every) == bool(shared)
    extents = multi_label_spans(spans)
    assert all(len(same) > 1 and len({s[:2] for s in same}) == 1 for same in extents)
    assert {s for same in extents for s in same} == {
        s for s in every if any(s[:2] == other[:2] and s != other for other in every)
    }


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=400))
def test_proposed_width_is_the_smallest_that_covers_enough(widths):
    held = {limit: sum(width <= limit for width in widths) for limit in range(61)}
    enough = [limit for limit in held if held[limit] * 1000 >= 995 * len(widths)]
    assert proposed_width(Counter(widths)) == enough[0]
    with pytest.raises(ValueError, match="no spans"):
        proposed_width({})
