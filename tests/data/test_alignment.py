import math
import unicodedata
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB2, IOBES, Entities

from finetune.data.tag_schemes import (
    SCHEMES,
    continuation_tag,
    convert_tags,
    detect_scheme,
    illegal_transitions,
    legal_transitions,
    spans_to_tags,
    strict_spans,
    tag_names,
    tags_to_spans,
)
from finetune.data.word_splitting import char_spans_to_words, split_words
from finetune.preprocessing.windows import Window, windows
from finetune.types import Span

ALL = sorted(SCHEMES)
TYPES = ["PER", "art-film", "a.b:c", "O", "B-I"]
quick = settings(max_examples=60, deadline=None)


@st.composite
def flat_spans(draw, types=TYPES, most=6):
    """Spans without overlap, and the number of words around them."""
    end, spans = 0, []
    for _ in range(draw(st.integers(0, most))):
        start = end + draw(st.integers(0, 2))
        end = start + draw(st.integers(1, 4))
        spans.append(Span(start, end, draw(st.sampled_from(types))))
    return spans, end + draw(st.integers(0, 2))


def any_tags(scheme, types=("X", "Y")):
    """Tag sequences of a scheme, illegal ones among them."""
    return st.lists(st.sampled_from(tag_names(types, scheme)), max_size=9)


def merged(spans):
    """What IO can say of spans: neighbours of one type are one."""
    result = []
    for span in spans:
        if result and result[-1].end == span.start and result[-1].label == span.label:
            span = Span(result.pop().start, span.end, span.label)
        result.append(span)
    return result


# Tags and spans


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("IO", "I-X I-X I-X I-X O I-Y I-X"),
        ("IOB1", "I-X I-X I-X B-X O I-Y I-X"),
        ("BIO", "B-X I-X I-X B-X O B-Y B-X"),
        ("BIOES", "B-X I-X E-X S-X O S-Y S-X"),
        ("BILOU", "B-X I-X L-X U-X O U-Y U-X"),
        ("BMES", "B-X M-X E-X S-X O S-Y S-X"),
    ],
)
def test_spelling_by_hand(scheme, expected):
    spans = [Span(0, 3, "X"), Span(3, 4, "X"), Span(5, 6, "Y"), Span(6, 7, "X")]
    assert spans_to_tags(spans, 7, scheme) == expected.split()
    assert spans_to_tags(reversed(spans), 7, scheme) == expected.split()


@pytest.mark.parametrize("scheme", ALL)
@quick
@given(data=flat_spans())
def test_spans_survive_tags(scheme, data):
    spans, num_words = data
    tags = spans_to_tags(spans, num_words, scheme)
    expected = merged(spans) if scheme == "IO" else spans
    assert len(tags) == num_words
    assert tags_to_spans(tags, scheme) == expected == strict_spans(tags, scheme)
    assert illegal_transitions(tags, scheme) == []
    assert set(tags) <= set(tag_names(TYPES, scheme))


@pytest.mark.parametrize("source", ALL)
@pytest.mark.parametrize("target", ALL)
@settings(max_examples=15, deadline=None)
@given(data=flat_spans())
def test_conversion_and_back(source, target, data):
    spans, num_words = data
    spans = merged(spans) if "IO" in (source, target) else spans
    tags = spans_to_tags(spans, num_words, source)
    there = convert_tags(tags, source, target)
    assert tags_to_spans(there, target) == tags_to_spans(tags, source)
    if "IO" not in (source, target):
        assert convert_tags(there, target, source) == tags


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        ("BIO", "I-PER", [(0, 1, "PER")]),
        ("BIO", "I-PER I-PER O", [(0, 2, "PER")]),
        ("BIO", "B-PER I-LOC I-LOC", [(0, 1, "PER"), (1, 3, "LOC")]),
        ("BIO", "B-PER O I-PER", [(0, 1, "PER"), (2, 3, "PER")]),
        ("IOB1", "B-PER I-PER B-PER", [(0, 2, "PER"), (2, 3, "PER")]),
        ("BIOES", "B-PER I-PER", [(0, 2, "PER")]),
        ("BIOES", "E-PER I-PER S-PER", [(0, 1, "PER"), (1, 2, "PER"), (2, 3, "PER")]),
        ("BIOES", "I-PER I-PER E-PER E-PER", [(0, 3, "PER"), (3, 4, "PER")]),
        ("BILOU", "U-PER L-PER O I-PER L-PER", [(0, 1, "PER"), (1, 2, "PER"), (3, 5, "PER")]),
        ("BMES", "M-PER M-LOC E-LOC", [(0, 1, "PER"), (1, 3, "LOC")]),
        ("BIO", "", []),
    ],
)
def test_tolerant_reading_by_hand(scheme, tags, expected):
    assert tags_to_spans(tags.split(), scheme) == expected


