"""Sentences with highlighted spans, which may nest and cross."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from finetune.types import Span, TokenExample

MAX_WORD_LENGTH = 100
"""Characters shown of a word, and of the text between two words."""


class Fragment(NamedTuple):
    """A part of a span that crosses no other fragment; ``last`` is True for its last part."""

    start: int
    end: int
    span: Span
    last: bool


Part = tuple[str, str]
"""A "text", or the "start" or the "end" of a highlight, with the text, the style or the label."""


def fragments(spans: Sequence[Span]) -> list[Fragment]:
    """Cut spans where they cross, so that any two fragments nest or share no word.

    Outer fragments come first.

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


def highlight(
    example: TokenExample, styles: Mapping[Span, str], first: int, last: int
) -> list[Part]:
    """Return words ``first`` to ``last`` (exclusive) of a sentence with spans highlighted.

    The style of a span is "right", "missed" or "wrong".
    """
    clipped = {Span(max(s.start, first), min(s.end, last), s.label): styles[s] for s in styles}
    starting = defaultdict(list)
    for fragment in fragments([span for span in clipped if span.start < span.end]):
        starting[fragment.start].append(fragment)
    parts: list[Part] = [("text", "… ")] if first else []
    open_: list[Fragment] = []
    for index in range(first, last + 1):
        while open_ and open_[-1].end <= index:
            ended = open_.pop()
            parts.append(("end", ended.span.label if ended.last else "\N{RIGHTWARDS ARROW}"))
        if index == last:
            break
        if index > first:
            space = " "
            if example.text is not None and example.offsets is not None:
                space = example.text[example.offsets[index - 1][1] : example.offsets[index][0]]
            parts.append(("text", clip(space)))
        for fragment in starting[index]:
            parts.append(("start", clipped[fragment.span]))
            open_.append(fragment)
        parts.append(("text", clip(example.words[index])))
    return [*parts, ("text", " …")] if last < len(example.words) else parts


def clip(text: str, length: int = MAX_WORD_LENGTH) -> str:
    """Shorten a text to ``length`` characters and an ellipsis."""
    return text if len(text) <= length else f"{text[:length]}…"
