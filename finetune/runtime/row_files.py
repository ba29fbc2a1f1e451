"""Files of rows: the suffix of the name is the format.

Files appear whole or not at all. A text in a table that a spreadsheet would take for a formula
begins with an apostrophe.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from finetune.runtime.files import replace_file
from finetune.types import UserError, abbreviated

JsonRow = Mapping[str, Any]
Write = Callable[[JsonRow], None]

ONE_ANSWER = ("label", "choice")
"""Keys of predictions that are one answer; a column of their gold has either name."""
ANSWERS = ("relations", "tags", "spans", *ONE_ANSWER, "answer")
"""Keys of which the first in a row of predictions is its answer."""
GROUP = 4096
"""Rows of a row group of Parquet files."""


def require_suffix(path: str | Path, legal: Iterable[str]) -> str:
    """Check the suffix of a file to write, in lower case; UserError if it names another format.

    Pipes and devices have the first of the legal suffixes.
    """
    suffixes = list(legal)
    suffix = Path(path).suffix.lower()
    if Path(path).exists() and not Path(path).is_file():
        return suffixes[0]
    if suffix not in suffixes:
        listed = ", ".join(filter(None, suffixes))
        raise UserError(f"--out {path}: the suffix names the format: one of {listed}.")
    return suffix


@contextlib.contextmanager
def row_writer(path: str | Path, *, separator: str = ",", append: bool = False) -> Iterator[Write]:
    """Yield a function that writes a row to a file, which appears when the block ends.

    Args:
        path: The file.
        separator: The separator of a CSV file.
        append: As for ``replace_file``, to JSON Lines.

    Raises:
        UserError: The suffix names no format, or the format cannot hold a row.
    """
    make = _FORMATS[require_suffix(path, _FORMATS)]
    opened = replace_file(Path(path), follow=True, binary=make is _parquet, append=append)
    with opened as file, make(file, separator) as write:
        yield write


def write_rows(path: str | Path, rows: Iterable[JsonRow]) -> None:
    """Write rows to a file in the format of its suffix."""
    with row_writer(path) as write:
        for row in rows:
            write(row)


def with_columns(prediction: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Join the id, the columns of the input, and the prediction into a row.

    A gold label or choice becomes ``gold``, and another column of the input with the name of a
    field of the prediction, or of an answer that readers would prefer to it, ``input_NAME``.
    """
    result = {"id": prediction["id"]}
    answer = next((index for index, key in enumerate(ANSWERS) if key in prediction), len(ANSWERS))
    has_one_answer = not prediction.keys().isdisjoint(ONE_ANSWER)
    for name, value in values.items():
        if name in ("id", "words") and value in (prediction.get(name), None, ""):
            continue
        if has_one_answer and name in ONE_ANSWER and "gold" not in values:
            name = "gold"
        while name in prediction or name in result or name in ANSWERS[:answer]:
            name = f"input_{name}"
        result[name] = value
    return result | prediction


def with_same_columns(rows: Iterable[JsonRow]) -> list[JsonRow]:
    """Give all rows of a table the same columns, with None for missing values."""
    listed = list(rows)
    columns = dict.fromkeys(name for row in listed for name in row)
    return [{**columns, **row} for row in listed]


def json_line(row: JsonRow) -> str:
    """Format a row as a line of JSON Lines, without a line end."""
    return json.dumps(row, ensure_ascii=False, default=str)


def csv_line(values: Iterable[Any], separator: str = ",") -> str:
    """Format values as a line of CSV for a spreadsheet, without a line end.

    Numbers have all digits; lists and objects are JSON. A text that a spreadsheet would take for a
    formula begins with an apostrophe.
    """
    line = io.StringIO()
    # cells with line ends are quoted since the line end of the writer has these characters
    csv.writer(line, delimiter=separator, lineterminator="\r\n").writerow(map(_cell, values))
    return line.getvalue().removesuffix("\r\n")


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple | dict | bool):
        value = json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        try:
            float(value)
        except ValueError:
            return f"'{value}"
    return value


def _cells(row: JsonRow, header: dict[str, None]) -> dict[str, Any]:
    # of the columns of the first row
    header |= {} if header else dict.fromkeys(row)
    if unknown := [n for n, value in row.items() if value is not None and n not in header]:
        raise UserError(
            f"row {row.get('id')}: the column {unknown[0]!r} is not in the first row, so "
            f"not in the header of the table ({abbreviated(header)}): write JSON Lines "
            "(.jsonl)."
        )
    return {name: row.get(name) for name in header}


@contextlib.contextmanager
def _json_lines(file: IO[str], _: str) -> Iterator[Write]:
    yield lambda row: print(json_line(row), file=file)


@contextlib.contextmanager
def _json_list(file: IO[str], _: str) -> Iterator[Write]:
    begin = "[\n"

    def write(row: JsonRow) -> None:
        nonlocal begin
        file.write(begin + json_line(row))
        begin = ",\n"

    yield write
    file.write("\n]\n" if begin == ",\n" else "[]\n")


@contextlib.contextmanager
def _csv(file: IO[str], separator: str) -> Iterator[Write]:
    header: dict[str, None] = {}

    def write(row: JsonRow) -> None:
        flat = dict(row)
        if isinstance(flat.get("scores"), dict):
            flat |= {f"score:{name}": value for name, value in flat.pop("scores").items()}
        if not header:
            file.write(f"{csv_line(flat, separator)}\n")
        file.write(f"{csv_line(_cells(flat, header).values(), separator)}\n")

    yield write


@contextlib.contextmanager
def _parquet(file: IO[bytes], _: str) -> Iterator[Write]:
    import pyarrow
    from pyarrow import parquet

    rows: list[JsonRow] = []
    header, text = dict[str, None](), pyarrow.string()
    with contextlib.ExitStack() as stack:
        writer: Any = None

        def flush() -> None:
            nonlocal writer
            try:
                schema = pyarrow.Table.from_pylist(rows).schema
                if writer is None:
                    is_null = pyarrow.types.is_null
                    fields = [f.with_type(text) if is_null(f.type) else f for f in schema]
                    fields = pyarrow.schema(fields)
                    writer = stack.enter_context(parquet.ParquetWriter(file, fields))
                both = [writer.schema, schema]
                # conversion alone would leave out new keys of objects
                if pyarrow.unify_schemas(both, promote_options="permissive") != writer.schema:
                    raise pyarrow.ArrowTypeError(f"{schema} after {writer.schema}")
                writer.write_table(pyarrow.Table.from_pylist(rows, writer.schema))
            except (pyarrow.ArrowException, OverflowError) as error:
                detail = " ".join(str(error).split())
                raise UserError(
                    "the values of a column are not of one type, which Parquet needs "
                    f"({detail:.200}): write JSON Lines (.jsonl)."
                ) from error
            rows.clear()

        def write(row: JsonRow) -> None:
            rows.append(_cells(row, header))
            if len(rows) == GROUP:
                flush()

        yield write
        if rows or writer is None:
            flush()


_FORMATS: Mapping[str, Callable[..., contextlib.AbstractContextManager[Write]]] = {
    ".jsonl": _json_lines,
    "": _json_lines,
    ".json": _json_list,
    ".csv": _csv,
    ".parquet": _parquet,
}
ROW_SUFFIXES = tuple(_FORMATS)
"""The suffixes of files of rows; a name without a suffix is JSON Lines."""
TABLE_SUFFIXES = (".csv", ".parquet")
"""The suffixes of tables, whose rows have the columns of the first row."""