@pytest.mark.parametrize(
    ("scheme", "tags", "expected", "illegal"),
    [
        ("BIO", "I-PER O", [], [0]),
        ("BIO", "B-PER I-LOC", [(0, 1, "PER")], [1]),
        ("BIO", "B-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")], []),
        ("IOB1", "O B-PER I-PER", [], [1]),
        ("IOB1", "I-PER B-LOC I-PER", [(0, 1, "PER"), (2, 3, "PER")], [1]),
        ("IOB1", "I-PER B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER"), (2, 3, "PER")], []),
        ("BIOES", "B-PER I-PER", [], [2]),
        ("BIOES", "B-PER O", [], [1]),
        ("BIOES", "B-PER S-PER E-PER", [(1, 2, "PER")], [1, 2]),
        ("BILOU", "B-PER L-PER L-PER U-LOC", [(0, 2, "PER"), (3, 4, "LOC")], [2]),
        ("BMES", "B-PER M-PER E-PER B-PER", [(0, 3, "PER")], [4]),
        ("IO", "I-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")], []),
        ("BIOES", "", [], []),
    ],
)
def test_strict_reading_by_hand(scheme, tags, expected, illegal):
    assert strict_spans(tags.split(), scheme) == expected
    assert illegal_transitions(tags.split(), scheme) == illegal


@pytest.mark.parametrize("scheme", ["IO", "IOB1", "BIO", "BIOES"])
@quick
@given(data=st.data())
def test_tolerant_reading_is_seqevals_default(scheme, data):
    tags = data.draw(any_tags(scheme, ["X", "Y", "art-film", "a.b:c"]))
    expected = [(start, last + 1, kind) for kind, start, last in get_entities(tags)]
    assert tags_to_spans(tags, scheme) == expected


@pytest.mark.parametrize(
    ("scheme", "theirs"), [("BIO", IOB2), ("BIOES", IOBES), ("BILOU", BILOU)], ids=lambda x: str(x)
)
@quick
@given(data=st.data())
def test_strict_reading_is_seqevals_strict(scheme, theirs, data):
    tags = data.draw(any_tags(scheme))
    entities = Entities([tags], theirs).entities[0]
    assert strict_spans(tags, scheme) == [(e.start, e.end, e.tag) for e in entities]


@pytest.mark.parametrize("scheme", ALL)
@quick
@given(data=st.data())
def test_strict_spans_are_among_the_tolerant_ones(scheme, data):
    tags = data.draw(any_tags(scheme))
    tolerant, strict = tags_to_spans(tags, scheme), strict_spans(tags, scheme)
    assert set(strict) <= set(tolerant)
    if not illegal_transitions(tags, scheme):
        assert strict == tolerant


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([Span(0, 2, "X"), Span(1, 3, "Y")], r"\(0, 2, 'X'\) and \(1, 3, 'Y'\) overlap"),
        ([Span(0, 3, "X"), Span(1, 2, "X")], "nested"),
        ([Span(0, 1, "X"), Span(0, 1, "X")], "overlap"),
        ([Span(2, 2, "X")], "empty"),
        ([Span(3, 5, "X")], "the text has 4 words"),
        ([Span(-1, 1, "X")], "out of range"),
        ([Span(0, 1, "")], "no label"),
    ],
)
@pytest.mark.parametrize("scheme", ALL)
def test_spans_that_tags_cannot_say(spans, message, scheme):
    with pytest.raises(ValueError, match=message):
        spans_to_tags(spans, 4, scheme)


