"""Files of records, one row each: the suffix of the name is the format.

Files appear whole or not at all. A text in a table that a spreadsheet would take for a formula
begins with an apostrophe.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from finetune.runtime.files import replace_file
from finetune.types import UserError, abbreviated

JsonRecord = Mapping[str, Any]
Write = Callable[[JsonRecord], None]

GOLD = ("label", "choice")
"""Fields of predictions that are named as columns of gold."""
GROUP = 4096
"""Rows of a row group of Parquet files."""


def require_suffix(path: str | Path, legal: Iterable[str], option: str = "--out") -> str:
    """Check the suffix of a file to write, in lower case; UserError if it names another format.

    Pipes and devices have the first of the legal suffixes.
    """
    suffixes = list(legal)
    suffix = Path(path).suffix.lower()
    if Path(path).exists() and not Path(path).is_file():
        return suffixes[0]
    if suffix not in suffixes:
        listed = ", ".join(filter(None, suffixes))
        raise UserError(f"{option} {path}: the suffix names the format: one of {listed}.")
    return suffix


@contextlib.contextmanager
def record_writer(
    path: str | Path, *, separator: str = ",", append: bool = False
) -> Iterator[Write]:
    """Yield a function that writes a record to a file, which appears when the block ends.

    Args:
        path: The file.
        separator: The separator of a CSV file.
        append: As for ``replace_file``, to JSON Lines.

    Raises:
        UserError: The suffix names no format, or the format cannot hold a record.
    """
    make: Any = _FORMATS[require_suffix(path, _FORMATS)]
    binary = make is _parquet
    if make is _parquet:
        make = partial(_parquet, name=Path(path).name)
    elif make is _csv:
        make = partial(_csv, separator=separator)
    opened = replace_file(Path(path), follow=True, binary=binary, append=append)
    with opened as file, make(file) as write:
        yield write


def write_records(path: str | Path, records: Iterable[JsonRecord]) -> None:
    """Write records to a file in the format of its suffix."""
    with record_writer(path) as write:
        for record in records:
            write(record)


def with_columns(record: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Join the id, the columns of the input, and the prediction into a row.

    A column of the input with the name of a field of the prediction becomes ``input_NAME``, and
    that of a gold label or choice ``gold``.
    """
    result = {"id": record["id"]}
    for name, value in values.items():
        if name in ("id", "words") and value in (record.get(name), None, ""):
            continue
        if name in GOLD and name in record and "gold" not in values:
            name = "gold"
        while name in record or name in result:
            name = f"input_{name}"
        result[name] = value
    return result | record


def with_same_columns(records: Iterable[JsonRecord]) -> list[JsonRecord]:
    """Give all rows of a table the same columns, with None for missing values."""
    rows = list(records)
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{**columns, **row} for row in rows]


def json_line(record: JsonRecord) -> str:
    """Format a row as a line of JSON Lines, without a line end."""
    return json.dumps(record, ensure_ascii=False, default=str)


def csv_line(values: Iterable[Any], separator: str = ",") -> str:
    """Format values as a line of CSV for a spreadsheet, without a line end.

    Numbers have all digits; lists and objects are JSON. A text that a spreadsheet would take for a
    formula begins with an apostrophe.
    """
    line = io.StringIO()
    # cells with line ends are quoted since the line end of the writer has these characters
    csv.writer(line, delimiter=separator, lineterminator="\r\n").writerow(map(guarded, values))
    return line.getvalue().removesuffix("\r\n")


