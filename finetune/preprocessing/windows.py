"""Split long texts into windows of subwords; every word is a core word of exactly one window."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from finetune.types import UserError


class Window(NamedTuple):
    """Words ``start .. end-1`` of a long text; it answers for ``own_start .. own_end-1``."""

    start: int
    end: int
    own_start: int
    own_end: int


def windows(piece_counts: Sequence[int], capacity: int, overlap: int) -> list[Window]:
    """Windows over words of so many pieces each; every word is owned by exactly one window.

    A window holds at most ``capacity`` pieces; neighbours share ``overlap`` pieces or slightly
    more, less only where the next word would not fit otherwise. A shared word goes to the window
    in which it is further from the cut edge. A word longer than ``capacity`` gets a window alone,
    and its pieces are the caller's to cut. A window that would own nothing is left out; no words
    give one empty window. Raises ValueError unless ``0 <= overlap < capacity``.
    """
    if not 0 <= overlap < capacity:
        legal = f"overlap must be 0 to {capacity - 1}" if capacity > 0 else "give them at least 1"
        raise UserError(f"windows of {capacity} pieces cannot overlap by {overlap}: {legal}")
    before = [0, *accumulate(piece_counts)]  # pieces before each word
    bounds = [(0, _reach(before, 0, capacity))]
    while (end := bounds[-1][1]) < len(piece_counts):
        latest = bisect_right(before, before[end] - overlap) - 1  # the last start that overlaps
        earliest = bisect_left(before, before[end + 1] - capacity)  # the first that fits word end
        start = min(max(latest, earliest), end)
        bounds.append((start, _reach(before, start, capacity)))
    inner = [_cut(before, right[0], left[1]) for left, right in pairwise(bounds)]
    owned = pairwise([0, *inner, len(piece_counts)])
    found = [Window(*bound, *own) for bound, own in zip(bounds, owned, strict=True)]
    return [w for w in found if w.own_start < w.own_end] or [Window(0, 0, 0, 0)]


def _reach(before: Sequence[int], start: int, capacity: int) -> int:
    """The end of the longest window from ``start``: one word at least, if there is one."""
    fitting = bisect_right(before, before[start] + capacity) - 1
    return min(max(fitting, start + 1), len(before) - 1)


def _cut(before: Sequence[int], start: int, end: int) -> int:
    """The first word of an overlap whose middle lies nearer to its end than to its start."""
    edges = before[start] + before[end]
    return next((w for w in range(start, end) if before[w] + before[w + 1] > edges), end)
