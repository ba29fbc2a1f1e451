"""Rows of named columns from JSON, JSON Lines, CSV, TSV, Parquet and plain text files."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from finetune.data import example_store
from finetune.data.annotation_tools import (
    tool_rows,
)
from finetune.data.collecting import Many
from finetune.data.dataset import DataError
from finetune.data.files import (
    MAX_LINE,
    Block,
    DataFile,
    Line,
    ReadOptions,
    Record,
    Unparsed,
    Wanted,
    check_characters,
    keep_error,
)
from finetune.data.json_files import parse_json
from finetune.data.squad_files import is_squad, squad_rows
from finetune.types import abbreviated, did_you_mean, install_command, quantity

_WITHOUT_CONTENT = {"", "index", "idx", "answer", "meta"}
"""Columns in lower case that nobody expects to be read: numbers of rows, and keys of tools."""
_OWN_NAMES = frozenset(
    "text text_pair label tokens tags spans relations document question context answers "
    "is_impossible choices".split()
)
"""Columns that have the name of their role."""


@dataclass
class Table:
    """The rows of one split; ``header`` is empty until a row is read where only rows have keys."""

    name: str
    header: list[str]
    records: Iterator[Record]
    typed: bool = True  # False if all values are text (CSV, TSV)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)  # class names of columns
    headless: list[str] | None = None  # first row of a file without column names: 0, 1, …
    notes: list[str] = field(default_factory=list)
    usual_columns: Mapping[str, str] = field(default_factory=dict)
    """Columns to read by role if the table has them and the user names none."""
    label_column: str | None = None
    """The column of labels or tags, once a reader has chosen it."""
    read: dict[str, str] = field(default_factory=dict)
    """The columns that are read, by role, once a reader has chosen them."""
    corrected: list[str] = field(default_factory=list)
    """The places of values that the reader has corrected, as it makes examples."""

    @property
    def label_order(self) -> tuple[str, ...]:
        """The class names of the labels in the order of their numbers; empty if they have none."""
        return tuple(self.names.get(self.label_column or "", ()))

    def choose(self, **columns: str | None) -> None:
        """Keep which column is read in each role."""
        self.read = {role: name for role, name in columns.items() if name is not None}

    def columns(self, given: Mapping[str, str], roles: Sequence[str]) -> dict[str, str]:
        """Return the columns that the user names, and the usual ones of these roles it has."""
        known = {name.lower() for name in self.header}
        usual = self.usual_columns.items()
        return {role: name for role, name in usual if role in roles and name.lower() in known} | {
            **given
        }

    def first(self) -> Record | None:
        """Return the first row without consuming it; sets ``header`` from it if it is empty."""
        record = next(self.records, None)
        if record is None:
            return None
        if isinstance(self.records, Unparsed):
            self.records.put_back([record])
        else:
            self.records = itertools.chain([record], self.records)
        self.header = self.header or list(record.values)
        return record

    def all(self) -> list[Record]:
        """Return all rows, as ``rows`` yields them."""
        return list(self.rows()[1])

    def rows(self) -> tuple[list[Record], list[Record] | ManyRows]:
        """Return the first rows (all, up to ``MOST_IN_MEMORY``), and all rows.

        Sets ``header`` from the first rows if it is empty.
        """
        first = list(itertools.islice(self.records, example_store.MOST_IN_MEMORY + 1))
        if not self.header:
            self.header = list(dict.fromkeys(key for row in first for key in row.values))
        large = len(first) > example_store.MOST_IN_MEMORY
        return first, ManyRows(self, first) if large else first


class ManyRows(Many[Record]):
    """All rows of a table that has too many for the memory.

    Args:
        table: The table.
        first: The first rows, which are read already. This list is emptied.
    """

    def __init__(self, table: Table, first: list[Record]) -> None:
        self.table, self.known = table, {*table.header}
        super().__init__(first, table.records)

    def parsed(self, chunk: Any, later: dict[str, None]) -> Iterator[Record]:
        """Yield the rows of a chunk; ``later`` gets the columns that none of the first rows has."""
        for row in super().parsed(chunk, later):
            if not self.known.issuperset(row.values):
                later |= dict.fromkeys(name for name in row.values if name not in self.known)
            yield row

    def note(self, later: Mapping[str, None]) -> None:
        """Note the columns that only later rows have."""
        if later:
            self.table.notes.append(
                f"columns that no row has before row {self.number:,} are not read: "
                f"{abbreviated(list(later))}"
            )


def column_notes(tables: Mapping[str, Table]) -> list[str]:
    """Return which columns of the tables by split are read, and which are not.

    Splits with the same columns share a note. There is none for columns that say it by their names.
    """
    found: dict[str, list[str]] = {}
    for split, table in tables.items():
        if table.read:
            found.setdefault(_columns_read(table), []).append(split)
    if len(found) == 1:
        return [note for note in found if note]
    return [f"{', '.join(splits)}: {note}" for note, splits in found.items() if note]


def _columns_read(table: Table) -> str:
    """Return a line such as ``text: Message; label: Category (not used: Team)``, or nothing."""
    chosen = {name.lower() for names in table.read.values() for name in names.split("+")}
    unread = [
        name
        for name in table.header
        if name.lower() not in {*chosen, *_WITHOUT_CONTENT}
        and not name.lower().endswith("id")
        and name[:1] != "_"
    ]
    if not unread and chosen <= _OWN_NAMES:
        return ""
    line = "; ".join(f"{role}: {name}" for role, name in table.read.items())
    return f"{line} (not used: {abbreviated(unread)})" if unread else line


def numbered_rows(
    records: Iterable[Record], rows: dict[int, Mapping[str, Any]] | None, wanted: Wanted | None
) -> Iterator[tuple[int, Record]]:
    """Yield the wanted rows with their numbers from 0, and enter their values in ``rows``."""
    numbered: Iterable[tuple[int, Record]] = enumerate(records)
    if wanted is not None:
        unparsed = records if isinstance(records, Unparsed) else Unparsed(iter(records))
        numbered = unparsed.numbered(wanted)
    for number, record in numbered:
        if rows is not None:
            rows[number] = record.values
        yield number, record


def check_columns(columns: Mapping[str, str] | None, roles: Sequence[str]) -> dict[str, str]:
    """Return the user's columns by role as text; raises DataError for an unknown role."""
    columns = {role: str(name) for role, name in (columns or {}).items()}
    for role in columns:
        if role not in roles:
            legal = f"the roles here are {', '.join(roles)}.{did_you_mean(role, roles)}"
            raise DataError(f"--columns {role}={columns[role]}: {role!r} is not a role: {legal}")
    return columns


