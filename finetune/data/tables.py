"""Tables of rows with named columns, and readers of CSV, TSV, Excel, Parquet and plain text."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any

from finetune.config.tasks import column_map
from finetune.data import examples as holder
from finetune.data.files import CONVERT_ADVICE, MAX_LINE, DataFile, ReadOptions, Row, keep_error
from finetune.registry import FORMATS, install_command
from finetune.types import DataError, abbreviated, did_you_mean, quantity

_WITHOUT_CONTENT = {"", "index", "idx", "answer", "meta"}
"""Columns in lower case that nobody expects to be read: numbers of rows, and keys of tools."""
_OF_TOOLS = {"annotations", "accept", "tokenized_text", "sentences", "data", "entities", "label"}
"""Columns of exports that `finetune convert` reads."""
_OWN_NAMES = frozenset(
    "text text_pair label tokens tags spans relations document question context answers "
    "is_impossible choices".split()
)
"""Columns that have the name of their role."""


Columns = Mapping[str, str | None]
"""The column that is read in each role; None for a role that no column has."""


@dataclass
class Table:
    """The rows of one split; ``header`` is empty until a row is read where only rows have keys."""

    name: str
    header: list[str] = field(default_factory=list)
    rows: Iterator[Any] = field(default_factory=partial(iter, ()))
    """Rows of named columns (``Row``), or ``TokenRow`` if they are ``sentences``."""
    typed: bool = True  # False if all values are text (CSV, TSV)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)  # class names of columns
    first_row: list[str] | None = None  # first row of a file without column names: 0, 1, …
    notes: list[str] = field(default_factory=list)
    sentences: bool = False
    """Whether the rows are words with their gold, since the format knows its columns."""
    read: Columns = field(default_factory=dict)
    """The columns that are read, by role, once a reader has chosen them."""
    corrected: list[str] = field(default_factory=list)
    """The locations of values that the reader has corrected, as it makes examples."""
    left_out: int = 0
    """How many rows are no examples."""

    @property
    def by_name(self) -> dict[str, str]:
        """The columns by their names in lower case; of two that differ only in case, the first."""
        return {name.lower(): name for name in reversed(self.header)}

    def find(self, role: str, columns: Mapping[str, str], usual: Sequence[str] = ()) -> str | None:
        """Find the column of a role, or None.

        It is the one that the user names in ``columns``, in any case or by its number from 0, else
        the first that has a usual name.
        """
        by_name, name = self.by_name, columns.get(role)
        if name is None:
            return next((by_name[name] for name in usual if name in by_name), None)
        if name in self.header:
            return name
        if name.lower() in by_name:
            return by_name[name.lower()]
        if name.isdecimal() and int(name) < len(self.header) and not self.typed:
            return self.header[int(name)]
        raise DataError(
            f"{self.name}: no column {name!r} (--columns {role}={name}); {_columns_found(self)}."
            f"{did_you_mean(name, self.header)}"
        )

    def peek(self, number: int | None) -> list[Any]:
        """The next rows, at most ``number``, which remain to be read; None returns all.

        The columns of these rows are the ``header`` if it is empty.
        """
        ahead = list(islice(self.rows, number))
        self.rows = chain(iter(ahead), self.rows)
        if not self.header and not self.sentences:
            self.header = list(dict.fromkeys(key for row in ahead for key in row.values))
        return ahead


def joined(parts: Iterable[Table]) -> Table:
    """Join tables into one; each is opened once the rows of the tables before it are read.

    The columns are those of the first table; further ones are noted. Raises DataError if a table
    does not fit to the first one.
    """
    remaining = iter(parts)
    first = next(remaining)

    def later_rows() -> Iterator[Any]:
        for number, table in enumerate(remaining, 2):
            begun = list(islice(table.rows, 1))  # now its columns are known
            _check_fit(first, table)
            first.typed = first.typed and table.typed
            if first.header and (unread := [n for n in table.header if n not in first.header]):
                lacking = f"columns that {first.name} does not have are not read"
                first.notes.append(f"{table.name}: {lacking}: {abbreviated(unread)}")
            first.notes += [note for note in table.notes if note not in first.notes]
            for row in chain(begun, table.rows):
                if table.sentences and row.document is not None:
                    row = row._replace(document=f"{row.document} in file {number}")
                yield row

    first.rows = chain(first.rows, later_rows())
    return first


def _check_fit(first: Table, second: Table) -> None:
    if first.sentences and second.sentences:
        return
    if first.sentences or second.sentences:
        raise DataError(
            f"{first.name} and {second.name} cannot be read as one split, since only one of "
            "them has rows of named columns: convert one of them with `finetune convert`."
        )
    if (first.first_row is None) != (second.first_row is None):
        with_header, without = (first, second) if first.first_row is None else (second, first)
        raise DataError(
            f"{with_header.name} names its columns and {without.name} does not: add the same "
            "header to both."
        )
    for column in (*first.names, *second.names):
        before, after = (list(table.names.get(column, ())) for table in (first, second))
        if before != after and {column} <= {*first.header} & {*second.header}:
            raise DataError(
                f"{first.name} and {second.name} number the classes of {column!r} in different "
                f"ways ({abbreviated(before) or 'no names'}; {abbreviated(after) or 'no names'}): "
                "save them with the same features."
            )


def column_notes(tables: Mapping[str, Table]) -> list[str]:
    """Note which columns of the tables by split are read, and which are not.

    Splits with the same columns share a note. There is none for columns that say it by their names.
    """
    by_note: dict[str, list[str]] = {}
    for split, table in tables.items():
        read = {role: name for role, name in table.read.items() if name is not None}
        chosen = {name.lower() for names in read.values() for name in names.split("+")}
        unread = [
            name
            for name in table.header
            if name.lower() not in {*chosen, *_WITHOUT_CONTENT}
            and not name.lower().endswith("id")
            and name[:1] != "_"
        ]
        note = "; ".join(f"{role}: {name}" for role, name in read.items())
        note += f" (not used: {abbreviated(unread)})" if unread else ""
        if "split" in map(str.lower, unread) and [*tables] == ["train"]:
            note += (
                ". The column split is not read: give each split as a file of its own, or in "
                "Python a dict of splits"
            )
        if table.read:
            by_note.setdefault(note if unread or chosen - _OWN_NAMES else "", []).append(split)
    if len(by_note) == 1:
        return [note for note in by_note if note]
    return [f"{', '.join(splits)}: {note}" for note, splits in by_note.items() if note]


def check_columns(columns: Any, roles: Sequence[str]) -> dict[str, str]:
    """Convert the user's columns to text by role; raise DataError for an unknown role.

    ``columns`` are a mapping, a text such as ``text=NAME``, or a list of these.
    """
    if columns and not isinstance(columns, Mapping):
        columns = column_map([columns] if isinstance(columns, str) else columns)
    by_role = {role: str(name) for role, name in (columns or {}).items()}
    for role, name in by_role.items():
        if role not in roles:
            legal = f"the roles here are {', '.join(roles)}.{did_you_mean(role, roles)}"
            raise DataError(f"--columns {role}={name}: {role!r} is not a role: {legal}")
    return by_role


class WordsNotTexts(DataError):
    """The data are words where texts are read."""


class MissingColumn(DataError):
    """No column has the usual name of a role; ``content`` is what it holds, ``more`` is advice."""

    def __init__(self, table: Table, role: str, content: str, usual: str, more: str = "") -> None:
        example = "NAME (its name)"
        if table.first_row is not None:
            example = f"0 (its number from 0; if that row is a header, its name: {role}=NAME)"
        of_tools = _OF_TOOLS if role in ("words", "tags") else _OF_TOOLS - {"label"}
        export = f"; {CONVERT_ADVICE}" if {*table.header} & of_tools else ""
        super().__init__(
            f"{table.name}: no column is known to hold {content}; {_columns_found(table)}. Name "
            f"it: --columns {role}={example}, or call it {usual!r} in the file{export}.{more}"
        )
        self.content, self.usual = content, usual


def _columns_found(table: Table) -> str:
    if table.first_row is None:
        columns = f"columns found: {abbreviated(table.header) or 'none'}"
        return "; ".join([columns, *table.notes])  # such as further sheets of a workbook
    cells = (cell if len(cell) <= 30 else cell[:29] + "…" for cell in table.first_row)
    row = ", ".join(f"{index}: {cell!r}" for index, cell in enumerate(cells))
    return f"the file has no header with known names; its first row: {row}"


def is_missing(value: Any) -> bool:
    """True if a cell is empty: None, or NaN as in data frames."""
    return value is None or value != value


def whole_number(value: Any) -> int | None:
    """Read a cell that holds a whole number, of at most 15 digits; None for any other cell."""
    text = str(value).strip()
    is_number = not isinstance(value, bool) and re.fullmatch(r"-?\d{1,15}(\.0+)?", text)
    return int(float(text)) if is_number else None


def text_cell(row: Row, column: str) -> str:
    """Read the text of a column, blank for an empty cell; raise DataError if the row has none."""
    value = row.values.get(column)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and value == value:
        return str(value)
    if is_missing(value) and column in row.values:
        return ""  # as in CSV files
    problem, advice = "is missing in this row", "write a text, or remove the row"
    if isinstance(value, dict | list):
        advice = "write a text in each row (in pandas, to_json(…, orient='records', lines=True))"
    if not is_missing(value):
        problem = f"holds {type(value).__name__}, not a text"
    raise DataError(
        f"{row.where}: column {column!r} {problem} (columns here: {', '.join(row.values)}): "
        f"{advice}."
    )


def read_file(file: DataFile, options: ReadOptions | None = None) -> Table:
    """Read a file with the reader of its format, once its rows are asked for."""
    table = Table(file.name)
    table.rows = FORMATS[file.format](file, options or ReadOptions(), table)
    return table


def open_text_table(file: DataFile, options: ReadOptions) -> Table:
    """Open a file as a table; text to predict has columns only if its first line names some."""
    if file.format in ("txt", "unknown"):
        first, names = file.first_line(), options.header_names
        tabs, commas = ({c.strip().lower() for c in re.split(m, first)} for m in ("\t", "[,;]"))
        tsv = len(tabs) > 1 and (not options.predicting or options.columns or tabs & names)
        may_be_csv = file.format == "unknown" or file.live
        csv = may_be_csv and len(commas) > 1 and commas & names
        file.format = "tsv" if tsv else "csv" if csv else "txt"
    if file.format in ("conll", "conllu"):
        raise WordsNotTexts(
            f"{file.name} has the format {file.format}, words and spans instead of texts with a "
            "label: use finetune tag or finetune ner, or give JSON Lines, CSV or TSV."
        )
    return read_file(file, options)


def read_plain_text(file: DataFile, options: ReadOptions, table: Table) -> Iterator[Row]:
    """Read each line, blank lines too, as the column ``text``."""
    table.header, table.typed = ["text"], False
    for number, text, _ in file.lines:
        yield Row({"text": text}, file.where(number))


_Cells = tuple[int, list[str]]
"""The cells of a row, and the number of the line where it begins."""


def read_delimited(file: DataFile, options: ReadOptions, table: Table) -> Iterator[Row]:
    """Read CSV (comma, semicolon or tab, with quoting) or TSV (quotes are ordinary characters).

    The first row is a header if the user names a column by name, or if it has a known name and no
    number. Columns without a header are called ``0``, ``1``, …
    """
    delimiter, table.typed = separator(file), False
    lines = _quoted_rows(file, delimiter, options.errors)
    if delimiter == "\t":
        lines = ((n, text.split("\t")) for n, text, _ in file.lines if text.strip(" "))
    first = next(lines, None)
    if first is None:
        return
    header = [cell.strip() for cell in first[1]]
    if not _is_header(header, options):
        lines = chain([first], lines)
        header, table.first_row = [str(index) for index in range(len(header))], header
    refuse_repeated(header, file.where(first[0]), options)
    table.header = header
    for number, fields in lines:
        problem = ""
        if fields == header and len(header) > 1 and table.first_row is None:
            problem = "the header again, as of files that were joined: remove this line"
        elif len(fields) != len(header):
            advice = "separate fields by exactly one tab; TSV has no quoting, CSV has"
            if file.format == "csv":
                advice = (
                    "CSV separates by commas, semicolons or tabs; put fields that hold the "
                    'separator in double quotes ("…")'
                )
            problem = (
                f"{quantity(len(fields), 'field')} where {len(header)} are expected "
                f"({abbreviated(header)}): {advice}"
            )
        if problem:
            keep_error(DataError(f"{file.where(number)}: {problem}."), options.errors)
        else:
            yield Row(dict(zip(header, fields, strict=True)), file.where(number))


def refuse_repeated(columns: Sequence[Any], where: str, options: ReadOptions | None = None) -> None:
    """Raise DataError if a table has two columns of one name: its rows keep the last one only.

    With ``options``, columns that are not read may have one name.
    """
    names = list(map(str, columns))
    if options is not None:
        readable = {*options.header_names, *(name.lower() for name in options.columns.values())}
        names = [name for name in map(str.lower, names) if name in readable]
    for name, number in Counter(names).items():
        if number > 1:
            raise DataError(
                f"{where}: the header has the column {name!r} {number} times: rename or remove "
                "all but one."
            )


def _is_header(cells: Sequence[str], options: ReadOptions) -> bool:
    if any(not name.lstrip("-").isdecimal() for name in options.columns.values()):
        return True
    named = any(cell.lower() in options.header_names for cell in cells)
    return named and not any(re.fullmatch(r"[-+]?\d+(\.\d+)?", cell) for cell in cells)


def separator(file: DataFile) -> str:
    """Find the separator of a file: a CSV file may separate by tabs or semicolons, if its first
    line has more of them than commas."""
    first = file.first_line()
    tabs, commas, semicolons = (first.count(mark) for mark in "\t,;")
    if file.format != "csv" or tabs > commas:
        return "\t"
    return ";" if semicolons > commas else ","


def _quoted_rows(file: DataFile, delimiter: str, errors: list[str] | None) -> Iterator[_Cells]:
    lines = (f"{text}{end}\n" for _, text, end in file.lines)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    begin, row = 1, list[str]()
    while True:
        # the limit of all readers of the process, which refuses fields over 131,072 characters
        limit = csv.field_size_limit(MAX_LINE)
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"the quotes of this row do not match ({error}): write a quote in a quoted"
            advice = 'field as two (""), or save as .tsv, where quotes are ordinary characters.'
            keep_error(DataError(f"{file.where(begin)}: {problem} {advice}"), errors)
            row = []
        finally:
            csv.field_size_limit(limit)
        if row:
            yield begin, row
        begin = reader.line_num + 1


def read_excel(file: DataFile, options: ReadOptions, table: Table) -> Iterator[Row]:
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
    sheet, *later_sheets = book.worksheets
    where = f"{file.name}:row"
    first = next(_sheet_rows(sheet, where, max_row=1), ())
    header = ["" if cell is None else str(cell).strip() for cell in first]
    while header and not header[-1]:
        header.pop()
    refuse_repeated(header, f"{where} 1", options)
    table.header = header
    if later_sheets:
        unread = abbreviated(repr(later_sheet.title) for later_sheet in later_sheets)
        table.notes.append(f"only the first sheet, {sheet.title!r}, is read, not {unread}")
    # cells right of the header are not asked for: a far one would fill each row up to it
    cells = _sheet_rows(sheet, where, min_row=2, max_col=max(1, len(header)))
    for number, row in enumerate(cells, 2):
        if any(cell not in (None, "") for cell in row):
            yield Row(dict(zip(header, row, strict=True)), f"{where} {number}")


def _sheet_rows(sheet: Any, where: str, **bounds: int) -> Iterator[tuple[Any, ...]]:
    number = bounds.get("min_row", 1)
    try:
        for row in sheet.iter_rows(values_only=True, **bounds):
            yield row
            number += 1
    except Exception as error:  # the library raises errors of many types
        raise DataError(f"{where} {number}: not a readable workbook ({error}).") from error


def read_parquet(file: DataFile, options: ReadOptions, table: Table) -> Iterator[Row]:
    """Read a Parquet file; class names come from the metadata that `datasets` writes."""
    return parquet_rows([file.name], f"{file.name}:row ", options, table)


def parquet_rows(
    paths: Sequence[Any], location: str, options: ReadOptions, table: Table
) -> Iterator[Row]:
    """Read Parquet files as one table; a row is at ``location`` and its number from 1."""
    import pyarrow
    import pyarrow.parquet

    names: dict[str, Sequence[str]] = {}
    header = dict[str, None]()
    for path in paths:
        try:
            schema = pyarrow.parquet.read_schema(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path}: not a readable Parquet file ({error}).") from error
        refuse_repeated(schema.names, str(path))
        refuse_repeated(schema.names, str(path), options)
        described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names |= class_names(described.get("info", {}).get("features", {}))
        header |= dict.fromkeys(schema.names)
    table.header, table.names = list(header), {**names, **table.names}
    number = 0
    for path in paths:
        first = number
        try:
            with pyarrow.parquet.ParquetFile(path) as opened:
                for batch in opened.iter_batches(holder.CHUNK):
                    for row in batch.to_pylist():
                        number += 1
                        yield Row(row, f"{location}{number}")
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise DataError(
                f"{path}: damaged after row {number - first} ({error}): copy it again."
            ) from error


def class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Read class names by column from the dictionary form of `datasets` features.

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
