"""Tags of a whole data set, in any scheme and spelling, to BIO."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from finetune.data.character_spans import words_to_chars
from finetune.data.collecting import transformed
from finetune.data.dataset import DataError
from finetune.data.example_facts import no_facts
from finetune.data.example_store import column, columns
from finetune.data.spans import overlapping
from finetune.data.tag_schemes import (
    DISTINCT_SCHEMES,
    SCHEMES,
    SPAN_TAG,
    convert_tags,
    detect_scheme,
    illegal_transitions,
    spans_to_tags,
    tags_to_spans,
)
from finetune.data.token_records import Offsets, TokenRecord
from finetune.types import Span, abbreviated, quantity

_SPELLINGS = [
    re.compile(r"(?P<prefix>[BIESLUM])[-_](?P<type>\S+)", re.I),
    re.compile(r"(?P<type>\S+)[-_](?P<prefix>[BIESLUM])", re.I),
]
"""Other spellings of span tags: ``B_PER`` and ``b-per``; ``PER-B``."""


def to_bio(
    splits: Mapping[str, Sequence[TokenRecord]],
) -> tuple[dict[str, Sequence[TokenRecord]], list[str]]:
    """Convert the tags of all splits to BIO and add the spans that they encode, with notes.

    The scheme of each split is detected, and tags such as ``B_PER``, ``b-per`` and ``PER-B`` are
    written ``B-PER``. Spans get tags too, unless some spans of the data set overlap. Raises
    DataError if some but not all tags are of a span scheme.
    """
    counts = _counts(splits)
    if counts and all(tag.isdecimal() for tag in counts):
        return dict(splits), ["tags are numbers without names: replace them by names"]
    notes = []
    no_prefix = all("-" not in tag[:2] for tag in counts)
    spelled = {split: _spelled(rows) for split, rows in splits.items()}
    # O on half of the words: some part-of-speech sets have a tag O too
    if (
        no_prefix
        and len(counts) > 1
        and counts["O"] * 2 >= counts.total()
        and not any(spelled.values())
    ):  # Few-NERD
        notes.append("tags have no B- or I- before the type: read as spans of equal tags, as BIO")
        spelled = {s: {tag: f"I-{tag}" for tag in counts if tag != "O"} for s in splits}
    elif odd := next((each for each in spelled.values() if each), None):
        changed = [tag for tag in sorted(odd) if tag in counts and tag != odd[tag]]
        examples = [f"{tag} as {odd[tag]}" for tag in changed]
        notes.append(f"tags are read in their usual spelling: {abbreviated(examples, 3)}")
    splits = {
        split: transformed(rows, partial(_renamed, names=names), no_facts) if names else rows
        for (split, rows), names in zip(splits.items(), spelled.values(), strict=True)
    }
    schemes = {
        split: detect_scheme(chain.from_iterable(column(rows, "layers")))
        for split, rows in splits.items()
        if any(column(rows, "layers"))
    }
    if None in schemes.values():
        _check_plain_tags(splits, schemes)
    else:
        found = {split: scheme for split, scheme in schemes.items() if scheme != "BIO"}
        if found and not (no_prefix and notes):
            named = sorted({str(scheme) for scheme in found.values()} - {"IO"}) or ["IO"]
            notes.append(f"tag scheme {' and '.join(named)} found, converted to BIO")
        illegal = [
            row.where
            for split, scheme in found.items()
            for row in splits[split]
            for layer in row.layers
            for _ in illegal_transitions(layer, str(scheme))
        ]
        if illegal:
            counted = quantity(len(illegal), "illegal tag")
            notes.append(f"{counted} read as the start of a span, first in {illegal[0]}")
        splits = {
            split: transformed(
                rows, partial(_with_spans, scheme=schemes.get(split) or "BIO"), no_facts
            )
            for split, rows in splits.items()
        }
    nested = any(
        _are_nested(*each)
        for rows in splits.values()
        for each in columns(rows, ("spans", "unreachable", "offsets"))
    )
    if nested:
        notes.append("nested spans: examples have spans, no tags")
        return splits, notes
    return {
        split: rows
        if all(layers or spans is None for layers, spans in columns(rows, ("layers", "spans")))
        else transformed(rows, partial(with_tags, nested=False), no_facts)
        for split, rows in splits.items()
    }, notes


def respelled(layers: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return tags with ``B_PER``, ``b-per`` and ``PER-B`` written ``B-PER``."""
    spelled = _spelled([TokenRecord((), "", (tuple(layer),)) for layer in layers])
    return [[spelled.get(tag, tag) for tag in layer] for layer in layers]


