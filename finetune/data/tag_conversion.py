"""Tags of a whole data set, in any scheme and spelling, to BIO."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import NamedTuple

from finetune.data.dataset import DataError
from finetune.data.examples import Examples
from finetune.data.spans import overlapping, words_to_chars
from finetune.data.tag_schemes import (
    DISTINCT_SCHEMES,
    SCHEMES,
    SPAN_TAG,
    Transitions,
    all_transitions,
    convert_tags,
    count_transitions,
    illegal_transitions,
    num_illegal,
    scheme_of,
    spans_to_tags,
    tags_to_spans,
)
from finetune.data.token_records import Offsets, TokenRecord
from finetune.types import Span, TokenExample, abbreviated, quantity

Layers = tuple[tuple[str, ...], ...]

_SPELLINGS = [
    re.compile(r"(?P<prefix>[BIESLUM])[-_](?P<type>\S+)", re.I),
    re.compile(r"(?P<type>\S+)[-_](?P<prefix>[BIESLUM])", re.I),
]
"""Other spellings of span tags: ``B_PER`` and ``b-per``; ``PER-B``."""


def to_bio(
    splits: Mapping[str, Sequence[TokenRecord]],
) -> tuple[dict[str, Examples], list[str]]:
    """Make examples, with tags of all splits in BIO and the spans that they encode, and notes.

    The scheme of each split is detected, and tags such as ``B_PER``, ``b-per`` and ``PER-B`` are
    written ``B-PER``. Spans get tags too, unless some spans of the data set overlap. Raises
    DataError if some but not all tags are of a span scheme.
    """
    own = {split: Examples.of(rows) for split, rows in splits.items()}
    layers = {split: _Layers.of(rows) for split, rows in own.items()}
    counts = sum((each.counts for each in layers.values()), Counter[str]())
    if counts and all(tag.isdecimal() for tag in counts):
        examples = {split: rows.map(Conversion().example) for split, rows in own.items()}
        return examples, ["tags are numbers without names: replace them by names"]
    notes = []
    no_prefix = all("-" not in tag[:2] for tag in counts)
    spelled = {split: _spelled({*each.counts}) for split, each in layers.items()}
    # O on half of the words: some part-of-speech sets have a tag O too
    if (
        no_prefix
        and len(counts) > 1
        and counts["O"] * 2 >= counts.total()
        and not any(spelled.values())
    ):  # Few-NERD
        notes.append("tags have no B- or I- before the type: read as spans of equal tags, as BIO")
        spelled = {s: {tag: f"I-{tag}" for tag in counts if tag != "O"} for s in own}
    elif odd := next((each for each in spelled.values() if each), None):
        changed = [tag for tag in sorted(odd) if tag in counts and tag != odd[tag]]
        changes = [f"{tag} as {odd[tag]}" for tag in changed]
        notes.append(f"tags are read in their usual spelling: {abbreviated(changes, 3)}")
    transitions = {
        split: _transitions(own[split], names) if names else layers[split].transitions
        for split, names in spelled.items()
        if layers[split].number
    }
    schemes = {split: scheme_of(found) for split, found in transitions.items()}
    if None in schemes.values():
        _check_plain_tags(own, layers, spelled, schemes)
        schemes = {}
    else:
        found = {split: str(scheme) for split, scheme in schemes.items() if scheme != "BIO"}
        if found and not (no_prefix and notes):
            named = sorted({*found.values()} - {"IO"}) or ["IO"]
            notes.append(f"tag scheme {' and '.join(named)} found, converted to BIO")
        illegal = {
            s: num_illegal(transitions[s] or Counter(), scheme) for s, scheme in found.items()
        }
        if number := sum(illegal.values()):
            split = next(split for split in found if illegal[split])
            where = _first_illegal(own[split], spelled[split], found[split])
            counted = quantity(number, "illegal tag")
            notes.append(f"{counted} read as the start of a span, first in {where}")
        schemes = {split: schemes.get(split) or "BIO" for split in own}
    conversions = {s: Conversion(spelled[s], schemes.get(s)) for s in own}
    nested = any(
        layers[split].may_nest and conversions[split].nests_in(rows) for split, rows in own.items()
    )
    if nested:
        notes.append("nested spans: examples have spans, no tags")
    return {
        split: rows.map(conversions[split]._replace(nested=nested).example)
        for split, rows in own.items()
    }, notes


def respelled(layers: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return tags with ``B_PER``, ``b-per`` and ``PER-B`` written ``B-PER``."""
    spelled = _spelled({*chain.from_iterable(layers)})
    return [[spelled.get(tag, tag) for tag in layer] for layer in layers]


