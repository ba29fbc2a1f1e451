"""Words with tags or spans as files have them, before tag schemes are known; rows of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

from finetune.data.files import Row
from finetune.data.spans import chars_to_words, split_offsets, words_to_chars
from finetune.data.tables import Columns, MissingColumn, Table, is_missing
from finetune.data.word_splitting import split_words
from finetune.types import DataError, Relation, Span, abbreviated, quantity

Offsets = Sequence[tuple[int, int]]

ROLES = ("words", "tags", "spans", "text", "document", "relations")
WORD_COLUMNS = ("tokens", "words")
_TEXT_COLUMNS = ("text",)
TAG_COLUMNS = ("tags", "ner_tags", "labels", "upos", "pos_tags", "chunk_tags")
SPAN_COLUMNS = ("spans", "entities")
RELATION_COLUMN = "relations"
DOCUMENT_COLUMNS = ("document", "document_id", "doc_id", "doc_key")
HEADER_NAMES = frozenset({*WORD_COLUMNS, "text"})
"""Column names that tell a header from data."""

_SPAN = '{"start": 0, "end": 2, "label": "PER"}'
_RELATION = '{"subject": 0, "object": 1, "label": "lives_in"}'
_CHARACTER_KEYS = (("start_char", "end_char"), ("start", "end"))


class TokenRow(NamedTuple):
    """The words of one row, sentence or document with the gold that the file has."""

    words: tuple[str, ...]
    where: str
    tags: tuple[str, ...] | None = None
    levels: tuple[tuple[str, ...], ...] = ()  # several columns of tags, if spans are nested
    spans: tuple[Span, ...] | None = None
    document: str | None = None
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] | None = None
    misaligned: tuple[Span, ...] = ()  # as in ``TokenExample``
    num_discontinuous: int = 0  # spans
    key: str | int | None = None  # the id of the row
    relations: tuple[Relation, ...] | None = None

    def texts(self) -> list[str]:
        """The words joined by blanks."""
        return [" ".join(self.words)]


def word_columns(table: Table, named: Mapping[str, str], rows: Sequence[Row]) -> Columns:
    """Choose the columns that the user names, else those with usual names and fitting values.

    Either ``words`` or ``text`` is set.
    """
    words = table.find("words", named, WORD_COLUMNS)
    if named.get("text") and not named.get("words"):
        words = None
    text = None if words else table.find("text", named, _TEXT_COLUMNS)
    if words is None and text is None:
        raise MissingColumn(table, "words", "words or a text", "tokens")
    tags, spans = table.find("tags", named), table.find("spans", named)
    if tags is None and words:
        tags = _first_fitting(table, TAG_COLUMNS, rows, (str, int))
    if spans is None and not named.get("tags"):
        spans = _first_fitting(table, SPAN_COLUMNS, rows, (dict, list, tuple))
    document = table.find("document", named, DOCUMENT_COLUMNS)
    relations = table.find("relations", named, [RELATION_COLUMN])
    return {
        "words": words,
        "text": text,
        "tags": tags,
        "spans": spans,
        "document": document,
        "relations": relations,
    }


def _first_fitting(
    table: Table, usual: Sequence[str], rows: Sequence[Row], types: tuple[type, ...]
) -> str | None:
    for name in (table.by_name[name] for name in usual if name in table.by_name):
        values = (row.values.get(name) for row in rows)
        filled = next((value for value in values if value not in (None, [], "")), None)
        if filled is None or (isinstance(filled, list) and isinstance(filled[0], types)):
            return name
    return None


def token_row(
    row: Row, columns: Columns, names: Mapping[str, Sequence[str]], given_spans: bool = False
) -> TokenRow:
    """Read the words and the gold of a row; split a row of text alone into words.

    With ``given_spans``, also at the ends of its spans.
    """
    cell, words_column, tag_column = row.values.get, columns["words"], columns["tags"]
    document, spans = (cell(columns[role] or "") for role in ("document", "spans"))
    in_words = words_column is not None
    if words_column and (cell(words_column) is not None or not isinstance(cell("text"), str)):
        words, text, offsets = _given_words(row, words_column)
    else:
        words, text, offsets = _words_of_text(row, columns["text"] or "text")
    tags = None
    if tag_column and cell(tag_column) is not None:
        tags = _tags(row, tag_column, len(words), names.get(tag_column))
    document = None if document in (None, "") else str(document)  # an empty cell
    sentence = TokenRow(words, row.where, tags, (), None, document, text, offsets, key=row.key)
    if spans is None:
        return sentence
    sentence = with_spans(sentence, spans, split=given_spans and not in_words)
    if (relations := cell(columns["relations"] or "")) is None:
        return sentence
    return sentence._replace(relations=read_relations(relations, row.where, spans, sentence))


def with_spans(
    sentence: TokenRow, value: Any, locations: Sequence[str] = (), split: bool = False
) -> TokenRow:
    """Add the JSON spans of a row to its words; ``locations`` are their own, if they have any.

    With ``split``, its words are also split where spans begin or end.
    """
    words, text, offsets = sentence.words, sentence.text, sentence.offsets
    parsed = read_spans(value, sentence.where, len(words), text, offsets, locations)
    if split and parsed.misaligned:
        offsets, text = offsets or (), text or ""
        ends = [*words_to_chars(offsets, parsed.spans), *parsed.misaligned]
        pieces = split_offsets(offsets, ends)
        words = tuple(text[start:end] for start, end in pieces)
        return with_spans(sentence._replace(words=words, offsets=pieces), value, locations)
    spans, misaligned, num_discontinuous = parsed
    return sentence._replace(
        spans=spans, misaligned=misaligned, num_discontinuous=num_discontinuous
    )


_Words = tuple[tuple[str, ...], str | None, tuple[tuple[int, int], ...] | None]
"""The words of a row and, if they are of a text, this text and their characters."""


def _given_words(row: Row, column: str) -> _Words:
    value = row.values.get(column)
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{row.where}: column {column!r} must be a list of words, not {value!r:.60}."
        )
    if {*map(type, value)} == {str}:
        return tuple(value), None, None
    if all(isinstance(item, dict) for item in value) and isinstance(row.values.get("text"), str):
        text, size = str(row.values["text"]), len(row.values["text"])
        words, offsets, end = list[str](), list[tuple[int, int]](), 0
        for token in value:
            before, start, end = end, token.get("start"), token.get("end")
            if not (type(start) is int and type(end) is int and 0 <= start <= end <= size):
                legal = f'{{"text": "The", "start": 0, "end": 3}}, in characters from 0 to {size}'
                problem = f"{dict(token)!r:.80} is not a token of the text: write {legal}"
                raise DataError(f"{row.where}: {problem}.")
            if start < before:
                problem = f"the token at character {start} overlaps its predecessor"
                raise DataError(f"{row.where}: {problem}: sort tokens by their characters.")
            words.append(str(token.get("text", text[start:end])))
            offsets.append((start, end))
        return tuple(words), text, tuple(offsets)
    for item in value:
        if not isinstance(item, str | int | float):
            raise DataError(f"{row.where}: {item!r:.60} in {column!r} is not a word.")
    return tuple(map(str, value)), None, None


def _words_of_text(row: Row, column: str) -> _Words:
    text = row.values.get(column)
    if is_missing(text) and column in row.values:
        text = ""
    if not isinstance(text, str):
        raise DataError(f"{row.where}: column {column!r} must be a text, not {text!r:.60}.")
    words, offsets = split_words(text)
    return tuple(words), text, tuple(offsets)


def _tags(row: Row, column: str, num_words: int, names: Sequence[str] | None) -> tuple[str, ...]:
    value: Any = row.values.get(column)
    problem = ""
    if not isinstance(value, list | tuple):
        problem = f"column {column!r} must be a list with one tag for each word, not {value!r:.60}"
    elif len(value) != num_words:
        tags = quantity(len(value), "tag")
        problem = f"{quantity(num_words, 'word')} but {tags} in {column!r}: write one for each word"
    elif {*map(type, value)} == {str} and "" not in value:
        return tuple(value)
    else:
        for tag in value:
            if not isinstance(tag, str | int) or tag == "":
                problem = f"{tag!r} in {column!r} is not a tag: write a text such as 'O'"
            elif isinstance(tag, int) and names is not None and not 0 <= tag < len(names):
                classes = f"the {len(names)} classes of the data set ({abbreviated(names)})"
                problem = f"tag {tag} in {column!r} is outside {classes}"
            elif tag == -100:
                problem = f"tag -100 in {column!r} marks subwords: give words with their tags"
    if problem:
        raise DataError(f"{row.where}: {problem}.")
    return tuple(names[tag] if names and isinstance(tag, int) else str(tag) for tag in value)


class ParsedSpans(NamedTuple):
    """The spans of a row in words, the spans in characters that begin or end inside a word, and the
    number of discontinuous spans."""

    spans: tuple[Span, ...]
    misaligned: tuple[Span, ...]
    num_discontinuous: int


def read_spans(
    value: Any,
    where: str,
    num_words: int,
    text: str | None = None,
    offsets: Offsets | None = None,
    locations: Sequence[str] = (),
) -> ParsedSpans:
    """Read a list of JSON spans: sorted, without repetitions.

    A span is ``[start, end, label]`` or an object with a label (``label``, ``type`` or ``labels``;
    a list gives several spans) and a position: ``start`` and ``end``; ``start_char`` and
    ``end_char``; or ``offsets``, a list of pairs, read from the first start to
    the last end. Positions count words, or the characters of ``text`` if it is given; ``offsets``
    [W] then has the characters ``(start, end)`` of each word. Raises DataError for anything else,
    and for a span whose own ``text`` differs from its characters; it names the location of the
    span, or ``where``.
    """
    if not isinstance(value, list | tuple):
        raise DataError(f"{where}: {value!r:.60} must be a list of spans: write [{_SPAN}, …].")
    spans: list[Span] = []
    span_locations: list[str] = []
    misaligned: list[Span] = []
    num_discontinuous = 0
    size, unit = (num_words, "word") if text is None else (len(text), "character")
    for item, location in zip(value, locations or repeat(where), strict=False):
        fragments, labels = _parse_span(item, location, in_words=text is None)
        for start, end in fragments:
            if not 0 <= start < end <= size:
                raise DataError(
                    f"{location}: span {start} to {end} ({labels[0]}) is empty or outside the "
                    f"{quantity(size, unit)} of the row: 0 <= start < end <= {size}, end exclusive."
                )
        covered = item.get("text") if isinstance(item, Mapping) else None
        if text is not None and isinstance(covered, str) and not covers(text, fragments, covered):
            actual = " ".join(text[start:end] for start, end in fragments)
            raise DataError(
                f"{location}: a span has the text {covered!r:.60}, but characters "
                f"{fragments[0][0]} to {fragments[-1][1]} are {actual!r:.60}: count characters, "
                "not bytes, from 0 and end exclusive."
            )
        fragments.sort()
        start, end = fragments[0][0], max(end for _, end in fragments)
        gaps = any(
            left[1] < right[0] and (text is None or text[left[1] : right[0]].strip())
            for left, right in pairwise(fragments)
        )
        num_discontinuous += gaps
        spans += [Span(start, end, label) for label in labels]
        span_locations += [location] * len(labels)
    if text is not None:
        spans, misaligned = chars_to_words(offsets or (), spans, span_locations)
    return ParsedSpans(tuple(sorted({*spans})), tuple(sorted({*misaligned})), num_discontinuous)


def read_relations(value: Any, where: str, spans: Any, sentence: TokenRow) -> tuple[Relation, ...]:
    """Read a list of JSON relations between the JSON ``spans`` of a row, sorted.

    A relation is an object with the indices of its spans, ``subject`` and ``object`` (or ``head``
    and ``tail``), and a ``label`` (or ``type``). Raises DataError for anything else, for a relation
    of a span to itself, and for a span that begins or ends inside a word.
    """
    if not isinstance(value, list | tuple):
        problem = f"{value!r:.60} must be a list of relations"
        raise DataError(f"{where}: {problem}: write [{_RELATION}, …].")
    if not isinstance(spans, list | tuple):
        raise DataError(f"{where}: {spans!r:.60} must be a list of spans: write [{_SPAN}, …].")
    relations, words = set(), sentence.words
    for item in value:
        values = item if isinstance(item, Mapping) else {}
        subject, object = _first(values, "subject", "head"), _first(values, "object", "tail")
        label = _first(values, "label", "type")
        if type(subject) is not int or type(object) is not int or not _is_name(label):
            raise DataError(f"{where}: {item!r:.80} is not a relation: write {_RELATION}.")
        sides: list[Span] = []
        for end in (subject, object):
            if not 0 <= end < len(spans):
                has = quantity(len(spans), "span")
                raise DataError(
                    f"{where}: relation {label!r:.40} names span {end}, but the row has {has}: "
                    "indices count from 0."
                )
            one = read_spans([spans[end]], where, len(words), sentence.text, sentence.offsets)
            if len(one.spans) != 1:
                problem = "begins or ends inside a word: give the row as `tokens`, split there"
                if not one.misaligned:
                    problem = "has several labels: write one span for each"
                raise DataError(f"{where}: span {end} of relation {label!r:.40} {problem}.")
            sides.append(one.spans[0])
        if sides[0] == sides[1]:
            raise DataError(
                f"{where}: relation {label!r:.40} is from span {subject} to itself: name two spans."
            )
        relations.add(Relation(sides[0], sides[1], str(label)))
    return tuple(sorted(relations))


def _first(values: Mapping[str, Any], *keys: str) -> Any:
    return next((values[key] for key in keys if values.get(key) is not None), None)


def _is_name(label: Any) -> bool:
    return isinstance(label, str) and bool(label)


def _parse_span(item: Any, where: str, in_words: bool) -> tuple[list[tuple[int, int]], list[str]]:
    pairs: Any = []
    label: Any = None
    if isinstance(item, list | tuple) and len(item) == 3:
        pairs, label = [item[:2]], item[2]
    elif isinstance(item, Mapping):
        label = _first(item, "label", "type", "labels")
        keys = [("start", "end")] if in_words else _CHARACTER_KEYS
        spans = [(item[start], item.get(end)) for start, end in keys if item.get(start) is not None]
        pairs = item["offsets"] if isinstance(item.get("offsets"), list) else spans[:1]
        pairs = [pairs] if _is_pair(pairs) else pairs
    labels = label if isinstance(label, list) else [label]
    positions = isinstance(pairs, list) and pairs and all(map(_is_pair, pairs))
    if not positions or not labels or not all(map(_is_name, labels)):
        legal = f'{_SPAN} or [0, 2, "PER"], end exclusive'
        raise DataError(f"{where}: {item!r:.80} is not a span: write {legal}.")
    return [(start, end) for start, end in pairs], labels


def covers(text: str, fragments: Offsets, expected: str) -> bool:
    """True if fragments of a text read as expected, if that is not empty.

    White space and case are not compared.
    """
    inside = all(0 <= start < end <= len(text) for start, end in fragments)
    covered = "".join(text[start:end] for start, end in fragments)
    same = "".join(covered.split()).casefold() == "".join(expected.split()).casefold()
    return inside and (same or not expected.strip())


def _is_pair(value: Any) -> bool:
    two = isinstance(value, list | tuple) and len(value) == 2
    return two and all(type(position) is int for position in value)
