"""How the spans of a text stand to each other: one inside another, across, on the same words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from finetune.types import Span


def overlapping(spans: Iterable[Span]) -> bool:
    """Whether any two of the spans share a word."""
    return any(right.start < left.end for left, right in pairwise(sorted(spans)))


def inner_spans(spans: Iterable[Span]) -> set[Span]:
    """The spans that lie within another, wider one; two labels of one extent are not inside."""
    labels = defaultdict(list)
    for span in spans:
        labels[span.start, -span.end].append(span)
    inner: set[Span] = set()
    reach = 0  # the furthest end of extents that begin no later and are not the same
    for (_, minus_end), same in sorted(labels.items()):
        if -minus_end <= reach:
            inner.update(same)
        reach = max(reach, -minus_end)
    return inner


def crossing_pairs(spans: Iterable[Span]) -> list[tuple[Span, Span]]:
    """Pairs of spans that share words, each with words of its own on one side."""
    pairs = []
    open_spans: list[Span] = []
    for span in sorted(set(spans)):
        open_spans = [earlier for earlier in open_spans if earlier.end > span.start]
        pairs += [(earlier, span) for earlier in open_spans
                  if earlier.start < span.start and earlier.end < span.end]  # fmt: skip
        open_spans.append(span)
    return pairs


def shared_extents(spans: Iterable[Span]) -> list[Sequence[Span]]:
    """The spans of each extent that has more than one label, in order."""
    extents = defaultdict(list)
    for span in sorted(set(spans)):
        extents[span.start, span.end].append(span)
    return [same for same in extents.values() if len(same) > 1]
