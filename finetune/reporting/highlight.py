"""Sentences with highlighted spans, which may nest and cross."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from finetune.types import Span, TokenExample

MAX_WORD_LENGTH = 100
"""Characters shown of a word, and of the text between two words."""


class Fragment(NamedTuple):
    """A part of a span that crosses no other fragment."""

    start: int
    end: int
    span: Span
    last: bool
    """The fragment ends its span."""


class Part(NamedTuple):
    """Plain text, or the start or the end of a highlight."""

    kind: str
    """"text", "start" or "end"."""
    text: str
    """The text, the style of the highlight that starts, or the label of the one that ends."""


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
    """Return words ``first`` to ``last`` (exclusive) with spans highlighted.

    Args:
        example: Sentence with its words.
        styles: Style of each highlighted span: "right", "missed" or "wrong".
        first: First word shown.
        last: End of the words shown.
    """
    clipped = [Span(max(s.start, first), min(s.end, last), s.label) for s in styles]
    style_of = dict(zip(clipped, styles.values(), strict=True))
    starting: dict[int, list[Fragment]] = {}
    for fragment in fragments([span for span in clipped if span.start < span.end]):
        starting.setdefault(fragment.start, []).append(fragment)
    parts = [Part("text", "… ")] if first else []
    open_: list[Fragment] = []
    for index in range(first, last + 1):
        while open_ and open_[-1].end <= index:
            ended = open_.pop()
            label = ended.span.label if ended.last else "\N{RIGHTWARDS ARROW}"
            parts.append(Part("end", label))
        if index == last:
            break
        if index > first:
            parts.append(Part("text", clip(_text_before(example, index))))
        for fragment in starting.get(index, ()):
            parts.append(Part("start", style_of[fragment.span]))
            open_.append(fragment)
        parts.append(Part("text", clip(example.words[index])))
    return [*parts, Part("text", " …")] if last < len(example.words) else parts


def clip(text: str, length: int = MAX_WORD_LENGTH) -> str:
    """Shorten a text to ``length`` characters and an ellipsis.

    >>> clip("a" * 101) == "a" * 100 + "…"
    True
    """
    return text if len(text) <= length else f"{text[:length]}…"


def _text_before(example: TokenExample, index: int) -> str:
    """Return the text between a word and the one before it."""
    if example.text is None or example.offsets is None:
        return " "
    return example.text[example.offsets[index - 1][1] : example.offsets[index][0]]
