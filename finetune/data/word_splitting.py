"""Splitting raw text into words, and mapping spans of characters to spans of words."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from finetune.data.dataset import DataError
from finetune.types import Span

# Letters of scripts written without spaces: Thai, Lao, Burmese, Khmer, kana, Bopomofo, Han, Tangut.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00016fe0-\U00018dff\U0001aff0-\U0001b2ff"
    "\U00020000-\U0003ffff]"
)


class _CharacterClasses(dict[int, str]):
    """Maps each character to a one-letter class, so that a regex can be written over classes."""

    def __missing__(self, code: int) -> str:
        character, category = chr(code), unicodedata.category(chr(code))
        if character in "-'’.·‐‑׳״":
            name = "-"  # joins letters and digits
        elif character in ",:":
            name = ","  # joins digits
        elif character in "\u00ad\u200c\u200d":
            name = "j"  # soft hyphen and zero-width joiners: invisible, inside words only
        elif character.isspace() or category in ("Cc", "Cf"):
            name = " "
        elif category[0] == "L" and _UNSPACED.match(character):
            name = "h"
        else:
            name = {"L": "a", "N": "0", "M": "m"}.get(category[0], "x")
        self[code] = name
        return name


_CLASSES = _CharacterClasses()
_WORD = re.compile("[a0](?:[a0m]|j+(?=[a0m])|-(?=[a0])|(?<=0),(?=0))*|[^ j]m*")


def split_words(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the words of a raw text and the characters ``(start, end)`` of each.

    Letters and digits of any script run together, over inner hyphens, apostrophes and dots
    (``all-rounder``, ``don't``, ``U.S``), and over ``,`` and ``:`` between digits (``1,458``). In
    scripts written without spaces each letter is a word, and so is any other visible character;
    combining marks stay with what they follow. White space, control and invisible format
    characters separate words and belong to none.
    """
    offsets = [match.span() for match in _WORD.finditer(text.translate(_CLASSES))]
    return [text[start:end] for start, end in offsets], offsets


def char_spans_to_words(
    offsets: Sequence[tuple[int, int]],
    char_spans: Sequence[tuple[int, int, str]],
    where: Sequence[str] = (),
) -> tuple[list[Span], int]:
    """Map spans ``(start, end, label)`` of characters to the spans of the words that they touch.

    ``offsets`` are the characters ``(start, end)`` of each word, ``where`` the ``file:line`` of
    each span. Also returns the number of spans that were expanded because they began or ended
    inside a word, not counting white space. Raises DataError for a span that touches no word.
    """
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    spans, num_expanded = [], 0
    for index, (start, end, label) in enumerate(char_spans):
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if start >= end or first >= last:
            location = f"{where[index]}: " if where else ""
            raise DataError(
                f"{location}characters {start} to {end} ({label!r}) touch no word of the text: "
                "correct or remove this span."
            )
        num_expanded += starts[first] < start or ends[last - 1] > end
        spans.append(Span(first, last, label))
    return spans, num_expanded
