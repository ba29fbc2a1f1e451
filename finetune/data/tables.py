"""Rows of named columns from JSON, JSON Lines, CSV, TSV and Parquet files, with file and line."""

from __future__ import annotations

import csv
import itertools
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from finetune.data.dataset import DataError
from finetune.data.files import Opened
from finetune.types import shortened


class Record(NamedTuple):
    """The values of one row by column name, and the ``file:line`` where it begins."""

    values: Mapping[str, Any]
    where: str


@dataclass
class Table:
    """The rows of one split. ``header`` is empty where only the rows know their keys (JSON).

    ``typed`` tells whether values have types (JSON, Parquet) or are all text (CSV, TSV);
    ``names`` maps a column to the class names its numbers stand for; ``headless`` is the first
    row of a file that names no columns (they are then called ``0``, ``1``, …).
    """

    name: str
    header: list[str]
    records: Iterator[Record]
    typed: bool
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    headless: list[str] | None = None

    def first(self) -> Record | None:
        """The first row, which stays to be read; sets ``header`` from it where it is empty."""
        record = next(self.records, None)
        if record is None:
            return None
        self.records = itertools.chain([record], self.records)
        self.header = self.header or list(record.values)
        return record

    def all(self) -> list[Record]:
        """All rows; sets ``header`` from all of them where it is empty."""
        rows = list(self.records)
        if not self.header:
            self.header = list(dict.fromkeys(key for row in rows for key in row.values))
        return rows


_STSB = ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1",
         "sentence2", "score"]  # fmt: skip


def known_header(row: Sequence[str]) -> list[str] | None:
    """Column names of well-known files without a header: CoLA, and STS-B's train and dev."""
    if len(row) == 4 and row[1] in ("0", "1") and not row[2].strip("*?"):
        return ["source", "label", "star", "sentence"]
    if len(row) == 10 and row[0].isdecimal() and row[1].startswith("main-"):
        return list(_STSB)
    return None


def open_table(file: Opened, wanted: Collection[str], known: Collection[str]) -> Table:
    """A table of a file of format jsonl, json, csv, tsv or parquet.

    ``wanted`` are the columns that the user names, ``known`` the lower-case names that tell a
    header from data.
    """
    if file.format == "jsonl":
        return Table(file.name, [], _jsonl(file), typed=True)
    if file.format == "json":
        return Table(file.name, [], _json(file), typed=True)
    if file.format == "parquet":
        return _parquet(file)
    return _delimited(file, wanted, known)


def _jsonl(file: Opened) -> Iterator[Record]:
    for line in file:
        if line.text.strip():
            where = file.where(line.number)
            yield _object(_parse(line.text, where), where)


def _json(file: Opened) -> Iterator[Record]:
    """One list of objects, or JSON Lines under the suffix ``.json``."""
    first = file.first().strip()
    if first.startswith("{") and first != "{":
        yield from _jsonl(file)
        return
    rows = _parse("\n".join(line.text for line in file), file.name)
    if not isinstance(rows, list):
        raise DataError(
            f"{file.name}: holds one JSON {_kind(rows)}, not a list of objects: write "
            '[{"text": …, "label": …}, …], or one object per line in a .jsonl file.'
        )
    for number, row in enumerate(rows, 1):
        yield _object(row, f"{file.name}:item {number}")


def _parse(text: str, where: str) -> Any:
    try:
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except json.JSONDecodeError as error:
        place = f"{error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}"
        raise DataError(
            f"{where}: not valid JSON ({place}): JSON Lines has one "
            'object per line, for instance {"text": "Fine film", "label": "positive"}.'
        ) from error
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: holds half of a surrogate pair (such as \\ud83d), which is no character: "
            "write the whole character."
        ) from error