def guarded(value: Any) -> Any:
    """Format a value for a cell of a text file."""
    value = _plain(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        try:
            float(value)
        except ValueError:
            return f"'{value}"
    return value


def csv_lines(records: Iterable[JsonRecord], separator: str = ",") -> Iterator[str]:
    """Yield a header with the columns of the first record, and a line for each record."""
    header = _Header()
    for record in records:
        for values in header.rows(record):
            yield csv_line(values, separator)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple | dict | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


class _Header:
    """The rows of records with the columns of the first one."""

    def __init__(self) -> None:
        self.columns: list[str] = []

    def check(self, record: JsonRecord) -> None:
        self.columns = self.columns or list(record)
        known = {*self.columns}
        if unknown := [n for n, value in record.items() if value is not None and n not in known]:
            raise UserError(
                f"row {record.get('id')}: the column {unknown[0]!r} is not in the first row, so "
                f"not in the header of the table ({abbreviated(self.columns)}): write JSON Lines "
                "(.jsonl)."
            )

    def rows(self, record: JsonRecord) -> Iterator[Sequence[Any]]:
        flat = dict(record)
        scores = flat.get("scores")
        if isinstance(scores, dict):
            del flat["scores"]
            flat |= {f"score:{name}": value for name, value in scores.items()}
        first = not self.columns
        self.check(flat)
        if first:
            yield self.columns
        yield [flat.get(name) for name in self.columns]


@contextlib.contextmanager
def _json_lines(file: IO[str]) -> Iterator[Write]:
    yield lambda record: print(json_line(record), file=file)


@contextlib.contextmanager
def _json_list(file: IO[str]) -> Iterator[Write]:
    separator = "[\n"

    def write(record: JsonRecord) -> None:
        nonlocal separator
        file.write(separator + json_line(record))
        separator = ",\n"

    yield write
    file.write("\n]\n" if separator == ",\n" else "[]\n")


@contextlib.contextmanager
def _csv(file: IO[str], separator: str) -> Iterator[Write]:
    header = _Header()
    yield lambda record: file.writelines(
        f"{csv_line(row, separator)}\n" for row in header.rows(record)
    )


@contextlib.contextmanager
def _tsv(file: IO[str]) -> Iterator[Write]:
    header = _Header()

    def line(values: Sequence[Any]) -> str:
        cells = ("" if value is None else str(guarded(value)) for value in values)
        return "\t".join(re.sub(r"\r\n|[\t\r\n\v\f]", " ", cell) for cell in cells) + "\n"

    yield lambda record: file.writelines(map(line, header.rows(record)))


@contextlib.contextmanager
def _parquet(file: IO[bytes], name: str = "") -> Iterator[Write]:
    import pyarrow
    from pyarrow import parquet

    rows: list[JsonRecord] = []
    header = _Header()
    with contextlib.ExitStack() as stack:
        writer: Any = None

        def flush() -> None:
            nonlocal writer
            try:
                types = _types(rows)
                if writer is None:
                    text, is_null = pyarrow.string(), pyarrow.types.is_null
                    schema = {column: text if is_null(t) else t for column, t in types.items()}
                    schema = pyarrow.schema(schema)
                    writer = stack.enter_context(parquet.ParquetWriter(file, schema))
                for column, type in types.items():
                    if not _fits(type, expected := writer.schema.field(column).type):
                        raise pyarrow.ArrowTypeError(f"{column} is {type} after {expected}")
                # conversion alone would cut 2.5 to 2, and leave out new keys of objects
                writer.write_table(
                    pyarrow.Table.from_pylist([dict(row) for row in rows], writer.schema)
                )
            except (pyarrow.ArrowException, OverflowError) as error:
                detail = " ".join(str(error).split())
                raise UserError(
                    f"{name}: the values of a column are not of one type, which Parquet needs "
                    f"({detail:.200}): write JSON Lines (.jsonl)."
                ) from error
            rows.clear()

        def write(record: JsonRecord) -> None:
            header.check(record)
            rows.append(record)
            if len(rows) == GROUP:
                flush()

        yield write
        if rows or writer is None:
            flush()


def _types(rows: Sequence[JsonRecord]) -> dict[str, Any]:
    import pyarrow

    names = dict.fromkeys(name for row in rows for name in row)
    return {name: pyarrow.array([row.get(name) for row in rows]).type for name in names}


def _fits(type: Any, expected: Any) -> bool:
    import pyarrow

    schema, other = pyarrow.schema([("", expected)]), pyarrow.schema([("", type)])
    try:
        return bool(pyarrow.unify_schemas([schema, other], promote_options="permissive") == schema)
    except pyarrow.ArrowTypeError:
        return False


_FORMATS: Mapping[str, Callable[..., contextlib.AbstractContextManager[Write]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    "": _json_lines,
    ".json": _json_list,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}
RECORD_SUFFIXES = tuple(_FORMATS)
"""The suffixes of files of records; a name without a suffix is JSON Lines."""
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
"""The suffixes of tables, whose rows have the columns of the first row."""
