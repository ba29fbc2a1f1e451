"""The spans that seqeval finds in tags, on which all scores of tags rest.

seqeval's own score functions are slow on large data: here it reads each distinct stretch of tags
between two O once. Several counts look at the same sentences, which are kept, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from finetune.data.tag_schemes import require_scheme, spans_to_tags, strict_spans
from finetune.types import Span

_PREFIXES = {"L": "E", "U": "S", "M": "I"}
"""BIOES prefixes for BILOU and BMES, as seqeval's default mode knows no others."""


def seqeval_spans(tags: Sequence[str], scheme: str, strict: bool) -> tuple[Span, ...]:
    """Return the spans of tags by the default mode of seqeval, or by its strict mode.

    seqeval's strict mode has no IO, and reads some illegal IOB1 tags as spans: spans of these
    schemes are read strictly here and converted to BIO.

    Raises:
        UserError: A tag is not in the scheme.
    """
    return _spans_of_sentence(tuple(tags), scheme, strict)


@lru_cache(maxsize=65536)
def _spans_of_sentence(tags: tuple[str, ...], scheme: str, strict: bool) -> tuple[Span, ...]:
    found, start = [], 0
    for outside, words in groupby(tags, "O".__eq__):
        stretch = tuple(words)
        if not outside:
            spans = _spans_of_stretch(stretch, scheme, strict)
            found += [Span(start + first, start + end, label) for first, end, label in spans]
        start += len(stretch)
    return tuple(found)


@lru_cache(maxsize=65536)
def _spans_of_stretch(tags: tuple[str, ...], scheme: str, strict: bool) -> tuple[Span, ...]:
    from seqeval.metrics.sequence_labeling import get_entities  # loads scikit-learn
    from seqeval.scheme import IOB2, IOBES, Entities

    require_scheme(tags, scheme)
    if not strict:
        places = [(start, last + 1, name) for name, start, last in get_entities(_for_seqeval(tags))]
    else:
        if scheme in ("IO", "IOB1"):
            tags = tuple(spans_to_tags(strict_spans(tags, scheme), len(tags), "BIO"))
        written = IOB2 if scheme in ("IO", "IOB1", "BIO") else IOBES
        (entities,) = Entities([_for_seqeval(tags)], written).entities
        places = [(each.start, each.end, each.tag) for each in entities]
    return tuple(Span(start, end, bytes.fromhex(name).decode()) for start, end, name in places)


def _for_seqeval(tags: Sequence[str]) -> list[str]:
    found = []
    for tag in tags:
        prefix, hyphen, span_type = tag.partition("-")
        found.append(f"{_PREFIXES.get(prefix, prefix)}{hyphen}{span_type.encode().hex()}")
    return found
