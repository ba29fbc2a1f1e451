"""Geometry of spans: nesting, crossing, several labels, and widths in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from finetune.types import Span, UserError

COVERED_PER_MILLE = 995
"""Spans in a thousand that a proposed width must cover at least."""


def overlapping(spans: Iterable[Span]) -> bool:
    """Return whether any two of the spans share a word."""
    return any(right.start < left.end for left, right in pairwise(sorted(spans)))


def inner_spans(spans: Iterable[Span]) -> set[Span]:
    """Return the spans inside a wider span; spans of the same words are not inside each other."""
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
    """Return the pairs of spans that overlap without one being inside the other."""
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
    """Return the groups of spans that cover the same words with different labels, in order."""
    groups = defaultdict(list)
    for span in sorted(set(spans)):
        groups[span.start, span.end].append(span)
    return [group for group in groups.values() if len(group) > 1]


def proposed_width(widths: Mapping[int, int]) -> int:
    """Return the smallest maximum width that covers at least 99.5 % of spans of these widths.

    ``widths`` has the number of spans of each width.
    """
    if not widths:
        raise UserError("no spans, so there is no width that covers them")
    ordered = sorted(widths)
    covered = accumulate(widths[width] for width in ordered)
    needed = sum(widths.values()) * COVERED_PER_MILLE
    return next(w for w, n in zip(ordered, covered, strict=True) if n * 1000 >= needed)
