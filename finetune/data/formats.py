"""The table of data formats: which reader reads which file.

A reader takes an open file and options, and returns a ``Table``: rows of named columns, or
sentences with their tags or spans. To add a format, write a reader and add it to ``_FORMATS``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from finetune.config.recipes import local_path
from finetune.config.values import text_encoding
from finetune.data import tables
from finetune.data.conll import read_conll
from finetune.data.dataset import DataError, WordsNotTexts
from finetune.data.files import (
    MAX_JSON,
    MAX_LINE,
    UTF_8,
    DataFile,
    ReadOptions,
    read_lines,
    uncompressed_name,
)
from finetune.data.json_files import read_json, read_json_lines
from finetune.data.tables import Table
from finetune.registry import FORMATS as FORMATS_OF_EXTENSIONS
from finetune.registry import Registry


class Format(NamedTuple):
    """A format: its reader, and the suffixes of its files, before a suffix of ``COMPRESSIONS``."""

    suffixes: tuple[str, ...]
    read: Callable[[DataFile, ReadOptions], Table]
    by_lines: bool = True


def _format_of_extension(suffix: str) -> Format:
    readers = Registry[Callable[[DataFile, ReadOptions], Table]](FORMATS_OF_EXTENSIONS)
    return Format((suffix,), lambda file, options: readers[suffix](file, options))


_FORMATS = {
    "jsonl": Format((".jsonl", ".ndjson"), read_json_lines),
    "json": Format((".json",), read_json),
    "csv": Format((".csv",), tables.read_delimited),
    "tsv": Format((".tsv",), tables.read_delimited),
    "txt": Format((".txt",), tables.read_plain_text),
    "xlsx": Format((".xlsx",), tables.read_excel, by_lines=False),
    "parquet": Format((".parquet",), tables.read_parquet, by_lines=False),
    "conll": Format((".conll", ".bio", ".iob", ".iob2", ".bmes", ".bioes", ".bilou"), read_conll),
    "conllu": Format((".conllu",), read_conll),
}
_FORMATS |= {suffix[1:]: _format_of_extension(suffix) for suffix in FORMATS_OF_EXTENSIONS}
_BRACKET = re.compile(r"[\[{]\s+[^\s\"'\[{\]}]")
"""A line of columns whose word is a bracket, which is no JSON."""
SUFFIXES = {suffix: name for name, format in _FORMATS.items() for suffix in format.suffixes}
"""The format of each file suffix."""


def format_of(path: Path) -> str | None:
    """The format of a path by its suffix, None for an unknown one."""
    return SUFFIXES.get(Path(uncompressed_name(path)).suffix.lower())


def read_file(file: DataFile, options: ReadOptions | None = None) -> Table:
    """Read a file with the reader of its format, without reading all of it."""
    return _FORMATS[file.format].read(file, options or ReadOptions())


def open_data(
    source: str | Path | IO[Any] | DataFile, format: str | None = None, encoding: str = UTF_8
) -> DataFile:
    """Open a data file and find its format: by its suffix, else by its first line.

    ``source`` is a path, a file object, or ``-`` for standard input. The latter two hold JSON Lines
    or plain lines. A pipe is read once.
    """
    if format is not None and format not in _FORMATS:
        raise DataError(f"format {format!r} is unknown: choose {', '.join(_FORMATS)}.")
    encoding = text_encoding(encoding)
    if isinstance(source, DataFile):
        source.format = format or source.format
        return source
    is_input = str(source) == "-"
    stream: Any = sys.stdin.buffer if is_input else source
    live = is_input or not isinstance(source, str | Path)
    if live:
        name = "<stdin>" if is_input else str(getattr(source, "name", "<input>"))
        format = format or "lines"
    else:
        path = stream = local_path(str(source))
        name, format = str(path), format or format_of(path) or "unknown"
        if path.is_dir() or not path.exists():
            problem = "is a folder, not a file" if path.is_dir() else "does not exist"
            raise DataError(f"{path} {problem}: give the path of a data file.")
        if format in _FORMATS and not _FORMATS[format].by_lines:
            if encoding != UTF_8:
                raise DataError(f"{path}: --encoding {encoding}: {format} has a fixed encoding.")
            return DataFile(name, format, iter(()))
    lines = read_lines(name, stream, encoding, MAX_JSON if format == "json" else MAX_LINE)
    file = DataFile(name, format, lines, live)
    if format in ("lines", "unknown"):
        first = file.first_line().lstrip()
        is_word = _BRACKET.match(first)
        if first.startswith("{") and not is_word:
            file.format = "jsonl"
        elif first.startswith("[") and not is_word and format == "unknown":
            file.format = "json"
        elif format == "lines":
            file.format = "txt"
    return file


def open_text_table(file: DataFile, options: ReadOptions) -> Table:
    """Open a file as a table; text to predict has columns only if its first line names some."""
    if file.format in ("txt", "unknown"):
        first, names = file.first_line(), options.header_names
        tabs, commas = ({c.strip().lower() for c in first.split(mark)} for mark in "\t,")
        tsv = len(tabs) > 1 and (not options.predicting or options.columns or tabs & names)
        csv = file.format == "unknown" and len(commas) > 1 and commas & names
        file.format = "tsv" if tsv else "csv" if csv else "txt"
    table = _FORMATS[file.format].read(file, options)
    if table.sentences:
        raise WordsNotTexts(
            f"{file.name} has the format {file.format}, words and spans instead of texts with a "
            "label: use finetune tag or finetune ner, or give JSON Lines, CSV or TSV."
        )
    table.usual_columns = options.usual_columns
    if options.predicting and table.first_row is not None and len(table.header) == 1:
        table.usual_columns = {**table.usual_columns, "text": "0"}
    return table
