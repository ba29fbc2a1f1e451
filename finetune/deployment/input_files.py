"""Inputs for an exported model from files: CSV, TSV, JSON, JSON Lines and plain lines.

An export holds a copy of this file: it imports the standard library only. The export also stores
the usual names of columns from the readers in ``finetune.data``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from finetune.types import UserError

Row = Mapping[str, Any]
"""An object with the keys text, text_pair, tokens or words, and id, those that there are."""
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt")


def read_rows(path: Path, columns: Mapping[str, Any]) -> Iterator[Row]:
    """Read the rows of a file whose suffix names the format.

    Args:
        path: The file, in UTF-8.
        columns: The usual columns: ``pairs`` of texts, and ``texts``.

    Raises:
        UserError: The file cannot be read, or has no column with a usual name.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: the suffix names the format, one of {', '.join(SUFFIXES)}.")
    try:
        with path.open(encoding="utf-8-sig", newline="" if suffix == ".csv" else None) as file:
            if suffix == ".txt":
                yield from ({"text": line.rstrip("\n")} for line in file)
            elif suffix in (".csv", ".tsv"):
                yield from _of_table(path, file, columns)
            else:
                yield from _of_json(path, file, columns)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8: convert the file.") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}.") from error


def _of_table(path: Path, file: Iterable[str], columns: Mapping[str, Any]) -> Iterator[Row]:
    lines = iter(file)
    first = next(lines, "")
    delimiter = "\t"
    if path.suffix.lower() == ".csv" and first.count("\t") <= first.count(","):
        delimiter = ";" if ";" in first and "," not in first else ","
    quoting: Any = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    csv.field_size_limit(2**31 - 1)
    try:
        rows = csv.reader(chain([first], lines), delimiter=delimiter, quoting=quoting, strict=True)
        header = [name.strip() for name in next(rows, [])]
        chosen = _chosen(header, columns, str(path)) if header else {}
        for cells in rows:
            if not cells or (delimiter == "\t" and len(cells) == 1 and not cells[0].strip(" ")):
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{path}:{rows.line_num}: {len(cells)} fields where {len(header)} are expected."
                )
            row = dict(zip(header, cells, strict=True))
            yield {key: row.get(name, "") for key, name in chosen.items()}
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num}: not valid CSV ({error}).") from error


def _of_json(path: Path, file: Iterable[str], columns: Mapping[str, Any]) -> Iterator[Row]:
    text = "".join(file) if path.suffix.lower() == ".json" else None
    if text is not None and text.lstrip()[:1] == "[":
        items: Iterable[tuple[int, Any]] = enumerate(_parsed(text, str(path)))
    else:
        lines = file if text is None else text.splitlines()
        numbered = ((n, line) for n, line in enumerate(lines) if line.strip())
        items = ((n, _parsed(line, f"{path}:{n + 1}")) for n, line in numbered)
    for number, row in items:
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number + 1}: a row must be a JSON object.")
        words = {name: row[name] for name in ("tokens", "words") if name in row}
        chosen = {} if words else _chosen(list(row), columns, f"{path}:{number + 1}")
        if "id" in row:
            chosen["id"] = "id"
        yield words | {key: row[name] for key, name in chosen.items()}


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({error}).") from error


def _chosen(header: Sequence[str], columns: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the columns of the text, of the second text if there is one, and of the id."""
    by_name = {name.lower(): name for name in reversed(header)}
    pairs = [pair for pair in columns["pairs"] if pair[0] in by_name and pair[1] in by_name]
    texts = [name for name in columns["texts"] if name in by_name]
    names = list(pairs[0]) if pairs else texts[:1]
    if not names:
        raise UserError(
            f"{where}: no column is known to hold a text (columns: {', '.join(header)}): name it "
            "text."
        )
    keys = ("text", "text_pair") if columns["pair"] else ("text",)
    found = {key: by_name[name] for key, name in zip(keys, names, strict=False)}
    return found | ({"id": by_name["id"]} if "id" in by_name else {})
