"""Words, tags, spans and characters: every step from one to another, in pure Python.

A tag is ``O`` or a prefix, ``-`` and a type, split at the first ``-`` (``B-art-film`` has the type
``art-film``). The schemes: Ramshaw & Marcus 1995 (IOB1), Tjong Kim Sang & Veenstra 1999 (BIO),
Ratinov & Roth 2009 (BILOU); Jurafsky & Martin, *Speech and Language Processing*, on named entities.
Functions that take a scheme raise ValueError if there is none of that name or a tag is not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from finetune.types import Span, UserError, perhaps

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
        raise UserError(f"tag {tag!r} is not in the scheme {scheme}: legal are O, {legal}")
    return _ROLES[prefix], kind


def _letters(scheme: str) -> str:
    if scheme not in SCHEMES:
        hint = " Perhaps you meant 'BIO'?" if scheme == "IOB2" else perhaps(scheme, SCHEMES)
        raise UserError(f"tag scheme {scheme!r} is not one of {', '.join(SCHEMES)}.{hint}")
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
        raise UserError(f"{tuple(span)} is empty: a span covers the words start .. end-1")
    if span.start < 0 or span.end > num_words:
        raise UserError(f"{tuple(span)} is out of range: the text has {num_words} words")
    if not span.label:
        raise UserError(f"{tuple(span)} has no label")
    if span.start < before.end:
        why = "a word has only one tag, so overlapping or nested spans cannot be written as tags"
        raise UserError(f"{tuple(before)} and {tuple(span)} overlap: {why}")


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
