"""Words with tags or spans -> TokenExample: one scheme for the whole data set, nesting kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from finetune.data.brat import Documents, open_documents
from finetune.data.conll import Columns, looks_like_columns, open_columns
from finetune.data.dataset import DataError, Dataset
from finetune.data.files import Opened, open_data
from finetune.data.loading import check_columns, tables_of
from finetune.data.reading_notes import checked_rows, span_notes
from finetune.data.schemes import in_bio, tagged
from finetune.data.sources import resolve
from finetune.data.spans import overlapping
from finetune.data.tables import Table, open_table
from finetune.data.token_records import KNOWN, WORDS, table_units
from finetune.data.units import Unit
from finetune.data.word_splitting import split_words
from finetune.types import Example, TokenExample

ROLES = ("words", "tags", "spans", "text", "document")


def read_tokens(
    spec: str,
    *,
    columns: Mapping[str, str] | None = None,
    splits: Sequence[str] | None = None,
) -> Dataset:
    """Read words with tags or spans into TokenExamples.

    ``spec`` is as for read_text. ``columns`` names the columns of the roles words, tags, spans,
    text and document where they cannot be guessed: names, or numbers from 0 in column files. Tags
    of a span scheme (IOB1, IO, BIOES, BILOU, BMES) are converted to BIO, and ``spans`` are what
    they spell; tags without a scheme (POS) stay, with ``spans`` None. Spans without tags get BIO
    tags unless some of the data set are nested. Spans over characters of a text are widened to
    whole words. Raises DataError with file and line.
    """
    columns = check_columns(columns, ROLES)
    loaded = tables_of(resolve(spec), splits, lambda file: _opened(file, columns))
    notes = list(loaded.notes)
    units: dict[str, list[Unit]] = {}
    for split, table in loaded.tables.items():
        found = list(_units(table, columns, needed=split == "train"))
        units[split], more = checked_rows(split, table.name, found, isinstance(table, Documents))
        notes += more
    notes += span_notes(units)
    units, scheme_notes = in_bio(units)
    examples: dict[str, list[Example]] = {
        split: [_example(index, unit) for index, unit in enumerate(rows)]
        for split, rows in units.items()
    }
    return Dataset(loaded.name, examples, notes=notes + scheme_notes, format=loaded.format)


def read_token_file(
    source: str | Path | IO[Any],
    *,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
) -> Iterator[TokenExample]:
    """Stream the words of one file in order, for prediction, without keeping them.

    ``source`` is a path, ``-`` for standard input, or a file object; the latter two hold JSON
    Lines or, by their first line, raw text. Raw text is split into words with their characters:
    the lines of a .txt file (a blank line is an example without words), the ``text`` of JSON, CSV
    and TSV, or each .txt file of a folder. In column files only the column of the words is needed.
    Gold is kept where there is some, tags in the scheme of the file. ``id`` is the row.
    """
    columns = check_columns(columns, ROLES)
    opened = _opened_plain(open_data(source, format), columns)
    for index, unit in enumerate(_units(opened, columns, streaming=True)):
        if len(unit.layers) > 1:
            unit = unit._replace(layers=())
        yield _example(index, tagged(unit, overlapping(unit.spans or ())))


def read_gold(
    source: str | Path, *, columns: Mapping[str, str] | None = None
) -> list[TokenExample]:
    """All rows of one file, or documents of one folder, with the tags and spans of read_tokens.

    Unlike there, rows without words or gold stay, so that answers can be laid beside them.
    """
    columns = check_columns(columns, ROLES)
    units, _ = in_bio({"gold": list(_units(_opened(open_data(source), columns), columns))})
    return [_example(index, unit) for index, unit in enumerate(units["gold"])]


def kind_of(spec: str) -> Literal["text", "tokens"]:
    """Whether a data set holds words with tags or texts, by its format and its first row."""
    source = resolve(spec)
    if source.files:
        file = open_data(next(iter(source.files.values()))[0])
        if file.format in ("conll", "conllu", "standoff") or _column_text(file):
            return "tokens"
        if file.format in ("csv", "tsv", "txt", "unknown"):
            return "text"
        table = open_table(file, (), KNOWN)
    else:
        table = next(iter(tables_of(source, None, lambda file: open_table(file, (), ())).tables
                          .values()))  # fmt: skip
    first = table.first()
    names = {name.lower() for name in first.values} if first else set()
    marked = first is not None and any(
        isinstance(value, list) and value and isinstance(value[0], dict | list)
        for value in first.values.values()
    )
    return "tokens" if names & set(WORDS) or marked else "text"


def _column_text(file: Opened) -> bool:
    return file.format in ("txt", "tsv", "unknown") and looks_like_columns(file)


def _opened(file: Opened, columns: Mapping[str, str]) -> Table | Columns | Documents:
    if file.format == "standoff":
        return _documents(file, columns)
    if file.format in ("jsonl", "json", "parquet"):
        return open_table(file, columns.values(), KNOWN)
    if file.format == "csv":
        raise DataError(
            f"{file.name}: CSV rows hold no words with tags: write one word and its tag a line "
            "(CoNLL columns), or JSON Lines with tokens and tags."
        )
    return open_columns(file, columns)


def _documents(file: Opened, columns: Mapping[str, str]) -> Documents:
    for role, name in columns.items():
        raise DataError(
            f"{file.name}: --columns {role}={name}: standoff annotation has no columns: leave it "
            "out."
        )
    return open_documents(Path(file.name))


def _opened_plain(
    file: Opened, columns: Mapping[str, str]
) -> Table | Columns | Documents | Iterator[Unit]:
    """Like _opened, for input without gold: raw text and tables of texts too."""
    if file.format == "standoff":
        return _documents(file, columns)
    if file.format == "txt" and (file.live or not looks_like_columns(file)):
        return _raw_lines(file)
    if file.format in ("jsonl", "json", "parquet", "csv"):
        return open_table(file, columns.values(), KNOWN)
    cells = {cell.strip().lower() for cell in file.first().split("\t")}
    if file.format == "tsv" and cells & KNOWN:
        return open_table(file, columns.values(), KNOWN)
    return open_columns(file, columns, ragged=True)


def _raw_lines(file: Opened) -> Iterator[Unit]:
    for line in file:
        words, offsets = split_words(line.text)
        where = file.where(line.number)
        yield Unit(tuple(words), where, text=line.text, offsets=tuple(offsets))


def _units(
    table: Table | Columns | Documents | Iterator[Unit],
    columns: Mapping[str, str],
    *,
    streaming: bool = False,
    needed: bool = False,
) -> Iterator[Unit]:
    if isinstance(table, Table):
        return table_units(table, columns, streaming, needed)
    if isinstance(table, Columns):
        return _column_units(table)
    return table.records if isinstance(table, Documents) else table


def _column_units(table: Columns) -> Iterator[Unit]:
    """The sentences of one file, or of several in turn: each begins documents of its own."""
    for number, (_, sentences) in enumerate(
        itertools.groupby(table.records, key=lambda sentence: sentence.where.rpartition(":")[0])
    ):
        for words, layers, where, document in sentences:
            if number and document is not None:
                document = f"{document} in file {number + 1}"
            yield Unit(words, where, layers, document=document)


def _example(index: int, unit: Unit) -> TokenExample:
    tags = unit.layers[0] if unit.layers else None
    return TokenExample(
        index, unit.words, unit.spans, tags, unit.document, unit.text, unit.offsets, unit.where
    )