def find_column(table: Table, role: str, name: str) -> str:
    """Return the column that the user names, in any case or by its number from 0."""
    if name in table.header:
        return name
    lowered = {column.lower(): column for column in reversed(table.header)}
    if name.lower() in lowered:
        return lowered[name.lower()]
    if name.isdecimal() and int(name) < len(table.header) and not table.typed:
        return table.header[int(name)]
    hint = did_you_mean(name, table.header)
    found = _columns_found(table)
    raise DataError(f"{table.name}: no column {name!r} (--columns {role}={name}); {found}.{hint}")


class MissingColumn(DataError):
    """No column has the usual name of a role; ``content`` and ``usual`` are what it holds, and the
    name."""

    def __init__(self, message: str, content: str, usual: str) -> None:
        super().__init__(message)
        self.content, self.usual = content, usual


def missing_column(
    table: Table, role: str, content: str, usual: str, more: str = ""
) -> MissingColumn:
    """Return the error for a role that no column has the usual name of; ``more`` is advice."""
    example = "NAME (its name)"
    if table.headless is not None:
        example = f"0 (its number from 0; if that row is a header, its name: {role}=NAME)"
    return MissingColumn(
        f"{table.name}: no column is known to hold {content}; {_columns_found(table)}. Name it: "
        f"--columns {role}={example}, or call it {usual!r} in the file.{more}",
        content,
        usual,
    )


def empty_split(table: Table, split: str) -> DataError:
    """Return the error for a split without rows."""
    more = "".join(f" ({note})" for note in table.notes)  # such as further sheets of a workbook
    return DataError(f"{table.name}: the {split} split is empty{more}: add rows or leave it out.")


