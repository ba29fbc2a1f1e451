"""Words, tags, spans and characters: every step from one to another, in pure Python.

A tag is ``O`` or a prefix, ``-`` and a type, split at the first ``-`` (``B-art-film`` has the type
``art-film``). The schemes: Ramshaw & Marcus 1995 (IOB1), Tjong Kim Sang & Veenstra 1999 (BIO),
Ratinov & Roth 2009 (BILOU); Jurafsky & Martin, *Speech and Language Processing*, on named entities.
Functions that take a scheme raise ValueError if there is none of that name or a tag is not in it.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from finetune.types import Span, perhaps

SCHEMES = {"IO": "I", "IOB1": "BI", "BIO": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES"}
"""The prefixes of each scheme, in the order begin, inside, end, single; BIO is also called IOB2."""

_ROLES = {**dict(zip("BIES", "BIES", strict=True)), "M": "I", "L": "E", "U": "S"}
_OUTSIDE = ("O", "")


@lru_cache(maxsize=65536)
def _role(tag: str, scheme: str) -> tuple[str, str]:
    """What a tag says, whatever the letters of its scheme: O, B, I, E or S, and the type."""
    letters = _letters(scheme)
    prefix, _, kind = tag.partition("-")
    if tag == "O":
        return _OUTSIDE
    if prefix not in [*letters] or not kind:
        legal = ", ".join(f"{letter}-TYPE" for letter in letters)
        raise ValueError(f"tag {tag!r} is not in the scheme {scheme}: legal are O, {legal}")
    return _ROLES[prefix], kind


def _letters(scheme: str) -> str:
    if scheme not in SCHEMES:
        hint = " Perhaps you meant 'BIO'?" if scheme == "IOB2" else perhaps(scheme, SCHEMES)
        raise ValueError(f"tag scheme {scheme!r} is not one of {', '.join(SCHEMES)}.{hint}")
    return SCHEMES[scheme]


def _continues(before: tuple[str, str], tag: tuple[str, str]) -> bool:
    return before[0] in "BI" and tag[0] in "IE" and before[1] == tag[1]


def _legal(before: tuple[str, str], tag: tuple[str, str], scheme: str) -> bool:
    """Whether a tag may follow another; the edges of a sequence count as O."""
    if scheme == "IO":
        return True
    if scheme == "IOB1":
        return tag[0] != "B" or before[1] == tag[1]
    if scheme == "BIO":
        return tag[0] != "I" or _continues(before, tag)
    return _continues(before, tag) or not (before[0] in "BI" or tag[0] in "IE")


def detect_scheme(tag_sequences: Iterable[Sequence[str]]) -> str | None:
    """The tag scheme of a data set; None if its tags spell no spans (POS, plain labels, no tags).

    Decided by the prefixes in use. B and I are BIO or IOB1, whichever the data break less often; I
    alone is IO, which then reads the same as IOB1. Where nothing tells schemes apart the commoner
    one is named: BIO if all tags are O, BIOES (not BMES) if no span has an inside. I and E without
    B (IOE) are reported as BIOES, whose tolerant reading finds the right spans.
    """
    sequences = list(tag_sequences)
    tags = {tag for sequence in sequences for tag in sequence}
    if not tags or not all(tag == "O" or re.match("[BIESLUM]-.", tag, re.DOTALL) for tag in tags):
        return None
    prefixes = {tag[0] for tag in tags if tag != "O"}
    if prefixes == {"I"}:
        return "IO"
    fitting = [name for name in ("BIO", "BIOES", "BILOU", "BMES") if prefixes <= {*SCHEMES[name]}]
    if fitting[:1] != ["BIO"]:
        return fitting[0] if fitting else None
    bio, iob1 = (sum(len(illegal_transitions(s, n)) for s in sequences) for n in ("BIO", "IOB1"))
    return "IOB1" if iob1 < bio else "BIO"


def tags_to_spans(tags: Sequence[str], scheme: str) -> list[Span]:
    """The spans a tag sequence spells, in order, read tolerantly as the script conlleval does.

    A tag that may not stand where it stands begins a new span, and a span that is not closed ends
    before the next tag (Tjong Kim Sang & Buchholz 2000; also the default mode of seqeval).
    """
    spans, start, before = [], 0, _OUTSIDE
    for position, tag in enumerate((*tags, "O")):
        current = _role(tag, scheme)
        if not _continues(before, current):
            if before != _OUTSIDE:
                spans.append(Span(start, position, before[1]))
            start = position
        before = current
    return spans


def strict_spans(tags: Sequence[str], scheme: str) -> list[Span]:
    """Only those spans that are spelled as the scheme demands (the strict mode of seqeval).

    These are the tolerantly read spans whose tags come out the same when written back.
    """
    written = spans_to_tags(spans := tags_to_spans(tags, scheme), len(tags), scheme)
    return [s for s in spans if written[s.start : s.end] == [*tags[s.start : s.end]]]


def illegal_transitions(tags: Sequence[str], scheme: str) -> list[int]:
    """Positions whose tag may not follow the tag before it (at 0: may not begin a sequence).

    ``len(tags)`` is among them if the last tag may not end a sequence.
    """
    roles = [_OUTSIDE, *(_role(tag, scheme) for tag in tags), _OUTSIDE]
    return [i for i, (before, tag) in enumerate(pairwise(roles)) if not _legal(before, tag, scheme)]


def spans_to_tags(spans: Iterable[Span], num_words: int, scheme: str) -> list[str]:
    """The tags of ``num_words`` words that spell the spans; IO merges neighbours of one type.

    Raises ValueError for spans that are empty, out of range, without a label, or overlapping.
    """
    _letters(scheme)
    tags, before = ["O"] * num_words, Span(0, 0, "")
    for span in sorted(spans):
        _check_span(span, before, num_words)
        touching = before.end == span.start and before.label == span.label
        letters = _spelling(span.end - span.start, scheme, touching)
        tags[span.start : span.end] = [f"{letter}-{span.label}" for letter in letters]
        before = span
    return tags


def _check_span(span: Span, before: Span, num_words: int) -> None:
    if span.start >= span.end:
        raise ValueError(f"{tuple(span)} is empty: a span covers the words start .. end-1")
    if span.start < 0 or span.end > num_words:
        raise ValueError(f"{tuple(span)} is out of range: the text has {num_words} words")
    if not span.label:
        raise ValueError(f"{tuple(span)} has no label")
    if span.start < before.end:
        why = "a word has only one tag, so overlapping or nested spans cannot be written as tags"
        raise ValueError(f"{tuple(before)} and {tuple(span)} overlap: {why}")


def _spelling(length: int, scheme: str, touching: bool) -> str:
    if scheme in ("IO", "IOB1", "BIO"):
        begins = scheme == "BIO" or (scheme == "IOB1" and touching)
        return ("B" if begins else "I") + "I" * (length - 1)
    begin, inside, end, single = SCHEMES[scheme]
    return single if length == 1 else begin + inside * (length - 2) + end


def convert_tags(tags: Sequence[str], source: str, target: str) -> list[str]:
    """The same spans in another scheme; illegal tags come out repaired (read tolerantly)."""
    return spans_to_tags(tags_to_spans(tags, source), len(tags), target)


def tag_names(types: Iterable[str], scheme: str) -> list[str]:
    """All tags of a scheme for these types: ``O``, then the tags of each type in turn."""
    return ["O", *(f"{letter}-{kind}" for kind in types for letter in _letters(scheme))]


def legal_transitions(
    tags: Sequence[str], scheme: str | None
) -> tuple[list[bool], list[bool], list[list[bool]]]:
    """Which tags may begin a sequence, may end it, and (row, column) may follow which.

    For decoding over C tag names: lists of C, C, and C rows of C. Scheme None forbids nothing.
    """
    if scheme is None:
        return [True] * len(tags), [True] * len(tags), [[True] * len(tags) for _ in tags]
    roles = [_role(tag, scheme) for tag in tags]
    start = [_legal(_OUTSIDE, role, scheme) for role in roles]
    end = [_legal(role, _OUTSIDE, scheme) for role in roles]
    return start, end, [[_legal(before, role, scheme) for role in roles] for before in roles]


def continuation_tag(tag: str, scheme: str | None) -> str:
    """The label of a word's second and later pieces, where those are labelled at all.

    Always the inside tag of the type (I; in BMES, M): the word's own tag stands on its first
    piece, and repeating B, S, E, U or L would begin or end the span again. It is among
    ``tag_names`` even where no word has it. ``O``, and any tag under scheme None, stays itself.
    """
    kind = "" if scheme is None else _role(tag, scheme)[1]
    return f"{'M' if scheme == 'BMES' else 'I'}-{kind}" if kind else tag


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
        raise ValueError(f"windows of {capacity} pieces cannot overlap by {overlap}: {legal}")
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
            raise ValueError(f"characters {start} to {end} ({label!r}) touch no word of the text")
        num_widened += starts[first] < start or ends[last - 1] > end
        spans.append(Span(first, last, label))
    return spans, num_widened