@pytest.mark.parametrize("tag", ["E-PER", "NN", "", "B", "B-", "-PER", "BI-PER", "o", "b-PER"])
def test_tags_outside_the_scheme(tag):
    with pytest.raises(ValueError, match="not in the scheme BIO: legal are O, B-TYPE, I-TYPE"):
        tags_to_spans(["O", tag], "BIO")


def test_unknown_schemes():
    with pytest.raises(ValueError, match="Perhaps you meant 'BIO'"):
        tags_to_spans(["O"], "IOB2")
    with pytest.raises(ValueError, match="Perhaps you meant 'BILOU'"):
        tag_names(["X"], "bilou")
    with pytest.raises(ValueError, match="not one of IO, IOB1, BIO"):
        spans_to_tags([], 0, "")


def test_tag_names():
    assert tag_names(["X", "a-b"], "BIOES") == (
        ["O", "B-X", "I-X", "E-X", "S-X", "B-a-b", "I-a-b", "E-a-b", "S-a-b"]
    )
    assert tag_names(["X"], "IO") == ["O", "I-X"]
    assert tag_names([], "BIO") == ["O"]


# Detection


def varied(scheme):
    """Every kind of span: single, double, long, adjacent of the same and of another type."""
    spans = [Span(0, 1, "X"), Span(2, 4, "X"), Span(4, 7, "X"), Span(7, 8, "Y"), Span(8, 9, "Y")]
    return spans_to_tags(spans, 10, scheme)


@pytest.mark.parametrize("scheme", ALL)
@quick
@given(others=st.lists(flat_spans(), max_size=4))
def test_detection_recovers_the_scheme(scheme, others):
    data = [spans_to_tags(spans, num_words, scheme) for spans, num_words in others]
    assert detect_scheme([*data, varied(scheme)]) == scheme
    assert detect_scheme(iter([varied(scheme), *data])) == scheme


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", "BIO"),
        ("I-X O I-X I-Y", "IO"),
        ("B-X O B-Y", "BIO"),
        ("I-X B-X O", "IOB1"),
        ("I-X B-X I-X O I-Y O I-Y B-Y", "IOB1"),
        ("B-X I-X O B-X O B-Y I-Y O I-Y", "BIO"),  # one slip does not make it IOB1
        ("B-X E-X O S-Y", "BIOES"),
        ("S-X O", "BIOES"),
        ("U-X O", "BILOU"),
        ("B-X L-X", "BILOU"),
        ("B-X M-X E-X", "BMES"),
        ("B-art-film I-art-film O", "BIO"),
        ("B-a.b:c O B-a.b:c", "BIO"),
        ("I-X E-X O E-X E-X", "BIOES"),  # IOE: no scheme of ours, read tolerantly
        ("DT NN VBZ PRP$ : `` '' , . -LRB- #", None),
        ("O PER PER LOC", None),
        ("B I O", None),
        ("NN-TL FW-IN O", None),
        ("B-X L-X E-X", None),
        ("B-", None),
        ("b-PER o", None),
        ("", None),
    ],
)
def test_detection_by_hand(tags, expected):
    assert detect_scheme([tags.split(), []]) == expected


def test_ioe_is_read_right_under_the_reported_scheme():
    assert tags_to_spans("I-X E-X E-X O E-X I-Y E-Y".split(), "BIOES") == (
        [(0, 2, "X"), (2, 3, "X"), (4, 5, "X"), (5, 7, "Y")]
    )


# Transitions and pieces


@pytest.mark.parametrize("scheme", ALL)
@quick
@given(data=st.data())
def test_transitions_agree_with_illegal_positions(scheme, data):
    names = tag_names(["X", "a-b"], scheme)
    start, end, matrix = legal_transitions(names, scheme)
    tags = data.draw(st.lists(st.sampled_from(range(len(names))), min_size=1, max_size=6))
    legal = [start[tags[0]], *(matrix[a][b] for a, b in pairwise(tags)), end[tags[-1]]]
    illegal = illegal_transitions([names[tag] for tag in tags], scheme)
    assert [i for i, fine in enumerate(legal) if not fine] == illegal