def _columns_found(table: Table) -> str:
    if table.headless is None:
        found = f"columns found: {abbreviated(table.header) or 'none'}"
        return "; ".join([found, *table.notes])  # such as further sheets of a workbook
    cells = (cell if len(cell) <= 30 else cell[:29] + "…" for cell in table.headless)
    row = ", ".join(f"{index}: {cell!r}" for index, cell in enumerate(cells))
    return f"the file has no header with known names; its first row: {row}"


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty: None, or NaN as in data frames."""
    return value is None or value != value


def whole_number(value: Any) -> int | None:
    """Return a cell that holds a whole number, of at most 15 digits; None for any other cell."""
    text = str(value).strip()
    is_number = not isinstance(value, bool) and re.fullmatch(r"-?\d{1,15}(\.0+)?", text)
    return int(float(text)) if is_number else None


def text_cell(record: Record, column: str) -> str:
    """Return the text of a column, blank for an empty cell; raise DataError if the row has none."""
    value = record.values.get(column)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and value == value:
        return str(value)
    if is_missing(value) and column in record.values:
        return ""  # as in CSV files
    problem = "is missing in this row"
    if not is_missing(value):
        problem = f"holds {type(value).__name__}, not a text"
    raise DataError(
        f"{record.where}: column {column!r} {problem} (columns here: {', '.join(record.values)}): "
        "write a text, or remove the row."
    )


_JSON_ROW = 'one object per line, such as {"text": "Fine film", "label": "positive"}'
_JSON_ADVICE = f": write {_JSON_ROW}."


def read_json_lines(file: DataFile, options: ReadOptions) -> Table:
    """Read one JSON object per line."""

    def parse(lines: Iterable[Line]) -> Iterator[Record]:
        for number, text in lines:
            if text.strip():
                where = file.where(number)
                try:
                    value = parse_json(text, where, _JSON_ADVICE)
                    yield from _rows(value, where)
                except DataError as error:
                    check_characters(file.name, Line(number, text), is_last=True)
                    keep_error(error, options.errors)

    return Table(file.name, [], file.unparsed().converted(parse, _count_json_rows))


_SEVERAL_ROWS = b'"annotations"', b'"paragraphs"'
"""Keys of objects that are several rows."""
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")


def _count_json_rows(unit: Any) -> int | None:
    """Return the number of rows in a block of lines; None if only their values can tell."""
    if not _is_countable(unit) or any(key in unit.content for key in _SEVERAL_ROWS):
        return None
    if b"\\u00" in unit.content and _ESCAPED_LETTER.search(unit.content):
        return None  # such a key may be written with escapes
    lines = unit.content.decode(errors="replace").split("\n")
    return len(lines) - sum(not line.strip() for line in lines)


def _is_countable(unit: Any) -> bool:
    """Return whether a unit is a block of bytes; the first may begin with a byte order mark."""
    return isinstance(unit, Block) and unit.number > 1


def read_json(file: DataFile, options: ReadOptions) -> Table:
    """Read one list of objects, or JSON Lines in a file with the suffix ``.json``."""
    first = file.first_line().strip()
    if first.startswith("{") and first != "{":
        return read_json_lines(file, options)
    items = parse_json("\n".join(line.text for line in file), file.name, _JSON_ADVICE)
    if is_squad(items):
        return Table(file.name, [], squad_rows(items, file.name))
    if not isinstance(items, list):
        raise DataError(
            f"{file.name}: holds one JSON {_json_type(items)}, not a list of objects: write "
            '[{"text": …, "label": …}, …], or one object per line in a .jsonl file.'
        )
    rows = (_rows(item, f"{file.name}:item {i}") for i, item in enumerate(items, 1))
    return Table(file.name, [], itertools.chain.from_iterable(rows))


def _rows(value: Any, where: str) -> Iterator[Record]:
    """Return an object as rows; spaCy's pair ``[text, {"entities": […]}]`` is a row too."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict):
        value = {"text": value[0], **value[1]}
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: a row must be a JSON object, not a {_json_type(value)}: write {_JSON_ROW}."
        )
    return squad_rows(value, where) if is_squad(value) else tool_rows(value, where)


def _json_type(value: Any) -> str:
    types = {dict: "object", list: "list", str: "string", type(None): "null", bool: "boolean"}
    return types.get(type(value), "number")


def read_plain_text(file: DataFile, options: ReadOptions) -> Table:
    """Read each line, blank lines too, as the column ``text``."""

    def parse(lines: Iterable[Line]) -> Iterator[Record]:
        return (Record({"text": text}, file.where(number)) for number, text in lines)

    lines = file.unparsed()
    return Table(file.name, ["text"], lines.converted(parse, lines.count), typed=False)


