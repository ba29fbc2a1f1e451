"""Mapping spans of characters to spans of words, and back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from finetune.data.dataset import DataError
from finetune.types import Span


def chars_to_words(
    offsets: Sequence[tuple[int, int]], spans: Sequence[Span], where: Sequence[str] = ()
) -> tuple[list[Span], list[Span]]:
    """Map spans of characters to spans of words; white space at their ends does not count.

    ``offsets`` are the characters ``(start, end)`` of each word, ``where`` the ``file:line`` of
    each span. Spans that begin or end inside a word are returned in a second list, in characters.
    Raises DataError for a span that touches no word.
    """
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    found, unreachable = [], []
    for index, (start, end, label) in enumerate(spans):
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if start >= end or first >= last:
            location = f"{where[index]}: " if where else ""
            raise DataError(
                f"{location}characters {start} to {end} ({label!r}) touch no word of the text: "
                "correct or remove this span."
            )
        if start <= starts[first] and ends[last - 1] <= end:
            found.append(Span(first, last, label))
        else:
            start, end = max(start, starts[first]), min(end, ends[last - 1])
            unreachable.append(Span(start, end, label))
    return found, unreachable


def split_offsets(
    offsets: Iterable[tuple[int, int]], spans: Iterable[Span]
) -> tuple[tuple[int, int], ...]:
    """Return the offsets of the words after splitting them where spans begin or end."""
    edges = sorted({position for start, end, _ in spans for position in (start, end)})
    return tuple(
        piece
        for start, end in offsets
        for piece in pairwise([start, *(edge for edge in edges if start < edge < end), end])
    )


def words_to_chars(offsets: Sequence[tuple[int, int]], spans: Iterable[Span]) -> list[Span]:
    """Return spans of words as spans of characters."""
    return [Span(offsets[start][0], offsets[end - 1][1], label) for start, end, label in spans]
