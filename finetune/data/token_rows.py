"""Rows of JSON (or of a hub set) -> words with tags or spans, before schemes are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from finetune.align import char_spans_to_words, split_words
from finetune.data.dataset import DataError
from finetune.data.loading import find_column, no_column
from finetune.data.tables import Record, Table
from finetune.types import Span, shortened

WORDS = ("tokens", "words")
TEXTS = ("text", "sentence", "content")
TAGS = ("tags", "ner_tags", "ner", "labels", "label", "upos", "pos_tags", "xpos", "chunk_tags")
SPANS = ("spans", "entities", "ner", "labels", "label", "annotations")
DOCUMENTS = ("document", "document_id", "doc_id")
KNOWN = frozenset({*WORDS, *TEXTS})
_SPAN_LABELS = ("label", "type", "entity", "tag")


class Unit(NamedTuple):
    """The words of one row or sentence with what gold there is.

    ``layers`` holds tag sequences as the data have them: none, one, or several for nested
    annotation. ``num_widened`` counts character spans that grew to whole words.
    """

    words: tuple[str, ...]
    where: str
    layers: tuple[tuple[str, ...], ...] = ()
    spans: tuple[Span, ...] | None = None
    document: str | None = None
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] | None = None
    num_widened: int = 0


@dataclass(frozen=True)
class Roles:
    """The columns of a table that hold words or text, tags, spans and documents."""

    words: str | None
    text: str | None
    tags: str | None = None
    spans: str | None = None
    document: str | None = None


def token_roles(table: Table, columns: Mapping[str, str], rows: Sequence[Record]) -> Roles:
    """Which column is which: those the user names, else usual names whose values fit."""
    by_name = {name.lower(): name for name in reversed(table.header)}
    given = {role: find_column(table, role, name) for role, name in columns.items()}
    words = given.get("words") or _first(by_name, WORDS)
    if "text" in given and "words" not in given:
        words = None
    text = None if words else given.get("text") or _first(by_name, TEXTS)
    if words is None and text is None:
        raise no_column(table, "words", "words or a text", "tokens")
    tags = given.get("tags") or (words and _fitting(by_name, TAGS, rows, (str, int)))
    spans = given.get("spans") or _fitting(by_name, SPANS, rows, (dict, list, tuple))
    if "tags" in given and "spans" not in given:
        spans = None
    return Roles(words, text, tags or None, spans, _first(by_name, DOCUMENTS))


def _first(by_name: Mapping[str, str], usual: Sequence[str]) -> str | None:
    return next((by_name[name] for name in usual if name in by_name), None)


def _fitting(
    by_name: Mapping[str, str], usual: Sequence[str], rows: Sequence[Record], kinds: tuple
) -> str | None:
    """The first usual column whose values are lists of the right kind (all empty counts too)."""
    for name in (by_name[name] for name in usual if name in by_name):
        values = (row.values.get(name) for row in rows)
        filled = next((value for value in values if value not in (None, [], "")), None)
        if filled is None or (isinstance(filled, list) and isinstance(filled[0], kinds)):
            return name
    return None


def table_units(
    table: Table, columns: Mapping[str, str], streaming: bool = False, needed: bool = False
) -> Iterator[Unit]:
    """The units of a table, in order.

    ``streaming`` keeps no rows and decides on the columns by the first; where gold is ``needed``,
    a table without a column for it is an error.
    """
    if not streaming:
        rows: Sequence[Record] = table.all()
        records: Iterator[Record] = iter(rows)
    else:
        first = table.first()
        rows, records = ([first] if first else []), table.records
    if not rows:
        return
    roles = token_roles(table, columns, rows)
    if needed and roles.tags is None and roles.spans is None:
        raise no_column(table, "tags", "tags or spans", "tags")
    for record in records:
        yield _unit(record, roles, table.names)


def _unit(record: Record, roles: Roles, names: Mapping[str, Sequence[str]]) -> Unit:
    unit = _words_of(record, roles.words) if roles.words else _text_of(record, roles.text or "")
    if roles.document and record.values.get(roles.document) is not None:
        unit = unit._replace(document=str(record.values[roles.document]))
    if roles.tags and record.values.get(roles.tags) is not None:
        unit = unit._replace(layers=(_tags(record, roles.tags, unit, names.get(roles.tags)),))
    if roles.spans and record.values.get(roles.spans) is not None:
        unit = _with_spans(unit, record, roles.spans)
    return unit


def _words_of(record: Record, column: str) -> Unit:
    """Words as a list of texts, or as Prodigy's list of objects with characters."""
    value = record.values.get(column)
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{record.where}: column {column!r} must be a list of words, not {value!r:.60}: write "
            '["The", "film", …], or a text under "text".'
        )
    if value and all(isinstance(item, dict) for item in value) and "text" in record.values:
        offsets = tuple((_int(t, "start", record), _int(t, "end", record)) for t in value)
        text = str(record.values["text"])
        words = tuple(str(token.get("text", text[a:b])) for token, (a, b) in
                      zip(value, offsets, strict=True))  # fmt: skip
        return Unit(words, record.where, text=text, offsets=offsets)
    for item in value:
        if not isinstance(item, str | int | float):
            raise DataError(f"{record.where}: {item!r:.60} in {column!r} is no word: write texts.")
    return Unit(tuple(str(item) for item in value), record.where)