_Row = tuple[int, list[str]]
"""The cells of a row, and the number of the line where it begins."""


def read_delimited(file: DataFile, options: ReadOptions) -> Table:
    """Read CSV (comma, semicolon or tab, with quoting) or TSV (quotes are ordinary characters).

    The first row is a header if the user names a column by name, or if it has a known name and no
    number. Columns without a header are called ``0``, ``1``, …
    """
    rows = _delimited_rows(file)
    first = next(rows, None)
    if first is None:
        return Table(file.name, [], iter(()), typed=False)
    header = cells = [cell.strip() for cell in first[1]]
    headless = None
    if not _is_header(cells, options):
        rows.put_back([first])
        header, headless = [str(index) for index in range(len(cells))], cells
    check_header(header, options, file.where(first[0]))
    records = rows.converted(
        partial(_records, file, header, headless is not None, options.errors), rows.count
    )
    return Table(file.name, header, records, typed=False, headless=headless)


def check_header(header: Sequence[str], options: ReadOptions, where: str) -> None:
    """Raise DataError if a header names a column that is read more than once."""
    lowered = [name.lower() for name in header]
    known = {*options.header_names, *(name.lower() for name in options.columns.values())}
    if repeated := next(
        (name for name in lowered if lowered.count(name) > 1 and name in known), ""
    ):
        raise DataError(
            f"{where}: the header has the column {repeated!r} "
            f"{lowered.count(repeated)} times: rename or remove all but one."
        )


def refuse_repeated(columns: Sequence[Any], where: str) -> None:
    """Raise DataError if a table has two columns of one name: its rows keep the last one only."""
    name, number = Counter(map(str, columns)).most_common(1)[0] if len(columns) else ("", 0)
    if number > 1:
        raise DataError(
            f"{where}: the column {name!r} is there {number} times: rename or remove all but one."
        )


def _is_header(cells: Sequence[str], options: ReadOptions) -> bool:
    if any(not name.lstrip("-").isdecimal() for name in options.columns.values()):
        return True
    named = any(cell.lower() in options.header_names for cell in cells)
    return named and not any(re.fullmatch(r"[-+]?\d+(\.\d+)?", cell) for cell in cells)


def _delimited_rows(file: DataFile) -> Unparsed[_Row]:
    """Return rows with the number of the line where each begins.

    A CSV file may separate by tabs or semicolons, if its first line has them instead of commas.
    """
    first = file.first_line()
    tabs, commas, semicolons = (first.count(mark) for mark in "\t,;")
    if file.format != "csv" or tabs > commas:
        return file.unparsed().converted(_tab_separated, _count_tab_separated)
    return Unparsed(_quoted_rows(file, ";" if semicolons and not commas else ","), count=_one)


def _one(unit: Any) -> int:
    return 1


def _tab_separated(lines: Iterable[Line]) -> Iterator[_Row]:
    return ((number, text.split("\t")) for number, text in lines if text.strip(" "))


def _count_tab_separated(unit: Any) -> int | None:
    if not _is_countable(unit):
        return None
    lines = unit.content.split(b"\n")
    return sum(bool(line.rstrip(b"\r").strip(b" ")) for line in lines)


def _quoted_rows(file: DataFile, delimiter: str) -> Iterator[_Row]:
    csv.field_size_limit(MAX_LINE)  # the default refuses fields over 131,072 characters
    reader = csv.reader((line.text + "\n" for line in file), delimiter=delimiter, strict=True)
    begin = 1
    try:
        for row in reader:
            if row:
                yield begin, row
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{file.where(begin)}: the quotes of this row do not match ({error}): write a quote in "
            'a quoted field as two (""), or save as .tsv, where quotes are ordinary characters.'
        ) from error


def _records(
    file: DataFile,
    header: Sequence[str],
    headless: bool,
    errors: list[str] | None,
    rows: Iterable[_Row],
) -> Iterator[Record]:
    for number, row in rows:
        problem = ""
        if row == header and len(header) > 1 and not headless:
            problem = "the header again, as of files that were joined: remove this line"
        elif len(row) != len(header):
            advice = "separate fields by exactly one tab; TSV has no quoting, CSV has"
            if file.format == "csv":
                advice = 'put fields that hold the separator in double quotes ("…")'
            problem = (
                f"{quantity(len(row), 'field')} where {len(header)} are expected "
                f"({abbreviated(header)}): {advice}"
            )
        if problem:
            keep_error(DataError(f"{file.where(number)}: {problem}."), errors)
        else:
            yield Record(dict(zip(header, row, strict=True)), file.where(number))