class _Layers(NamedTuple):
    """Counts of the layers of tags of a split."""

    counts: Counter[str]
    """The number of occurrences of each tag."""
    transitions: Transitions | None
    """The number of times that each tag follows another; None if one has no prefix."""
    number: int
    """The number of records with tags."""
    several: bool
    """Whether some record has several layers."""
    given_spans: bool
    """Whether some record has spans."""

    @property
    def may_nest(self) -> bool:
        """True if spans can overlap: the spans of one layer of tags cannot."""
        return self.several or self.given_spans

    @classmethod
    def of(cls, rows: Examples) -> _Layers:
        """Count the layers of a split."""
        parts = list(rows.each_chunk(_counted))
        counts = Counter[str]()
        for part in parts:
            counts.update(part.counts)
        return cls(
            counts,
            all_transitions([part.transitions for part in parts]),
            sum(part.number for part in parts),
            any(part.several for part in parts),
            any(part.given_spans for part in parts),
        )


def _counted(rows: Examples) -> _Layers:
    layers = list(rows.column("layers"))
    tags = list(chain.from_iterable(layers))
    return _Layers(
        Counter(chain.from_iterable(tags)),
        count_transitions(tags),
        sum(map(bool, layers)),
        max(map(len, layers), default=0) > 1,
        any(spans is not None for spans in rows.column("spans")),
    )


def _spelled(found: Set[str]) -> dict[str, str]:
    """Return the usual spelling of the tags of a split if all are written in another way."""
    tags = found - {"O"}
    if not tags or all(SPAN_TAG.fullmatch(tag) for tag in tags):
        return {}
    for pattern in _SPELLINGS:
        matches = {tag: pattern.fullmatch(tag) for tag in tags - {"o"}}
        spelled = {
            tag: f"{match['prefix'].upper()}-{match['type']}"
            for tag, match in matches.items()
            if match
        }
        prefixes = {tag[0] for tag in spelled.values()}
        fits = any(prefixes <= {*SCHEMES[name]} for name in DISTINCT_SCHEMES)
        if spelled and len(spelled) == len(matches) and fits and prefixes & {"B", "I"}:
            return spelled | {"o": "O"}
    return {}


def _transitions(rows: Examples, names: Mapping[str, str]) -> Transitions | None:
    """Count the transitions between renamed tags; None if a tag has no prefix of any scheme."""

    def count(chunk: Examples) -> Transitions | None:
        layers = [_renamed(each, names) for each in chunk.column("layers")]
        return count_transitions(chain.from_iterable(layers))

    return all_transitions([*rows.each_chunk(count)])


def _first_illegal(rows: Examples, names: Mapping[str, str], scheme: str) -> str:
    """Return the ``file:line`` of the first record with an illegal transition."""
    return next(
        str(where)
        for where, layers in rows.columns("where", "layers")
        if any(illegal_transitions(layer, scheme) for layer in _renamed(layers, names))
    )


def _renamed(layers: Layers, names: Mapping[str, str]) -> Layers:
    if not names:
        return layers
    return tuple(tuple(names.get(tag, tag) for tag in layer) for layer in layers)