def test_transitions_by_hand():
    start, end, matrix = legal_transitions(["O", "B-X", "I-X", "B-Y", "I-Y"], "BIO")
    assert start == [True, True, False, True, False]
    assert end == [True] * 5
    assert [row[2] for row in matrix] == [False, True, True, False, False]
    start, end, matrix = legal_transitions(["O", "B-X", "E-X", "S-X"], "BIOES")
    assert start == [True, True, False, True]
    assert end == [True, False, True, True]
    assert matrix[1] == [False, False, True, False]
    plain = ["NN", "PRP$", ":", "``"]
    assert legal_transitions(plain, None) == ([True] * 4, [True] * 4, [[True] * 4] * 4)


@pytest.mark.parametrize("scheme", ALL)
def test_pieces_after_the_first_are_inside(scheme):
    inside = "M-a-b" if scheme == "BMES" else "I-a-b"
    names = tag_names(["a-b"], scheme)
    assert {continuation_tag(tag, scheme) for tag in names} == {"O", inside} <= set(names)
    assert continuation_tag("O", scheme) == "O"


def test_plain_tags_continue_as_themselves():
    assert [continuation_tag(tag, None) for tag in ["NN", ":", "B-X", "O"]] == (
        ["NN", ":", "B-X", "O"]
    )


# Windows


@settings(max_examples=300, deadline=None)
@given(counts=st.lists(st.integers(0, 9), max_size=40), capacity=st.integers(1, 16), data=st.data())
def test_windows(counts, capacity, data):
    overlap = data.draw(st.integers(0, capacity - 1))
    found = windows(counts, capacity, overlap)
    before = [0, *accumulate(counts)]

    def size(start, end):
        return before[end] - before[start]

    owned = [word for w in found for word in range(w.own_start, w.own_end)]
    assert owned == list(range(len(counts)))
    for w in found:
        assert w.start <= w.own_start <= w.own_end <= w.end
        assert size(w.start, w.end) <= capacity or w.end == w.start + 1
        assert w.own_start < w.own_end or not counts
    if size(0, len(counts)) <= capacity:
        assert found == [Window(0, len(counts), 0, len(counts))]
    for left, right in pairwise(found):
        assert left.start < right.start and left.end < right.end and right.start <= left.end
        largest = max(counts)
        if overlap + 3 * largest <= capacity:  # then no word stands in the way of the overlap
            assert overlap <= size(right.start, left.end) < overlap + largest


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    capacity=st.integers(5, 16),
    share=st.floats(0, 0.9),
)
def test_each_word_belongs_where_it_has_most_context(counts, capacity, share):
    found = windows(counts, capacity, int(share * capacity))
    before = [0, *accumulate(counts)]

    def context(word, w):
        left = before[word] - before[w.start] if w.start else before[-1]
        right = before[w.end] - before[word + 1] if w.end < len(counts) else before[-1]
        return min(left, right)

    for w in found:
        for word in range(w.own_start, w.own_end):
            holding = [other for other in found if other.start <= word < other.end]
            assert context(word, w) == max(context(word, other) for other in holding)


def test_windows_by_hand():
    assert windows([1] * 10, 6, 2) == [Window(0, 6, 0, 5), Window(4, 10, 5, 10)]
    assert windows([1] * 8, 4, 0) == [Window(0, 4, 0, 4), Window(4, 8, 4, 8)]
    assert windows([], 4, 1) == [Window(0, 0, 0, 0)]
    assert windows([0, 0], 4, 1) == [Window(0, 2, 0, 2)]
    assert windows([3, 3, 5, 3], 8, 4) == [  # the word of 5 leaves room for 3 before it, not 4
        Window(0, 2, 0, 2), Window(1, 3, 2, 3), Window(2, 4, 3, 4)
    ]  # fmt: skip
    assert windows([9], 4, 1) == [Window(0, 1, 0, 1)]
    assert windows([1, 9, 0, 1], 4, 1) == [
        Window(0, 1, 0, 1), Window(1, 2, 1, 2), Window(2, 4, 2, 4)
    ]  # fmt: skip