def _counts(splits: Mapping[str, Sequence[TokenRecord]]) -> Counter[str]:
    """Return how often each tag occurs."""
    counts: Counter[str] = Counter()
    for rows in splits.values():
        for layers in column(rows, "layers"):
            counts.update(chain.from_iterable(layers))
    return counts


def _spelled(records: Sequence[TokenRecord]) -> dict[str, str]:
    """Return the usual spelling of the tags of a split if all are written in another way."""
    tags = {*_counts({"": records})} - {"O"}
    if not tags or all(SPAN_TAG.fullmatch(tag) for tag in tags):
        return {}
    for pattern in _SPELLINGS:
        matches = {tag: pattern.fullmatch(tag) for tag in tags - {"o"}}
        found = {
            tag: f"{match['prefix'].upper()}-{match['type']}"
            for tag, match in matches.items()
            if match
        }
        prefixes = {tag[0] for tag in found.values()}
        fits = any(prefixes <= {*SCHEMES[name]} for name in DISTINCT_SCHEMES)
        if found and len(found) == len(matches) and fits and prefixes & {"B", "I"}:
            return found | {"o": "O"}
    return {}


def _renamed(record: TokenRecord, names: Mapping[str, str]) -> TokenRecord:
    layers = (tuple(names.get(tag, tag) for tag in layer) for layer in record.layers)
    return record._replace(layers=tuple(layers)) if names else record


def is_nested(record: TokenRecord) -> bool:
    """Return whether any two spans of a record overlap."""
    return _are_nested(record.spans, record.unreachable, record.offsets)


def _are_nested(
    found: Sequence[Span] | None, unreachable: Sequence[Span], offsets: Offsets | None
) -> bool:
    spans: Sequence[Span] = found or ()
    if unreachable:
        spans = [*words_to_chars(offsets or (), spans), *unreachable]
    return overlapping(spans)


def with_tags(record: TokenRecord, nested: bool) -> TokenRecord:
    """Return the record with BIO tags for its spans, unless it has tags or ``nested`` is set."""
    if nested or record.layers or record.spans is None:
        return record
    return record._replace(layers=(tuple(spans_to_tags(record.spans, len(record.words), "BIO")),))


def _check_plain_tags(
    splits: Mapping[str, Sequence[TokenRecord]], schemes: Mapping[str, str | None]
) -> None:
    """Raise DataError where tags without a scheme are probably span tags with errors.

    Without this check, one header or misprint among span tags would turn all tags into plain tags.
    """
    counts = _counts(splits)
    plain = Counter({tag: n for tag, n in counts.items() if not SPAN_TAG.fullmatch(tag)})
    if counts and not plain:
        found = ", ".join(sorted({f"{tag[0]}-" for tag in counts if tag != "O"}))
        legal = (", ".join(f"{p}-" for p in SCHEMES[name]) for name in DISTINCT_SCHEMES)
        where = next(chain.from_iterable(splits.values())).where
        raise DataError(
            f"{where}: the prefixes of the tags ({found}) fit no one scheme: legal are "
            f"{'; '.join(legal)}."
        )
    num_inside = counts.total() - plain.total() - counts["O"]
    spelled_alike = all(any(p.fullmatch(tag) for p in _SPELLINGS) for tag in plain)
    spans = num_inside and (
        plain.total() * 2 <= num_inside or spelled_alike or len({*schemes.values()}) > 1
    )
    for record in chain.from_iterable(splits.values()):
        if len(record.layers) > 1 and not spans:
            raise DataError(
                f"{record.where}: several columns of tags, but they are not span tags (B-TYPE, "
                "I-TYPE, O): name the one column to read, for instance --columns tags=1."
            )
        for layer in record.layers if spans else ():
            for word, tag in zip(record.words, layer, strict=True):
                if tag in plain:
                    others = ", ".join(repr(t) for t, _ in plain.most_common(6) if t != tag)
                    raise DataError(
                        f"{record.where}: the word {word!r:.60} has the tag {tag!r:.60}, but "
                        f"{quantity(num_inside, 'tag is a span tag', 'tags are span tags')} "
                        "(B-TYPE, I-TYPE, …) and the rest O: correct it, or remove a "
                        f"header{f' (also: {others})' if others else ''}."
                    )


def _with_spans(record: TokenRecord, scheme: str) -> TokenRecord:
    """Return the record with the spans that its tags encode; one layer of tags becomes BIO."""
    if not record.layers:
        return record
    found = {span for layer in record.layers for span in tags_to_spans(layer, scheme)}
    spans = tuple(sorted(found)) if record.spans is None else record.spans
    if len(record.layers) > 1:
        return record._replace(layers=(), spans=spans)
    if scheme == "BIO":
        return record._replace(spans=spans)
    tags = tuple(convert_tags(record.layers[0], scheme, "BIO"))
    return record._replace(layers=(tags,), spans=spans)