def _object(value: Any, where: str) -> Record:
    """A row; the pair ``[text, {"entities": […]}]``, as spaCy's training data are, is one too."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict):
        value = {"text": value[0], **value[1]}
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: a row must be a JSON object, not a {_kind(value)}: write for instance "
            '{"text": "Fine film", "label": "positive"}.'
        )
    return Record(value, where)


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "list", str: "string", type(None): "null", bool: "boolean"}
    return kinds.get(type(value), "number")


def _delimited(file: Opened, wanted: Collection[str], known: Collection[str]) -> Table:
    delimiter = _delimiter(file)
    rows = _csv_rows(file, delimiter) if file.format == "csv" and delimiter != "\t" else (
        (line.number, line.text.split("\t")) for line in file if line.text.strip(" "))  # fmt: skip
    first = next(rows, None)
    if first is None:
        return Table(file.name, [], iter(()), typed=False)
    cells = [cell.strip() for cell in first[1]]
    if _is_header(cells, wanted, known):
        return Table(file.name, cells, _records(file, cells, rows), typed=False)
    header = known_header(first[1]) or [str(index) for index in range(len(cells))]
    headless = None if header != [str(i) for i in range(len(cells))] else cells
    rows = itertools.chain([first], rows)
    return Table(file.name, header, _records(file, header, rows), typed=False, headless=headless)


def _is_header(cells: Sequence[str], wanted: Collection[str], known: Collection[str]) -> bool:
    """Whether a first row names columns: the user named one by name, or it has a known name."""
    if any(not name.lstrip("-").isdecimal() for name in wanted):
        return True
    number = re.compile(r"[-+]?\d+(\.\d+)?")
    named = any(cell.lower() in known for cell in cells)
    return named and not any(number.fullmatch(cell) for cell in cells)


def _delimiter(file: Opened) -> str:
    """Tab for TSV; for CSV a comma, unless the first line shows tabs or semicolons instead."""
    if file.format != "csv":
        return "\t"
    first = file.first()
    tabs, commas, semicolons = (first.count(mark) for mark in "\t,;")
    if tabs > commas:
        return "\t"
    return ";" if semicolons and not commas else ","


def _csv_rows(file: Opened, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV file with quoting; the number is the line where the row begins."""
    csv.field_size_limit(sys.maxsize)  # the default refuses fields over 131,072 characters
    reader = csv.reader((line.text + "\n" for line in file), delimiter=delimiter, strict=True)
    begin = 1
    try:
        for row in reader:
            if row:
                yield begin, row
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{file.where(begin)}: the quotes of this row do not match ({error}): inside a quoted "
            'field write a quote as two (""), or save the data as .tsv, where quotes are ordinary.'
        ) from error


def _records(
    file: Opened, header: Sequence[str], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[Record]:
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{file.where(number)}: {len(row)} fields where {len(header)} are expected "
                f"({shortened(header)}): {_ragged_advice(file, row)}"
            )
        yield Record(dict(zip(header, row, strict=True)), file.where(number))


def _ragged_advice(file: Opened, row: Sequence[str]) -> str:
    if file.format == "csv":
        return 'put fields that hold the separator in double quotes ("…").'
    quoted = any(cell.startswith('"') for cell in row)
    more = " TSV has no quoting: save as .csv if fields hold tabs or line breaks." if quoted else ""
    return f"separate fields by exactly one tab and leave empty ones empty.{more}"


def _parquet(file: Opened) -> Table:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(
            f"{file.name}: reading Parquet needs pyarrow: pip install pyarrow"
        ) from error
    try:
        opened = parquet.ParquetFile(file.name)
    except Exception as error:
        raise DataError(f"{file.name}: not a readable Parquet file ({error}).") from error
    schema = opened.schema_arrow
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = described.get("info", {}).get("features", {})

    def records() -> Iterator[Record]:
        number = itertools.count(1)
        for batch in opened.iter_batches():
            for row in batch.to_pylist():
                yield Record(row, f"{file.name}:row {next(number)}")

    return Table(file.name, list(schema.names), records(), True, label_names(features))


def label_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Class names by column, from the dictionary form of `datasets` features.

    A column of classes, or of lists of classes, has them under ``names``.
    """
    names = {}
    for column, feature in features.items():
        inner = feature
        while isinstance(inner, list) and inner:
            inner = inner[0]
        while isinstance(inner, dict) and "names" not in inner and "feature" in inner:
            inner = inner["feature"]
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and inner.get("names"):
            names[column] = list(inner["names"])
    return names
