"""Nesting, crossing, several labels and widths of spans, against brute-force definitions."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.data.spans import (
    crossing_pairs,
    inner_spans,
    multi_label_spans,
    overlapping,
    proposed_width,
)
from finetune.types import Span

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


def test_no_spans_have_no_width():
    with pytest.raises(ValueError, match="no spans"):
        proposed_width({})
