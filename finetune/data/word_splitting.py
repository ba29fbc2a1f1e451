"""Splitting raw text into words, and mapping spans of characters to spans of words."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from finetune.data.dataset import DataError
from finetune.types import Span

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00016fe0-\U00018dff\U0001aff0-\U0001b2ff"
    "\U00020000-\U0003ffff]"
)
"""Letters of scripts written without spaces: Thai, Lao, Burmese, Khmer, kana, Bopomofo, Han,
Tangut."""


class _CharacterClasses(dict[int, str]):
    """Maps each character to a one-letter class, so that a regex can be written over classes."""

    def __missing__(self, code: int) -> str:
        character, category = chr(code), unicodedata.category(chr(code))
        if character in "nN":
            name = "n"
        elif character in "tT":
            name = "t"
        elif character in "'’":
            name = "'"
        elif character in "\u00ad\u200c\u200d":
            name = "j"  # soft hyphen and zero-width joiners: invisible, inside words only
        elif character.isspace() or category == "Cf" or (category == "Cc" and code < 128):
            name = " "  # later control characters are quotes of cp1252, read as latin1
        elif category[0] == "L" and UNSPACED.match(character):
            name = "h"
        else:
            name = {"L": "a", "N": "a", "M": "m"}.get(category[0], "x")
        self[code] = name
        return name


_CLASSES = _CharacterClasses()
_NOT = "n't(?![antm])"  # isn't is the words is and n't
_WORD = re.compile(f"(?<=[ant]){_NOT}|[ant](?:(?!{_NOT})[antm]|j+(?=[antm]))*|[^ j]m*")


def split_words(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the words of a raw text and the characters ``(start, end)`` of each.

    Letters and digits of any script run together. Every punctuation mark and symbol is a word, so
    that spans of characters can begin and end there (``German-Swiss``, ``London's``, ``U.S.``), and
    so is the clitic ``n't``. In scripts written without spaces each letter is a word. Combining
    marks stay with what they follow. White space, control and invisible format characters separate
    words and belong to none.
    """
    offsets = [match.span() for match in _WORD.finditer(text.translate(_CLASSES))]
    return [text[start:end] for start, end in offsets], offsets


def chars_to_words(
    offsets: Sequence[tuple[int, int]], spans: Sequence[Span], where: Sequence[str] = ()
) -> tuple[list[Span], list[Span]]:
    """Map spans of characters to spans of words; white space at their ends does not count.

    ``offsets`` are the characters ``(start, end)`` of each word, ``where`` the ``file:line`` of
    each span. Spans that begin or end inside a word are returned apart, in characters. Raises
    DataError for a span that touches no word.
    """
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    found, unreachable = [], []
    for index, (start, end, label) in enumerate(spans):
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if start >= end or first >= last:
            location = f"{where[index]}: " if where else ""
            raise DataError(
                f"{location}characters {start} to {end} ({label!r}) touch no word of the text: "
                "correct or remove this span."
            )
        if start <= starts[first] and ends[last - 1] <= end:
            found.append(Span(first, last, label))
        else:
            start, end = max(start, starts[first]), min(end, ends[last - 1])
            unreachable.append(Span(start, end, label))
    return found, unreachable


def words_to_chars(offsets: Sequence[tuple[int, int]], spans: Iterable[Span]) -> list[Span]:
    """Return spans of words as spans of characters."""
    return [Span(offsets[start][0], offsets[end - 1][1], label) for start, end, label in spans]
