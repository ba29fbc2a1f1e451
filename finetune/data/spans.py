"""Spans of words: nesting, crossing, several labels, widths, and positions in characters."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from finetune.types import DataError, Span, UserError

COVERED_PER_MILLE = 995
"""Spans in a thousand that a proposed width must cover at least."""


def overlapping(spans: Iterable[Span]) -> bool:
    """True if any two of the spans share a word."""
    return any(right.start < left.end for left, right in pairwise(sorted(spans)))


def inner_spans(spans: Iterable[Span]) -> set[Span]:
    """Find the spans inside a wider span; spans of the same words are not inside each other."""
    labels = defaultdict(list)
    for span in spans:
        labels[span.start, -span.end].append(span)
    inner: set[Span] = set()
    reach = 0  # the furthest end of spans that begin no later and cover other words
    for (_, minus_end), same in sorted(labels.items()):
        if -minus_end <= reach:
            inner.update(same)
        reach = max(reach, -minus_end)
    return inner


def crossing_pairs(spans: Iterable[Span]) -> list[tuple[Span, Span]]:
    """Find the pairs of spans that overlap without one being inside the other."""
    pairs = []
    open_spans: list[Span] = []
    for span in sorted(set(spans)):
        open_spans = [earlier for earlier in open_spans if earlier.end > span.start]
        pairs += [
            (earlier, span)
            for earlier in open_spans
            if earlier.start < span.start and earlier.end < span.end
        ]
        open_spans.append(span)
    return pairs


def multi_label_spans(spans: Iterable[Span]) -> list[Sequence[Span]]:
    """Group spans that cover the same words with different labels, in order."""
    groups = defaultdict(list)
    for span in sorted(set(spans)):
        groups[span.start, span.end].append(span)
    return [group for group in groups.values() if len(group) > 1]


def proposed_width(widths: Mapping[int, int]) -> int:
    """Compute the smallest maximum width that covers at least 99.5 % of spans of these widths.

    ``widths`` has the number of spans of each width.
    """
    if not widths:
        raise UserError("no spans, so there is no width that covers them")
    ordered = sorted(widths)
    covered = accumulate(widths[width] for width in ordered)
    needed = sum(widths.values()) * COVERED_PER_MILLE
    return next(w for w, n in zip(ordered, covered, strict=True) if n * 1000 >= needed)


def chars_to_words(
    offsets: Sequence[tuple[int, int]], spans: Sequence[Span], where: Sequence[str] = ()
) -> tuple[list[Span], list[Span]]:
    """Map spans of characters to spans of words; white space at their ends does not count.

    ``offsets`` are the characters ``(start, end)`` of each word, ``where`` the ``file:line`` of
    each span. Spans that begin or end inside a word are returned in a second list, in characters.
    Raises DataError for a span that touches no word.
    """
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    word_spans, misaligned = [], []
    for index, (start, end, label) in enumerate(spans):
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if start >= end or first >= last:
            location = f"{where[index]}: " if where else ""
            raise DataError(
                f"{location}characters {start} to {end} ({label!r}) touch no word of the text: "
                "correct or remove this span."
            )
        if start <= starts[first] and ends[last - 1] <= end:
            word_spans.append(Span(first, last, label))
        else:
            start, end = max(start, starts[first]), min(end, ends[last - 1])
            misaligned.append(Span(start, end, label))
    return word_spans, misaligned


def split_offsets(
    offsets: Iterable[tuple[int, int]], spans: Iterable[Span]
) -> tuple[tuple[int, int], ...]:
    """Split words where spans begin or end, and give the offsets of the pieces."""
    edges = sorted({position for start, end, _ in spans for position in (start, end)})
    return tuple(
        piece
        for start, end in offsets
        for piece in pairwise([start, *(edge for edge in edges if start < edge < end), end])
    )


def words_to_chars(offsets: Sequence[tuple[int, int]], spans: Iterable[Span]) -> list[Span]:
    """Convert spans of words to spans of characters."""
    return [Span(offsets[start][0], offsets[end - 1][1], label) for start, end, label in spans]
