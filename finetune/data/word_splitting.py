"""Split raw text into words, and map spans of characters to spans of words."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from finetune.types import Span, UserError

# Letters of scripts written without spaces: Thai, Lao, Burmese, Khmer, kana, Bopomofo, Han, Tangut.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00016fe0-\U00018dff\U0001aff0-\U0001b2ff"
    "\U00020000-\U0003ffff]"
)


class _Kinds(dict[int, str]):
    """The kind of each character as one letter, so that a pattern can be written over kinds."""

    def __missing__(self, code: int) -> str:
        character, category = chr(code), unicodedata.category(chr(code))
        if character in "-'’.·‐‑׳״":
            kind = "-"  # joins letters and digits
        elif character in ",:":
            kind = ","  # joins digits
        elif character in "\u00ad\u200c\u200d":
            kind = "j"  # soft hyphen and zero-width joiners: invisible, inside words only
        elif character.isspace() or category in ("Cc", "Cf"):
            kind = " "
        elif category[0] == "L" and _UNSPACED.match(character):
            kind = "h"
        else:
            kind = {"L": "a", "N": "0", "M": "m"}.get(category[0], "x")
        self[code] = kind
        return kind


_KINDS = _Kinds()


_WORD = re.compile("[a0](?:[a0m]|j+(?=[a0m])|-(?=[a0])|(?<=0),(?=0))*|[^ j]m*")


def split_words(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """The words of a raw text and the characters ``(start, end)`` that each takes up in it.

    Letters and digits of any script run together, over inner hyphens, apostrophes and dots
    (``all-rounder``, ``don't``, ``U.S``), and over ``,`` and ``:`` between digits (``1,458``). In
    scripts written without spaces each letter is a word, and so is any other visible character;
    combining marks stay with what they follow. White space, control and invisible format
    characters separate words and belong to none.
    """
    offsets = [match.span() for match in _WORD.finditer(text.translate(_KINDS))]
    return [text[start:end] for start, end in offsets], offsets


def char_spans_to_words(
    offsets: Sequence[tuple[int, int]], char_spans: Iterable[tuple[int, int, str]]
) -> tuple[list[Span], int]:
    """Each ``(start, end, label)`` in characters as the span of the words that it touches.

    The second value counts spans that grew because an end lay inside a word (white space around a
    span costs nothing). Raises ValueError for a span that touches no word.
    """
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    spans, num_widened = [], 0
    for start, end, label in char_spans:
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if start >= end or first >= last:
            raise UserError(f"characters {start} to {end} ({label!r}) touch no word of the text")
        num_widened += starts[first] < start or ends[last - 1] > end
        spans.append(Span(first, last, label))
    return spans, num_widened
