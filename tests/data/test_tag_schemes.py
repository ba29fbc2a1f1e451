"""Tags to spans and back, detection of schemes, and transitions; seqeval is the reference."""

import itertools
from itertools import pairwise

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
from finetune.types import Span

ALL = sorted(SCHEMES)
TYPES = ["PER", "art-film", "a.b:c", "O", "B-I"]
quick = settings(max_examples=25, deadline=None)


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
    """Merge adjacent spans of one type, as the scheme IO does."""
    result = []
    for span in spans:
        if result and result[-1].end == span.start and result[-1].label == span.label:
            span = Span(result.pop().start, span.end, span.label)
        result.append(span)
    return result


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
        ("BILOU", "U-PER L-PER O I-PER L-PER", [(0, 1, "PER"), (1, 2, "PER"), (3, 5, "PER")]),
        ("BMES", "M-PER M-LOC E-LOC", [(0, 1, "PER"), (1, 3, "LOC")]),
        ("BIOES", "I-X E-X E-X O I-Y E-Y", [(0, 2, "X"), (2, 3, "X"), (4, 6, "Y")]),  # IOE
    ],
)
def test_tolerant_reading_of_schemes_that_seqeval_lacks(scheme, tags, expected):
    assert tags_to_spans(tags.split(), scheme) == expected


@pytest.mark.parametrize(
    ("scheme", "tags", "expected", "illegal"),
    [
        ("IOB1", "O B-PER I-PER", [], [1]),
        ("IOB1", "I-PER B-LOC I-PER", [(0, 1, "PER"), (2, 3, "PER")], [1]),
        ("IOB1", "I-PER B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER"), (2, 3, "PER")], []),
        ("BMES", "B-PER M-PER E-PER B-PER", [(0, 3, "PER")], [4]),
        ("IO", "I-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")], []),
    ],
)
def test_strict_reading_of_schemes_that_seqeval_lacks(scheme, tags, expected, illegal):
    assert strict_spans(tags.split(), scheme) == expected
    assert illegal_transitions(tags.split(), scheme) == illegal


@pytest.mark.parametrize("scheme", SCHEMES)
def test_legal_tags_alone_are_those_of_their_spans(scheme):
    """So the conversion to the same scheme, which changes no legal tags, repairs all others."""
    names = tag_names(["X", "Y"], scheme)
    for length in range(5):
        for tags in map(list, itertools.product(names, repeat=length)):
            written = spans_to_tags(tags_to_spans(tags, scheme), length, scheme)
            assert (written == tags) == (not illegal_transitions(tags, scheme))
            assert convert_tags(tags, scheme, scheme) == written


@pytest.mark.parametrize("scheme", ["IO", "IOB1", "BIO", "BIOES"])
@quick
@given(data=st.data())
def test_tolerant_reading_is_seqevals_default(scheme, data):
    tags = data.draw(any_tags(scheme, ["X", "Y", "art-film", "a.b:c"]))
    expected = [(start, last + 1, type) for type, start, last in get_entities(tags)]
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
def test_spans_that_tags_cannot_represent(spans, message, scheme):
    with pytest.raises(ValueError, match=message):
        spans_to_tags(spans, 4, scheme)


@pytest.mark.parametrize("tag", ["E-PER", "NN", "", "B", "B-", "-PER", "BI-PER", "o", "b-PER"])
def test_tags_outside_the_scheme(tag):
    with pytest.raises(ValueError, match="not in the scheme BIO: legal are O, B-TYPE, I-TYPE"):
        tags_to_spans(["O", tag], "BIO")


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
    plain = legal_transitions(["NN", "PRP$"], None)
    assert plain == ([True] * 2, [True] * 2, [[True] * 2] * 2)


@pytest.mark.parametrize("scheme", ALL)
def test_subwords_after_the_first_are_inside(scheme):
    inside = "M-a-b" if scheme == "BMES" else "I-a-b"
    names = tag_names(["a-b"], scheme)
    assert {continuation_tag(tag, scheme) for tag in names} == {"O", inside} <= set(names)
    assert continuation_tag("B-X", None) == "B-X"
