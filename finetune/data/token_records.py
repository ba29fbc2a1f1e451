"""Rows of JSON (or of a hub set) -> words with tags or spans, before schemes are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.loading import find_column, no_column
from finetune.data.span_records import read_spans
from finetune.data.tables import Record, Table
from finetune.data.units import Unit
from finetune.data.word_splitting import split_words
from finetune.types import shortened

WORDS = ("tokens", "words")
TEXTS = ("text", "sentence", "content", "data", "passages")
TAGS = ("tags", "ner_tags", "ner", "labels", "label", "upos", "pos_tags", "xpos", "chunk_tags")
SPANS = ("spans", "entities", "ner", "labels", "label", "annotations")
DOCUMENTS = ("document", "document_id", "doc_id", "doc_key")
KNOWN = frozenset({*WORDS, "text", "sentence", "content"})
"""Names that tell a header from data."""

LEFT_OUT = ("reject", "ignore")
"""Values of ``answer`` with which an annotator (in Prodigy) says that a row is no gold."""


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
    document = given.get("document") or _first(by_name, DOCUMENTS)
    return Roles(words, text, tags or None, spans, document)


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
    if roles.document and record.values.get(roles.document) not in (None, ""):  # an empty cell
        unit = unit._replace(document=str(record.values[roles.document]))
    answer = record.values.get("answer")
    if answer in LEFT_OUT:
        return unit._replace(left_out=answer)
    if roles.tags and record.values.get(roles.tags) is not None:
        unit = unit._replace(layers=(_tags(record, roles.tags, unit, names.get(roles.tags)),))
    spans = record.values.get(roles.spans) if roles.spans else None
    if roles.spans and spans is None and answer == "accept":
        spans = []
    return unit if spans is None else _with_spans(unit, record, spans)


def _words_of(record: Record, column: str) -> Unit:
    """Words as a list of texts, or as Prodigy's list of objects with characters."""
    value = record.values.get(column)
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{record.where}: column {column!r} must be a list of words, not {value!r:.60}: write "
            '["The", "film", …], or a text under "text".'
        )
    if value and all(isinstance(item, dict) for item in value) and "text" in record.values:
        text = str(record.values["text"])
        offsets = tuple(_token_place(token, text, record) for token in value)
        words = tuple(str(token.get("text", text[a:b])) for token, (a, b) in
                      zip(value, offsets, strict=True))  # fmt: skip
        for before, (start, _) in zip(offsets, offsets[1:], strict=False):
            if start < before[1]:
                raise DataError(f"{record.where}: the token at character {start} overlaps the one "
                                "before it: tokens stand in the order of the text.")  # fmt: skip
        return Unit(words, record.where, text=text, offsets=offsets)
    for item in value:
        if not isinstance(item, str | int | float):
            raise DataError(f"{record.where}: {item!r:.60} in {column!r} is no word: write texts.")
    return Unit(tuple(str(item) for item in value), record.where)


def _token_place(token: Mapping[str, Any], text: str, record: Record) -> tuple[int, int]:
    """The characters of a token that is an object."""
    start, end = token.get("start"), token.get("end")
    if not (type(start) is int and type(end) is int and 0 <= start <= end <= len(text)):
        raise DataError(
            f"{record.where}: {dict(token)!r:.80} is no token of the text: write "
            f'{{"text": "The", "start": 0, "end": 3}}, in characters from 0 to {len(text)}.'
        )
    return start, end


def _text_of(record: Record, column: str) -> Unit:
    text = record.values.get(column)
    if column.lower() == "passages" and isinstance(text, list):
        text = _joined_passages(text, record)
    if not isinstance(text, str):
        raise DataError(
            f"{record.where}: column {column!r} must be a text, not {text!r:.60}: write a text, or "
            'words as a list under "tokens".'
        )
    words, offsets = split_words(text)
    return Unit(tuple(words), record.where, text=text, offsets=tuple(offsets))


def _joined_passages(passages: Sequence[Any], record: Record) -> str:
    """The text of a document whose passages say at which character each stands (BigBio)."""
    text = ""
    for passage in passages:
        try:
            parts = zip(passage["text"], passage["offsets"], strict=True)
            places = [(int(start), str(part)) for part, (start, _) in parts]
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(
                f"{record.where}: {passage!r:.80} is no passage: write "
                '{"text": ["The film"], "offsets": [[0, 8]]}.'
            ) from error
        for start, part in places:
            text = text[:start].ljust(start) + part
    return text


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


def _with_spans(unit: Unit, record: Record, value: Any) -> Unit:
    """The unit with its spans; in characters where the row has a text, else in words."""
    read = read_spans(value, record.where, len(unit.words), unit.text, unit.offsets)
    return unit._replace(
        spans=read.spans,
        num_widened=read.num_widened,
        enveloped=(record.where,) * read.num_enveloped,
    )