def test_windows_of_a_long_text_have_context_on_both_sides():
    found = windows([1] * 5000, 510, 64)
    assert len(found) == 1 + math.ceil((5000 - 510) / (510 - 64))
    for left, right in pairwise(found):
        assert left.end - right.start == 64
        assert left.end - left.own_end == right.own_start - right.start == 32


@pytest.mark.parametrize(("capacity", "overlap"), [(0, 0), (-3, 0), (4, 4), (4, 9), (4, -1)])
def test_windows_that_cannot_be(capacity, overlap):
    with pytest.raises(ValueError, match=f"windows of {capacity} pieces cannot overlap by"):
        windows([1, 2], capacity, overlap)


# Raw text


def invisible(character):
    return character.isspace() or unicodedata.category(character) in ("Cc", "Cf")


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abcé1ሰ", min_size=1, max_size=5), max_size=6))
def test_plain_words_stay_whole(words):
    assert split_words(" ".join(words))[0] == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("An all-rounder, isn't he?", "An|all-rounder|,|isn't|he|?"),
        ("l’été (U.S) 1,458 at 12:30.", "l’été|(|U.S|)|1,458|at|12:30|."),
        ("yes,no a:b -x- 'q' a--b", "yes|,|no|a|:|b|-|x|-|'|q|'|a|-|-|b"),
        ("3.14% $5 a_b", "3.14|%|$|5|a|_|b"),
        ("手机iPhone 日本語で", "手|机|iPhone|日|本|語|で"),
        ("नमस्ते दुनिया।", "नमस्ते|दुनिया|।"),
        ("ሰላም ዓለም።", "ሰላም|ዓለም|።"),
        ("한국어 문장", "한국어|문장"),
        ("กำ", "ก|ำ"),
        ("cafe\u0301 \u0301", "cafe\u0301|\u0301"),
        ("a\u200bb\ufeff c\u00add e\u200d", "a|b|c\u00add|e"),
        ("❤\ufe0f!", "❤\ufe0f|!"),
        ("\x00\u200b \n", ""),
    ],
)
def test_words_by_hand(text, expected):
    assert split_words(text)[0] == (expected.split("|") if expected else [])


def test_character_spans():
    text = "In New York-based Acme Corp. now"
    words, offsets = split_words(text)
    assert words == ["In", "New", "York-based", "Acme", "Corp", ".", "now"]
    spans, num_widened = char_spans_to_words(
        offsets, [(3, 11, "LOC"), (18, 28, "ORG"), (17, 23, "ORG"), (29, 30, "X")]
    )
    assert spans == [Span(1, 3, "LOC"), Span(3, 6, "ORG"), Span(3, 4, "ORG"), Span(6, 7, "X")]
    assert num_widened == 2  # York-based and now; the blank before Acme costs nothing
    assert char_spans_to_words(offsets, []) == ([], 0)


@pytest.mark.parametrize("span", [(1, 2), (2, 2), (0, 0), (3, 1), (3, 9), (-4, 0)])
def test_character_spans_on_no_word(span):
    with pytest.raises(ValueError, match=f"characters {span[0]} to {span[1]} .'X'. touch no word"):
        char_spans_to_words([(0, 1), (2, 3)], [(*span, "X")])


@quick
@given(text=st.text("ab -.中\u0301", min_size=1, max_size=20), data=st.data())
def test_character_spans_cover_what_they_touch(text, data):
    _, offsets = split_words(text)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    touched = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
    if touched:
        (span,), num_widened = char_spans_to_words(offsets, [(start, end, "X")])
        assert list(range(span.start, span.end)) == touched
        assert num_widened == (offsets[span.start][0] < start or offsets[span.end - 1][1] > end)
