"""How wide the spans of a data set are in words, and which limit on the width holds them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import count

from finetune.types import UserError

PER_MILLE = 995
"""Spans in a thousand that a proposed limit must hold at least."""


def proposed_width(widths: Iterable[int]) -> int:
    """The smallest limit that holds at least 99.5 % of spans of these widths.

    Raises ValueError if there are none.
    """
    ordered = sorted(widths)
    if not ordered:
        raise UserError("no spans, so there is no width that holds them")
    return ordered[-(-len(ordered) * PER_MILLE // 1000) - 1]


def width_recall(widths: Iterable[int]) -> list[tuple[int, float, int]]:
    """By limit: the share of spans that are at most so wide, and the number of wider ones.

    Limits are 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, … below the widest span, then its width.
    """
    ordered = sorted(widths)
    rows = []
    for limit in _limits():
        if not ordered:
            break
        limit = min(limit, ordered[-1])
        held = bisect_right(ordered, limit)
        rows.append((limit, held / len(ordered), len(ordered) - held))
        if limit == ordered[-1]:
            break
    return rows


def _limits() -> Iterator[int]:
    yield from (1, 2, 3)
    for power in count():
        yield from (part << power for part in (4, 5, 6))
