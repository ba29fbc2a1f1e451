"""Candidates equal loops; every span that some window holds is predicted by exactly one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.preprocessing.span_candidates import (
    candidate_index,
    candidates,
    num_candidates,
    predicted_candidates,
)

lengths = st.integers(0, 14)
widths = st.integers(1, 17)


def looped(num_words: int, max_width: int) -> list[list[int]]:
    return [
        [start, end]
        for start in range(num_words)
        for end in range(start + 1, num_words + 1)
        if end - start <= max_width
    ]


@given(lengths, widths)
def test_candidates_equal_loops(num_words, max_width):
    spans = candidates(num_words, max_width)
    assert spans.shape == (num_candidates(num_words, max_width), 2)
    assert spans.dtype == np.int32
    assert spans.tolist() == looped(num_words, max_width)


def test_candidates_are_shared_and_cannot_be_changed():
    assert candidates(5, 3) is candidates(5, 3)
    with pytest.raises(ValueError, match="read-only"):
        candidates(5, 3)[0, 0] = 7


@given(lengths, widths)
def test_place_is_the_index(num_words, max_width):
    spans = candidates(num_words, max_width)
    found = candidate_index(spans[:, 0], spans[:, 1], num_words, max_width)
    assert found.tolist() == list(range(len(spans)))
    for index, (start, end) in enumerate(spans.tolist()):
        number = candidate_index(start, end, num_words, max_width)
        assert number == index
        assert type(number) is int


def best_window(bounds: list[tuple[int, int]], start: int, end: int) -> int | None:
    """The rule word for word: distance to cut edges of every window that holds a span."""
    num_words = max(last for _, last in bounds)
    best, furthest = None, -1.0
    for number, (first, last) in enumerate(bounds):
        if first <= start and end <= last:
            distance = min(
                start - first if first > 0 else float("inf"),
                last - end if last < num_words else float("inf"),
            )
            if distance > furthest:
                best, furthest = number, distance
    return best


def answers(bounds: list[tuple[int, int]], max_width: int) -> list[tuple[int, int, int]]:
    """Every answer given: window, start and end."""
    found = []
    for index, (start, end) in enumerate(bounds):
        mine = predicted_candidates(bounds, index, max_width)
        spans = candidates(end - start, max_width)
        assert mine.shape == (len(spans),)
        assert mine.dtype == bool
        found += [(index, first, last) for first, last in (spans[mine] + start).tolist()]
    return found


def expected(bounds: list[tuple[int, int]], max_width: int) -> list[tuple[int, int, int]]:
    num_words = max(last for _, last in bounds)
    rows = [(best_window(bounds, *span), *span) for span in looped(num_words, max_width)]
    return sorted(row for row in rows if row[0] is not None)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=5), widths)
def test_each_span_that_is_held_is_answered_once(extents, max_width):
    """Any windows, in any order, as long as they begin at word 0 somewhere."""
    bounds = [*map(tuple, extents), (0, 4)]
    assert sorted(answers(bounds, max_width)) == expected(bounds, max_width)
