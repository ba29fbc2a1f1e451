"""Splitting raw text into words."""

from __future__ import annotations

import re
import unicodedata

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
    """Split a raw text into words; also give the characters ``(start, end)`` of each.

    Letters and digits of any script run together. Every punctuation mark and symbol is a word, so
    that spans of characters can begin and end there (``German-Swiss``, ``London's``, ``U.S.``), and
    so is the clitic ``n't``. In scripts written without spaces each letter is a word. Combining
    marks stay with their base character. White space, control and invisible format characters
    separate words and belong to no word.
    """
    offsets = [match.span() for match in _WORD.finditer(text.translate(_CLASSES))]
    return [text[start:end] for start, end in offsets], offsets
