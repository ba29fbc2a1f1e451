"""Tags of a whole data set, in any scheme and spelling, to BIO."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, repeat, starmap
from typing import Any

from finetune.data.examples import Examples
from finetune.data.spans import overlapping, words_to_chars
from finetune.data.tag_schemes import (
    DISTINCT_SCHEMES,
    SCHEMES,
    SPAN_TAG,
    convert_tags,
    count_tags,
    illegal_transitions,
    num_illegal,
    scheme_of,
    spans_to_tags,
    tags_to_spans,
)
from finetune.data.token_rows import Offsets, TokenRow
from finetune.types import DataError, Span, TokenExample, abbreviated, quantity

_Tags = tuple[str, ...] | None
_Levels = tuple[tuple[str, ...], ...]
_Spans = tuple[Span, ...] | None

_SPELLINGS = [
    re.compile(r"(?P<prefix>[BIESLUM])[-_](?P<type>\S+)", re.I),
    re.compile(r"(?P<type>\S+)[-_](?P<prefix>[BIESLUM])", re.I),
]
"""Other spellings of span tags: ``B_PER`` and ``b-per``; ``PER-B``."""


def to_bio(splits: Mapping[str, Sequence[TokenRow]]) -> tuple[dict[str, Examples], list[str]]:
    """Make examples, with tags of all splits in BIO and the spans that they encode, and notes.

    The scheme of each split is detected, and tags such as ``B_PER``, ``b-per`` and ``PER-B`` are
    written ``B-PER``. Spans get tags too, unless some spans of the data set overlap. Raises
    DataError if some but not all tags are of a span scheme.
    """
    by_name = {name: _Split(Examples.of(rows)) for name, rows in splits.items()}
    every, notes = list(by_name.values()), list[str]()
    counts = sum((split.counts for split in every), Counter[str]())
    if counts and all(tag.isdecimal() for tag in counts):
        notes.append("tags are numbers without names: replace them by names")
    spelled = [_spelled({*split.counts}) for split in every]
    odd = next(filter(None, spelled), None)
    # O on half of the words: some part-of-speech sets have a tag O too
    is_bare = all("-" not in tag[:2] for tag in counts) and not odd
    is_bare = is_bare and len(counts) > 1 and counts["O"] * 2 >= counts.total()
    if is_bare:  # as Few-NERD
        notes.append("tags have no B- or I- before the type: read as spans of equal tags, as BIO")
        spelled = [{tag: f"I-{tag}" for tag in counts if tag != "O"}] * len(every)
    elif odd:
        changed = [tag for tag in sorted(odd) if tag in counts and tag != odd[tag]]
        changes = [f"{tag} as {odd[tag]}" for tag in changed]
        notes.append(f"tags are read in their usual spelling: {abbreviated(changes, 3)}")
    by_name = {
        name: split.renamed(names) if names else split
        for (name, split), names in zip(by_name.items(), spelled, strict=True)
    }
    every = list(by_name.values())
    notes += _find_schemes(every, named=not is_bare)
    if nested := any(split.nests() for split in every):
        notes.append("nested spans: examples have spans, no tags")
    return {name: split.examples(nested) for name, split in by_name.items()}, notes


def _find_schemes(splits: Sequence[_Split], named: bool) -> list[str]:
    tagged = [split for split in splits if split.transitions]
    for split in tagged:
        split.scheme = scheme_of(split.transitions)
    if any(split.scheme is None for split in tagged):
        _check_plain_tags(splits)
        for split in splits:
            split.scheme = None
        return []
    notes, num_illegal_tags, first_illegal = [], 0, ""
    converted = [split for split in tagged if split.scheme != "BIO"]
    if converted and named:
        schemes = sorted({str(split.scheme) for split in converted} - {"IO"}) or ["IO"]
        notes.append(f"tag scheme {' and '.join(schemes)} found, converted to BIO")
    for split in converted:
        scheme = str(split.scheme)
        if number := num_illegal(split.transitions, scheme):
            num_illegal_tags += number
            tagged_rows = _tagged_rows([split])
            illegal = (row for row, tags in tagged_rows if illegal_transitions(tags, scheme))
            first_illegal = first_illegal or next(illegal).where
    if num_illegal_tags:
        counted = quantity(num_illegal_tags, "illegal tag")
        notes.append(f"{counted} read as the start of a span, first in {first_illegal}")
    for split in splits:
        split.scheme = split.scheme or "BIO"
    return notes


def _tagged_rows(splits: Iterable[_Split]) -> Iterator[tuple[TokenRow, Sequence[str]]]:
    for split in splits:
        for row in split.rows:
            yield from ((row, tags) for tags in row.levels or (row.tags or (),))


def respelled(columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Write the tags ``B_PER``, ``b-per`` and ``PER-B`` as ``B-PER``."""
    spelled = _spelled({*chain.from_iterable(columns)})
    return [[spelled.get(tag, tag) for tag in column] for column in columns]


