"""Tags of a whole data set, in any scheme and spelling, to BIO."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain, repeat, tee
from operator import itemgetter

from finetune.data.dataset import DataError
from finetune.data.examples import Examples
from finetune.data.spans import overlapping, words_to_chars
from finetune.data.tag_schemes import (
    DISTINCT_SCHEMES,
    SCHEMES,
    SPAN_TAG,
    Transitions,
    convert_tags,
    count_transitions,
    illegal_transitions,
    num_illegal,
    scheme_of,
    spans_to_tags,
    tags_to_spans,
)
from finetune.data.token_rows import Offsets, TokenRow
from finetune.types import Span, TokenExample, abbreviated, quantity

_TagColumns = tuple[tuple[str, ...], ...]
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
    odd = next((split.names for split in every if split.names), None)
    # O on half of the words: some part-of-speech sets have a tag O too
    is_bare = all("-" not in tag[:2] for tag in counts) and not odd
    is_bare = is_bare and len(counts) > 1 and counts["O"] * 2 >= counts.total()
    if is_bare:  # as Few-NERD
        notes.append("tags have no B- or I- before the type: read as spans of equal tags, as BIO")
        for split in every:
            split.names = {tag: f"I-{tag}" for tag in counts if tag != "O"}
    elif odd:
        changed = [tag for tag in sorted(odd) if tag in counts and tag != odd[tag]]
        changes = [f"{tag} as {odd[tag]}" for tag in changed]
        notes.append(f"tags are read in their usual spelling: {abbreviated(changes, 3)}")
    notes += _find_schemes(every, named=not is_bare)
    if nested := any(split.nests() for split in every):
        notes.append("nested spans: examples have spans, no tags")
    for split in every:
        split.nested = nested
    return {name: split.examples() for name, split in by_name.items()}, notes


def _find_schemes(splits: Sequence[_Split], named: bool) -> list[str]:
    tagged = [split for split in splits if split.is_tagged]
    for split in tagged:
        split.scheme = scheme_of(split.transitions())
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
        if number := num_illegal(split.transitions(), scheme):
            num_illegal_tags += number
            columns = ((where, tags) for where, _, tags in split.sequences())
            illegal = (where for where, tags in columns if illegal_transitions(tags, scheme))
            first_illegal = first_illegal or next(illegal)
    if num_illegal_tags:
        counted = quantity(num_illegal_tags, "illegal tag")
        notes.append(f"{counted} read as the start of a span, first in {first_illegal}")
    for split in splits:
        split.scheme = split.scheme or "BIO"
    return notes


def respelled(columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Write the tags ``B_PER``, ``b-per`` and ``PER-B`` as ``B-PER``."""
    spelled = _spelled({*chain.from_iterable(columns)})
    return [[spelled.get(tag, tag) for tag in column] for column in columns]


class _Split:
    """The sentences of a split, and how their tags are read."""

    scheme: str | None = None
    """The scheme of the tags; None if they are not spans."""
    nested = False
    """Whether spans may overlap, so that there are no tags for them."""

    def __init__(self, rows: Examples) -> None:
        self.rows, self.is_tagged, self.has_several, edges = rows, False, False, 0

        def sequences() -> Iterator[Sequence[str]]:
            nonlocal edges
            for columns in rows.column("tag_columns"):
                self.is_tagged |= bool(columns)
                self.has_several |= len(columns) > 1
                edges += sum(map(bool, columns))
                yield from columns

        self._transitions = count_transitions(sequences())
        counts = Counter({"O": -edges})
        for (_, tag), number in self._transitions.items():
            counts[tag] += number
        self.counts = +counts
        """The numbers of the tags, before they are renamed."""
        self.names = _spelled({*self.counts})
        """New names of tags."""
        without_spans = all(spans is None for spans in rows.column("spans"))
        self.has_plain_tags = without_spans and not self.has_several

    def transitions(self) -> Transitions:
        renamed = Transitions()
        for pair, number in self._transitions.items():
            before, tag = (self.names.get(tag, tag) for tag in pair)
            renamed[before, tag] += number
        return renamed

    def sequences(self) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
        """The location, the words and the tags of each column of tags."""
        for where, words, columns in self.rows.columns("where", "words", "tag_columns"):
            for tags in self._renamed(columns):
                yield where, words, tags

    def nests(self) -> bool:
        if self.has_plain_tags:
            return False
        names = ("tag_columns", "spans", "misaligned", "offsets")
        return any(
            are_nested(self._spans(self._renamed(columns), spans), *characters)
            for columns, spans, *characters in self.rows.columns(*names)
        )

    def examples(self) -> Examples:
        """The sentences as examples, with their spans and one column of tags in BIO."""
        rows = self.rows
        numbers = repeat(0) if self.has_plain_tags else map(len, rows.column("words"))
        golds = map(self._gold, numbers, rows.column("tag_columns"), rows.column("spans"))
        spans, tags = (map(itemgetter(i), same) for i, same in enumerate(tee(golds)))
        unset = {name: repeat((), len(rows)) for name in ("before", "after", "targets")}
        values = {"id": range(len(rows)), "spans": spans, "tags": tags} | unset
        return rows.converted(TokenExample, values)

    def _gold(
        self, num_words: int, columns: _TagColumns, spans: _Spans
    ) -> tuple[_Spans, tuple[str, ...] | None]:
        columns = self._renamed(columns)
        spans = self._spans(columns, spans)
        tags = columns[0] if columns else None
        if self.scheme is not None and len(columns) > 1:
            tags = None
        elif tags is not None and self.scheme not in (None, "BIO"):
            tags = tuple(convert_tags(tags, str(self.scheme), "BIO"))
        if tags is None and spans is not None and not self.nested:
            tags = tuple(spans_to_tags(spans, num_words, "BIO"))
        return spans, tags

    def _renamed(self, columns: _TagColumns) -> _TagColumns:
        if not self.names:
            return columns
        return tuple(tuple(self.names.get(tag, tag) for tag in column) for column in columns)

    def _spans(self, columns: _TagColumns, spans: _Spans) -> _Spans:
        if spans is not None or self.scheme is None or not columns:
            return spans
        by_column = [tags_to_spans(column, self.scheme) for column in columns]
        return tuple(by_column[0] if len(by_column) == 1 else sorted({*chain(*by_column)}))


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
    counts = Counter[str]()
    for split in splits:
        for tag, number in split.counts.items():
            counts[split.names.get(tag, tag)] += number
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
    schemes = {split.scheme for split in splits if split.is_tagged}
    if num_inside and (plain.total() * 2 <= num_inside or spelled_alike or len(schemes) > 1):
        sentences = chain.from_iterable(split.sequences() for split in splits)
        where, words, tags = next(one for one in sentences if not plain.keys().isdisjoint(one[2]))
        word, tag = next(pair for pair in zip(words, tags, strict=True) if pair[1] in plain)
        other_tags = ", ".join(repr(t) for t, _ in plain.most_common(6) if t != tag)
        raise DataError(
            f"{where}: the word {word!r:.60} has the tag {tag!r:.60}, but "
            f"{quantity(num_inside, 'tag is a span tag', 'tags are span tags')} (B-TYPE, I-TYPE, "
            "…) and the rest O: correct it, or remove a "
            f"header{f' (also: {other_tags})' if other_tags else ''}."
        )
    for split in splits:
        if split.has_several:
            rows = split.rows.columns("where", "tag_columns")
            where = next(where for where, columns in rows if len(columns) > 1)
            raise DataError(
                f"{where}: several columns of tags, but they are not span tags (B-TYPE, "
                "I-TYPE, O): name the one column to read, for instance --columns tags=1."
            )
