"""Tag schemes: tags to spans and back.

A tag is ``O`` or a prefix, ``-`` and a type, split at the first ``-`` (``B-art-film`` has the type
``art-film``). The schemes: Ramshaw & Marcus 1995 (IOB1), Tjong Kim Sang & Veenstra 1999 (BIO),
Ratinov & Roth 2009 (BILOU); Jurafsky & Martin, *Speech and Language Processing*, on named entities.
Functions that take a scheme raise UserError for an unknown scheme or a tag that is not in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise

from finetune.types import Span, UserError, did_you_mean, quantity

SCHEMES = {"IO": "I", "IOB1": "BI", "BIO": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES"}
"""The prefixes of each scheme, in the order begin, inside, end, single; BIO is also called IOB2."""

SPAN_TAG = re.compile(r"O|[BIESLUM]-\S+")
"""A tag of some span scheme."""

_PREFIXED = re.compile(r"O\Z|[BIESLUM]-.", re.DOTALL)

_ROLES = {"B": "B", "I": "I", "E": "E", "S": "S", "M": "I", "L": "E", "U": "S"}
_OUTSIDE = ("O", "")
DISTINCT_SCHEMES = ("BIO", "BIOES", "BILOU", "BMES")
"""IO and IOB1 have the prefixes of BIO."""


Transitions = Counter[tuple[str, str]]
"""The number of times that each tag follows another."""


@lru_cache(maxsize=65536)
def _role(tag: str, scheme: str) -> tuple[str, str]:
    letters = _letters(scheme)
    prefix, _, span_type = tag.partition("-")
    if tag == "O":
        return _OUTSIDE
    if len(prefix) != 1 or prefix not in letters or not span_type:
        legal = ", ".join(f"{letter}-TYPE" for letter in letters)
        raise UserError(f"tag {tag!r} is not in the scheme {scheme}: legal are O, {legal}")
    return _ROLES[prefix], span_type


def _letters(scheme: str) -> str:
    if scheme not in SCHEMES:
        hint = " Perhaps you meant 'BIO'?" if scheme == "IOB2" else did_you_mean(scheme, SCHEMES)
        raise UserError(f"tag scheme {scheme!r} is not one of {', '.join(SCHEMES)}.{hint}")
    return SCHEMES[scheme]


def _continues(before: tuple[str, str], tag: tuple[str, str]) -> bool:
    return before[1] == tag[1] and before[0] in "BI" and tag[0] in "IE"


@lru_cache(maxsize=65536)
def _may_follow(before_tag: str, after_tag: str, scheme: str) -> bool:
    before, tag = _role(before_tag, scheme), _role(after_tag, scheme)
    if scheme == "IO":
        return True
    if scheme == "IOB1":
        return tag[0] != "B" or before[1] == tag[1]
    if scheme == "BIO":
        return tag[0] != "I" or _continues(before, tag)
    return _continues(before, tag) or not (before[0] in "BI" or tag[0] in "IE")


def detect_scheme(tag_sequences: Iterable[Sequence[str]]) -> str | None:
    """Detect the tag scheme of a data set; None if its tags encode no spans (POS, no tags).

    The prefixes decide. B and I are BIO or IOB1, whichever has fewer illegal transitions. I alone
    is IO, which then gives the same spans as IOB1. If several schemes fit, the first of IO, BIO,
    BIOES, BILOU and BMES is returned: for IOE, BIOES, whose tolerant reading finds its spans.
    """
    return scheme_of(count_transitions(tag_sequences))


def count_transitions(tag_sequences: Iterable[Sequence[str]]) -> Transitions:
    """Count how often each tag follows another; the edges of a sequence count as O."""
    pairs = (pairwise(("O", *tags, "O")) for tags in filter(None, tag_sequences))
    return Counter(chain.from_iterable(pairs))


def count_tags(tag_sequences: Iterable[Sequence[str] | None]) -> tuple[Transitions, Counter[str]]:
    """Count how often each tag follows another, and how often it occurs."""
    num_sequences = 0

    def sequences() -> Iterator[Sequence[str]]:
        nonlocal num_sequences
        for tags in filter(None, tag_sequences):
            num_sequences += 1
            yield tags

    transitions = count_transitions(sequences())
    counts = Counter({"O": -num_sequences})  # without the O at their ends
    for (_, tag), number in transitions.items():
        counts[tag] += number
    return transitions, +counts


def scheme_of(transitions: Transitions) -> str | None:
    """Detect the tag scheme of the sequences whose transitions are counted."""
    tags = {*chain.from_iterable(transitions)}
    if not tags or not all(map(_PREFIXED.match, tags)):
        return None
    prefixes = {tag[0] for tag in tags - {"O"}}
    if prefixes == {"I"}:
        return "IO"
    fitting = [name for name in DISTINCT_SCHEMES if prefixes <= {*SCHEMES[name]}]
    if fitting[:1] != ["BIO"]:
        return fitting[0] if fitting else None
    fewer = num_illegal(transitions, "IOB1") < num_illegal(transitions, "BIO")
    return "IOB1" if fewer else "BIO"


def num_illegal(transitions: Transitions, scheme: str) -> int:
    """Count the illegal transitions; those to the end of a sequence are among them."""
    return sum(count for pair, count in transitions.items() if not _may_follow(*pair, scheme))


def tags_to_spans(tags: Sequence[str], scheme: str) -> list[Span]:
    """Read the spans of a tag sequence in order, tolerantly as the script conlleval does.

    An illegal tag begins a new span, and a span that is not closed ends before the next tag (Tjong
    Kim Sang & Buchholz 2000; also the default mode of seqeval).

    >>> tags_to_spans(["B-PER", "I-PER", "O", "I-LOC"], "BIO")
    [Span(start=0, end=2, label='PER'), Span(start=3, end=4, label='LOC')]
    """
    _letters(scheme)
    spans, start, before = [], 0, _OUTSIDE
    for position, tag in enumerate((*tags, "O")):
        if tag == "O" and before is _OUTSIDE:
            continue
        current = _OUTSIDE if tag == "O" else _role(tag, scheme)
        if _continues(before, current):
            before = current
            continue
        if before is not _OUTSIDE:
            spans.append(Span(start, position, before[1]))
        start, before = position, current
    return spans


def strict_spans(tags: Sequence[str], scheme: str) -> list[Span]:
    """Read only the spans whose tags follow the scheme (the strict mode of seqeval)."""
    written = spans_to_tags(spans := tags_to_spans(tags, scheme), len(tags), scheme)
    return [s for s in spans if written[s.start : s.end] == [*tags[s.start : s.end]]]


def illegal_transitions(tags: Sequence[str], scheme: str) -> list[int]:
    """Find the positions whose tag may not follow the tag before (at 0: may not begin).

    ``len(tags)`` is among them if the last tag may not end a sequence.
    """
    pairs = enumerate(pairwise(("O", *tags, "O")))
    return [i for i, (before, tag) in pairs if not _may_follow(before, tag, scheme)]


def spans_to_tags(spans: Iterable[Span], num_words: int, scheme: str) -> list[str]:
    """Write spans as the tags of ``num_words`` words; IO merges adjacent spans of one type.

    Raises UserError for spans that are empty, out of range, without a label, or overlapping.
    """
    _letters(scheme)
    tags, before = ["O"] * num_words, Span(0, 0, "")
    for span in sorted(spans):
        if not 0 <= span.start < span.end <= num_words or not span.label:
            why = (
                f"is empty, out of range (the text has {quantity(num_words, 'word')}) or has no "
                "label"
            )
            raise UserError(f"{tuple(span)} {why}")
        if span.start < before.end:
            pair = f"{tuple(before)} and {tuple(span)}"
            raise UserError(f"{pair} overlap: tags cannot represent overlapping or nested spans")
        touching = before.end == span.start and before.label == span.label
        letters = _prefixes(span.end - span.start, scheme, touching)
        tags[span.start : span.end] = [f"{letter}-{span.label}" for letter in letters]
        before = span
    return tags


def _prefixes(length: int, scheme: str, touching: bool) -> str:
    if scheme in ("IO", "IOB1", "BIO"):
        begins = scheme == "BIO" or (scheme == "IOB1" and touching)
        return ("B" if begins else "I") + "I" * (length - 1)
    begin, inside, end, single = list(SCHEMES[scheme])
    return single if length == 1 else begin + inside * (length - 2) + end


def convert_tags(tags: Sequence[str], source: str, target: str) -> list[str]:
    """Convert tags to another scheme with the same spans; repair illegal tags."""
    pairs = {*pairwise(("O", *tags, "O"))}
    if source == target and all(_may_follow(*pair, source) for pair in pairs):
        return list(tags)
    return spans_to_tags(tags_to_spans(tags, source), len(tags), target)


def tag_names(types: Iterable[str], scheme: str) -> list[str]:
    """List all tags of a scheme for span types: ``O``, then the tags of each type in turn."""
    return ["O", *(f"{letter}-{name}" for name in types for letter in _letters(scheme))]


def legal_transitions(
    tags: Sequence[str], scheme: str | None
) -> tuple[list[bool], list[bool], list[list[bool]]]:
    """Find the tags that may begin [C] and end [C] a sequence, and follow each other [C][C].

    Entry ``[i][j]`` allows tag j after tag i. Scheme None allows everything.
    """
    if scheme is None:
        return [True] * len(tags), [True] * len(tags), [[True] * len(tags) for _ in tags]
    start = [_may_follow("O", tag, scheme) for tag in tags]
    end = [_may_follow(tag, "O", scheme) for tag in tags]
    return start, end, [[_may_follow(before, tag, scheme) for tag in tags] for before in tags]


def continuation_tag(tag: str, scheme: str | None) -> str:
    """The label of the second and later subwords of a word, if they are labeled at all.

    The label is the inside tag of the type, because repeating B, S, E, U or L would begin or end
    the span again. ``O``, and any tag under scheme None, is unchanged.
    """
    span_type = "" if scheme is None else _role(tag, scheme)[1]
    return f"{'M' if scheme == 'BMES' else 'I'}-{span_type}" if span_type else tag
