"""A sentence with its labelled spans marked in it, nested and crossing ones too."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from finetune.reporting.html import Html, element, escaped
from finetune.types import Span, TokenExample

MOST_LETTERS = 100
"""Letters shown of a word, or of what stands between two: a word may be a whole file."""


class Fragment(NamedTuple):
    """A part of a span that crosses no other fragment; ``last`` tells the one that ends it."""

    start: int
    end: int
    span: Span
    last: bool


def fragments(spans: Sequence[Span]) -> list[Fragment]:
    """Spans cut where they cross, outer ones first: any two fragments nest or share no word.

    >>> [f[:2] for f in fragments([Span(0, 3, "A"), Span(2, 5, "B")])]
    [(0, 3), (2, 3), (3, 5)]
    """
    waiting = [(span.start, -span.end, number, span) for number, span in enumerate(spans)]
    heapq.heapify(waiting)
    found: list[Fragment] = []
    ends: list[int] = []
    while waiting:
        start, end, number, span = heapq.heappop(waiting)
        end = -end
        while ends and ends[-1] <= start:
            ends.pop()
        cut = min([end, *ends[-1:]])
        if cut < end:
            heapq.heappush(waiting, (cut, -end, number, span))
        found.append(Fragment(start, cut, span, cut == end))
        ends.append(cut)
    return found


def marked(example: TokenExample, spans: Mapping[Span, str], first: int, last: int) -> Html:
    """Words ``first`` to ``last`` (exclusive) of an example; ``spans`` are marked, each with its
    label, in a style of their own: ``right``, ``missed`` or ``wrong``."""
    inside = [Span(max(s.start, first), min(s.end, last), s.label) for s in spans]
    kinds = dict(zip(inside, spans.values(), strict=True))
    parts = fragments([span for span in inside if span.start < span.end])
    opening: dict[int, list[Fragment]] = {}
    for part in parts:
        opening.setdefault(part.start, []).append(part)
    made = ["… " if first else ""]
    open_parts: list[Fragment] = []
    for place in range(first, last + 1):
        while open_parts and open_parts[-1].end <= place:
            made.append(_closing(open_parts.pop()))
        if place == last:
            break
        if place > first:
            made.append(escaped(clipped(_between(example, place))))
        for part in opening.get(place, ()):
            made.append(f'<mark class="{escaped(kinds[part.span])}">')
            open_parts.append(part)
        made.append(escaped(clipped(example.words[place])))
    made.append(" …" if last < len(example.words) else "")
    return Html("".join(made))


def clipped(text: str) -> str:
    """The beginning of a text that is long for a line.

    >>> clipped("a" * 101) == "a" * 100 + "…"
    True
    """
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"


def _closing(part: Fragment) -> str:
    label = part.span.label if part.last else "\N{RIGHTWARDS ARROW}"
    return f"{element('b', label)}</mark>"


def _between(example: TokenExample, place: int) -> str:
    """What stands between a word and the one before."""
    if example.text is None or example.offsets is None:
        return " "
    return example.text[example.offsets[place - 1][1] : example.offsets[place][0]]