def read_excel(file: DataFile, options: ReadOptions) -> Table:
    """Read the first sheet of a workbook; its first row is the header."""
    try:
        import openpyxl
    except ImportError as error:
        raise DataError(
            f"{file.name}: workbooks need openpyxl: {install_command('openpyxl')}, or save as CSV."
        ) from error
    try:
        book = openpyxl.load_workbook(file.name, read_only=True, data_only=True)
    except Exception as error:  # the library raises errors of many types
        raise DataError(f"{file.name}: not a readable workbook ({error}).") from error
    if not book.worksheets:
        raise DataError(f"{file.name}: the workbook has no sheet with cells: add one.")
    sheet, *others = book.worksheets
    where = f"{file.name}:row"
    first = next(_sheet_rows(sheet, where, max_row=1), ())
    header = ["" if cell is None else str(cell).strip() for cell in first]
    while header and not header[-1]:
        header.pop()
    check_header(header, options, f"{where} 1")
    # cells right of the header are not asked for: a far one would fill each row up to it
    rows = _sheet_rows(sheet, where, min_row=2, max_col=max(1, len(header)))
    records = (
        Record(dict(zip(header, row, strict=True)), f"{where} {number}")
        for number, row in enumerate(rows, 2)
        if any(cell not in (None, "") for cell in row)
    )
    table = Table(file.name, header, records)
    if others:
        unread = abbreviated(repr(other.title) for other in others)
        table.notes = [f"only the first sheet, {sheet.title!r}, is read, not {unread}"]
    return table


def _sheet_rows(sheet: Any, where: str, **bounds: int) -> Iterator[tuple[Any, ...]]:
    """Yield the values of the rows of a sheet."""
    number = bounds.get("min_row", 1)
    try:
        for row in sheet.iter_rows(values_only=True, **bounds):
            yield row
            number += 1
    except Exception as error:  # the library raises errors of many types
        raise DataError(f"{where} {number}: not a readable workbook ({error}).") from error


def read_parquet(file: DataFile, options: ReadOptions) -> Table:
    """Read a Parquet file; class names come from the metadata that `datasets` writes."""
    import pyarrow
    import pyarrow.parquet

    try:
        opened = pyarrow.parquet.ParquetFile(file.name)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file.name}: not a readable Parquet file ({error}).") from error
    schema = opened.schema_arrow
    refuse_repeated(schema.names, file.name)
    check_header(schema.names, options, file.name)
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = described.get("info", {}).get("features", {})

    def damaged(number: int, error: Exception) -> DataError:
        return DataError(f"{file.name}: damaged after row {number} ({error}): copy it again.")

    def batches() -> Iterator[tuple[int, Any]]:
        number = 0
        try:
            for batch in opened.iter_batches(size):
                yield number, batch
                number += batch.num_rows
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise damaged(number, error) from error

    def parse(unit: tuple[int, Any]) -> Iterator[Record]:
        number, batch = unit
        try:
            rows = batch.to_pylist()
        except (pyarrow.ArrowException, ValueError) as error:
            raise damaged(number, error) from error
        return (Record(row, f"{file.name}:row {n}") for n, row in enumerate(rows, number + 1))

    size = example_store.CHUNK
    records = Unparsed(
        batches(),
        parse,
        size,
        lambda unit: int(unit[1].num_rows),
        lambda unit: (unit[0] + unit[1].num_rows) / opened.metadata.num_rows,
    )
    return Table(file.name, list(schema.names), records, names=class_names(features))


def class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return class names by column from the dictionary form of `datasets` features.

    A column of classes, or of lists of classes, has them under ``names``.
    """
    names = {}
    for column, feature in features.items():
        while isinstance(feature, list) and feature:
            feature = feature[0]
        while isinstance(feature, dict) and "names" not in feature and "feature" in feature:
            feature = feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            if feature.get("names"):
                names[column] = list(feature["names"])
    return names