class Conversion(NamedTuple):
    """The conversion of the records of a split to examples."""

    names: Mapping[str, str] = {}
    """New names of tags."""
    scheme: str | None = None
    """The scheme of the tags; None if they are not spans."""
    nested: bool = False
    """Whether spans may overlap, so that there are no tags for them."""

    def example(self, index: int, record: TokenRecord) -> TokenExample:
        """Return an example with the spans of a record, and one layer of tags in BIO."""
        layers = _renamed(record.layers, self.names)
        spans = self.spans_of(layers, record.spans)
        tags = layers[0] if layers else None
        if self.scheme is not None and len(layers) > 1:
            tags = None
        elif tags is not None and self.scheme not in (None, "BIO"):
            tags = tuple(convert_tags(tags, str(self.scheme), "BIO"))
        if tags is None and spans is not None and not self.nested:
            tags = tuple(spans_to_tags(spans, len(record.words), "BIO"))
        return TokenExample(
            index,
            record.words,
            spans,
            tags,
            record.document,
            record.text,
            record.offsets,
            record.where,
            unreachable=record.unreachable,
            key=record.key,
            relations=record.relations,
        )

    def spans_of(self, layers: Layers, spans: tuple[Span, ...] | None) -> tuple[Span, ...] | None:
        """Return the spans of a record, given or encoded by renamed tags."""
        if spans is not None or self.scheme is None or not layers:
            return spans
        found = chain.from_iterable(tags_to_spans(layer, self.scheme) for layer in layers)
        return tuple(sorted({*found}))

    def nests_in(self, rows: Examples) -> bool:
        """Return whether spans of any record overlap."""

        def nests(chunk: Examples) -> bool:
            names = ("layers", "spans", "unreachable", "offsets")
            return any(
                are_nested(self.spans_of(_renamed(layers, self.names), spans), *others)
                for layers, spans, *others in chunk.columns(*names)
            )

        return any(rows.each_chunk(nests))


def are_nested(
    found: Sequence[Span] | None, unreachable: Sequence[Span], offsets: Offsets | None
) -> bool:
    """Return whether any two spans of a record overlap."""
    spans: Sequence[Span] = found or ()
    if unreachable:
        spans = [*words_to_chars(offsets or (), spans), *unreachable]
    return overlapping(spans)


def _check_plain_tags(
    splits: Mapping[str, Examples],
    layers: Mapping[str, _Layers],
    spelled: Mapping[str, Mapping[str, str]],
    schemes: Mapping[str, str | None],
) -> None:
    """Raise DataError where tags without a scheme are probably span tags with errors.

    Without this check, one header or misprint among span tags would turn all tags into plain tags.
    """
    counts = Counter[str]()
    for split, names in spelled.items():
        for tag, number in layers[split].counts.items():
            counts[names.get(tag, tag)] += number
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
    if num_inside and (
        plain.total() * 2 <= num_inside or spelled_alike or len({*schemes.values()}) > 1
    ):
        for split, rows in splits.items():
            for where, words, found in rows.columns("where", "words", "layers"):
                for layer in _renamed(found, spelled[split]):
                    _check_span_tags(where, words, layer, plain, num_inside)
    for split, rows in splits.items():
        if layers[split].several:
            where = next(w for w, own in rows.columns("where", "layers") if len(own) > 1)
            raise DataError(
                f"{where}: several columns of tags, but they are not span tags (B-TYPE, "
                "I-TYPE, O): name the one column to read, for instance --columns tags=1."
            )


def _check_span_tags(
    where: str, words: Sequence[str], tags: Sequence[str], plain: Counter[str], num_inside: int
) -> None:
    """Raise DataError for a tag that is ``plain``, where most tags are span tags."""
    for word, tag in zip(words, tags, strict=True):
        if tag in plain:
            others = ", ".join(repr(t) for t, _ in plain.most_common(6) if t != tag)
            raise DataError(
                f"{where}: the word {word!r:.60} has the tag {tag!r:.60}, but "
                f"{quantity(num_inside, 'tag is a span tag', 'tags are span tags')} "
                "(B-TYPE, I-TYPE, …) and the rest O: correct it, or remove a "
                f"header{f' (also: {others})' if others else ''}."
            )