def _text_of(record: Record, column: str) -> Unit:
    text = record.values.get(column)
    if not isinstance(text, str):
        raise DataError(
            f"{record.where}: column {column!r} must be a text, not {text!r:.60}: write a text, or "
            'words as a list under "tokens".'
        )
    words, offsets = split_words(text)
    return Unit(tuple(words), record.where, text=text, offsets=tuple(offsets))


def _tags(record: Record, column: str, unit: Unit, names: Sequence[str] | None) -> tuple[str, ...]:
    value = record.values.get(column)
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{record.where}: column {column!r} must be a list with one tag for each word, not "
            f"{value!r:.60}."
        )
    if len(value) != len(unit.words):
        raise DataError(
            f"{record.where}: {len(unit.words)} words but {len(value)} tags in {column!r}: every "
            "word needs exactly one tag."
        )
    return tuple(_tag(item, names, record, column) for item in value)


def _tag(item: Any, names: Sequence[str] | None, record: Record, column: str) -> str:
    if isinstance(item, int) and names is not None:
        if 0 <= item < len(names):
            return names[item]
        raise DataError(
            f"{record.where}: tag {item} in {column!r} is outside the {len(names)} classes of the "
            f"data set ({shortened(names)})."
        )
    if isinstance(item, str | int) and item != "":
        return str(item)
    raise DataError(f"{record.where}: {item!r} in {column!r} is no tag: write a text such as 'O'.")


def _with_spans(unit: Unit, record: Record, column: str) -> Unit:
    """The unit with its spans; in characters where the row has a text, else in words."""
    value = record.values.get(column)
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{record.where}: column {column!r} must be a list of spans, not {value!r:.60}: write "
            '[{"start": 0, "end": 2, "label": "PER"}, …].'
        )
    spans = [_span(item, record) for item in value]
    in_characters = unit.text is not None
    limit = len(unit.text) if unit.text is not None else len(unit.words)
    for start, end, label in spans:
        if not 0 <= start < end <= limit:
            unit_name = "characters" if in_characters else "words"
            raise DataError(
                f"{record.where}: span {start} to {end} ({label}) is empty or outside the {limit} "
                f"{unit_name} of the row: 0 <= start < end <= {limit}, end exclusive."
            )
    num_widened = 0
    if in_characters:
        try:
            spans, num_widened = char_spans_to_words(unit.offsets or (), spans)
        except ValueError as error:
            raise DataError(f"{record.where}: {error}: correct or remove this span.") from error
    return unit._replace(spans=tuple(dict.fromkeys(sorted(spans))), num_widened=num_widened)


def _span(item: Any, record: Record) -> Span:
    if isinstance(item, dict):
        label = next((item[key] for key in _SPAN_LABELS if item.get(key) is not None), None)
        start, end = _int(item, "start", record), _int(item, "end", record)
    elif isinstance(item, list | tuple) and len(item) == 3:
        start, end, label = item
    else:
        start = end = label = None
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (start, end))
    if not whole or not isinstance(label, str) or not label:
        raise DataError(
            f"{record.where}: {item!r:.80} is no span: write "
            '{"start": 0, "end": 2, "label": "PER"} or [0, 2, "PER"], end exclusive.'
        )
    return Span(start, end, label)


def _int(item: Mapping[str, Any], key: str, record: Record) -> int:
    value = item.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise DataError(f"{record.where}: {key!r} must be a whole number in {dict(item)!r:.80}.")