class _Split:
    """The sentences of a split, and how their tags are read."""

    scheme: str | None = None
    """The scheme of the tags; None if they are not spans."""

    def __init__(self, rows: Examples) -> None:
        self.rows = rows
        levels = (levels or (tags,) for tags, levels in rows.columns("tags", "levels"))
        self.transitions, self.counts = count_tags(chain.from_iterable(levels))
        self.has_levels = any(rows.column("levels"))
        self.has_spans = any(spans is not None for spans in rows.column("spans"))

    def renamed(self, names: Mapping[str, str]) -> _Split:
        def rename(tags: Sequence[str]) -> tuple[str, ...]:
            return tuple(names.get(tag, tag) for tag in tags)

        rows = self.rows
        tags = (None if tags is None else rename(tags) for tags in rows.column("tags"))
        levels = (tuple(map(rename, levels)) for levels in rows.column("levels"))
        return _Split(rows.converted(TokenRow, {"tags": tags, "levels": levels}))

    def nests(self) -> bool:
        columns = self.rows.columns("tags", "levels", "spans", "misaligned", "offsets")
        return (self.has_levels or self.has_spans) and any(
            are_nested(self._spans(tags, levels, spans), misaligned, offsets)
            for tags, levels, spans, misaligned, offsets in columns
        )

    def examples(self, nested: bool) -> Examples:
        """The sentences as examples, with their spans and, unless they nest, tags in BIO."""
        rows, golds = self.rows, self.rows.columns("tags", "levels", "spans")
        values: dict[str, Iterable[Any]] = {"id": range(len(rows))}
        values |= {name: repeat((), len(rows)) for name in ("before", "after", "targets")}
        values["spans"] = starmap(self._spans, golds)
        if self.has_levels or self.has_spans or self.scheme not in (None, "BIO"):
            columns = rows.columns("words", "tags", "levels", "spans")
            values["tags"] = (self._bio(nested, *gold) for gold in columns)
        return rows.converted(TokenExample, values)

    def _bio(
        self, nested: bool, words: Sequence[str], tags: _Tags, levels: _Levels, spans: _Spans
    ) -> _Tags:
        if tags is not None:
            scheme = self.scheme or "BIO"
            return tags if scheme == "BIO" else tuple(convert_tags(tags, scheme, "BIO"))
        spans = self._spans(tags, levels, spans)
        return None if spans is None or nested else tuple(spans_to_tags(spans, len(words), "BIO"))

    def _spans(self, tags: _Tags, levels: _Levels, spans: _Spans) -> _Spans:
        if spans is not None or self.scheme is None:
            return spans
        if levels:
            by_level = (tags_to_spans(level, self.scheme) for level in levels)
            return tuple(sorted({*chain.from_iterable(by_level)}))
        return None if tags is None else tuple(tags_to_spans(tags, self.scheme))


def _spelled(all_tags: Set[str]) -> dict[str, str]:
    tags = all_tags - {"O"}
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


def are_nested(
    word_spans: Sequence[Span] | None, misaligned: Sequence[Span], offsets: Offsets | None
) -> bool:
    """True if any two spans of a sentence overlap."""
    spans: Sequence[Span] = word_spans or ()
    if misaligned:
        spans = [*words_to_chars(offsets or (), spans), *misaligned]
    return overlapping(spans)


def _check_plain_tags(splits: Sequence[_Split]) -> None:
    # one header or misprint among span tags would turn all tags into plain tags
    counts = sum((split.counts for split in splits), Counter[str]())
    plain = Counter({tag: n for tag, n in counts.items() if not SPAN_TAG.fullmatch(tag)})
    if counts and not plain:
        prefixes = ", ".join(sorted({f"{tag[0]}-" for tag in counts if tag != "O"}))
        legal = (", ".join(f"{p}-" for p in SCHEMES[name]) for name in DISTINCT_SCHEMES)
        where = next(row for split in splits for row in split.rows).where
        raise DataError(
            f"{where}: the prefixes of the tags ({prefixes}) fit no one scheme: legal are "
            f"{'; '.join(legal)}."
        )
    num_inside = counts.total() - plain.total() - counts["O"]
    spelled_alike = all(any(p.fullmatch(tag) for p in _SPELLINGS) for tag in plain)
    schemes = {split.scheme for split in splits if split.transitions}
    if num_inside and (plain.total() * 2 <= num_inside or spelled_alike or len(schemes) > 1):
        row, tags = next(one for one in _tagged_rows(splits) if not plain.keys().isdisjoint(one[1]))
        word, tag = next(pair for pair in zip(row.words, tags, strict=True) if pair[1] in plain)
        other_tags = ", ".join(repr(t) for t, _ in plain.most_common(6) if t != tag)
        raise DataError(
            f"{row.where}: the word {word!r:.60} has the tag {tag!r:.60}, but "
            f"{quantity(num_inside, 'tag is a span tag', 'tags are span tags')} (B-TYPE, I-TYPE, "
            "…) and the rest O: correct it, or remove a "
            f"header{f' (also: {other_tags})' if other_tags else ''}."
        )
    if nested := next((row for row, _ in _tagged_rows(splits) if row.levels), None):
        raise DataError(
            f"{nested.where}: several columns of tags, but they are not span tags (B-TYPE, "
            "I-TYPE, O): name the one column to read, for instance --columns tags=1."
        )
