"""Data files: opened by their format, decompressed and decoded to lines.

A reader of a format is a generator of rows, which gets the open file, options, and the ``Table`` of
the rows, whose columns it names before the first row. To add a format, write a reader and add it to
``FORMATS``.

Lines end at a line feed only. Carriage returns before it and a byte order mark are removed.
Characters at which Python's ``str.splitlines`` also breaks (U+2028, U+0085, …) stay within their
line.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import xxhash

from finetune.config.recipes import local_path
from finetune.config.values import text_encoding
from finetune.registry import FORMATS
from finetune.types import DataError

IGNORED_NAMES = {"readme", "license", "licence", "changelog", "copying", "dataset_infos"}
"""First words of the names of files that hold no data."""
UTF_8 = "utf-8"
CONVERT_ADVICE = "for an export of an annotation tool: finetune convert FILE --out data.jsonl"
"""What to do with a file of another shape."""
COMPRESSIONS = (".gz", ".zst")
"""Suffixes of compressed files, after the suffix of the format."""
SUFFIXES = {
    **{f".{name}": name for name in FORMATS},
    ".ndjson": "jsonl",
    **dict.fromkeys((".bio", ".iob", ".iob2", ".bmes", ".bioes", ".bilou"), "conll"),
}
"""The format of each file suffix."""
_WITHOUT_LINES = ("xlsx", "parquet")
_BRACKET = re.compile(r"[\[{]\s+[^\s\"'\[{\]}]")
"""A line of columns whose word is a bracket, which is no JSON."""
MAX_LINE = 2**24
"""Most bytes of a line, which is a row. The row of a longer one would take gigabytes of memory."""
MAX_JSON = 2**30
"""Most bytes of a line of a JSON file, which is a whole data set."""
PIECE = 2**18
"""Number of bytes of a file that are read at a time."""


class Line(NamedTuple):
    """A line of a file without its line end; numbers count from 1. ``end`` is a carriage return, or
    empty."""

    number: int
    text: str
    end: str = ""


class Row(NamedTuple):
    """The values of one row by column name, and the ``file:line`` where the row begins."""

    values: Mapping[str, Any]
    where: str

    @property
    def key(self) -> str | int | None:
        """The id of the row, from a column `id`."""
        value = self.values.get("id")
        if value is None or isinstance(value, bool) or not isinstance(value, str | int):
            return None
        return value if value != "" else None


def keep_error(error: DataError, errors: list[str] | None) -> None:
    """Keep the message of a bad row, for a check of all rows; raise it if none are kept."""
    if errors is None:
        raise error
    errors.append(str(error))


class ReadOptions(NamedTuple):
    """Options that every reader of a format gets."""

    columns: Mapping[str, str] = {}  # those that the user names, by role
    header_names: frozenset[str] = frozenset()  # in lower case; they tell a header from data
    predicting: bool = False  # no gold is needed
    usual_columns: Mapping[str, str] = {}  # to read if the file has them and the user names none
    errors: list[str] | None = None  # gets the errors of single rows; None raises the first
    convert_row: Callable[[Any, str], Iterator[Row]] | None = None  # JSON of a tool, its location


@dataclass
class DataFile:
    """An open file: its name for messages, its format, and its ``lines``, which can be peeked at.

    ``live`` input may arrive line by line from another program: peek no further than needed.
    """

    name: str
    format: str
    lines: Iterator[Line]
    live: bool = False

    def peek(self, count: int) -> list[Line]:
        """Read the next lines, at most ``count``, without consuming them."""
        ahead = list(itertools.islice(self.lines, count))
        self.lines = itertools.chain(ahead, self.lines)
        return ahead

    def first_line(self) -> str:
        """Read the first line that is not blank, else ``""``, without consuming it."""
        ahead, text = list[Line](), ""
        for line in self.lines:
            ahead.append(line)
            if line.text.strip():
                text = line.text
                break
        self.lines = itertools.chain(ahead, self.lines)
        return text

    def where(self, number: int) -> str:
        """The location ``file:line``."""
        return f"{self.name}:{number}"


def format_of(path: Path) -> str | None:
    """The format of a path by its suffix, None for an unknown one."""
    plain = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    return SUFFIXES.get(plain.suffix.lower())


def uncompressed_name(path: Path) -> str:
    """The file name without the suffix of a compression."""
    return path.stem if path.suffix in COMPRESSIONS else path.name


def is_pipe(path: Path) -> bool:
    """Whether a path names a pipe or a device, which is read once."""
    return path.exists() and not (path.is_file() or path.is_dir())


def open_data(
    source: str | Path | IO[Any] | DataFile, format: str | None = None, encoding: str = UTF_8
) -> DataFile:
    """Open a data file and find its format: by its suffix, else by its first line.

    ``source`` is a path, a file object, or ``-`` for standard input. The latter two hold JSON Lines
    or plain lines. A pipe is read once.
    """
    if format is not None and format not in FORMATS:
        raise DataError(f"format {format!r} is unknown: choose {', '.join(FORMATS)}.")
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
        live = not path.is_file()
        if format in _WITHOUT_LINES:
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


def read_lines(
    name: str, source: Path | IO[Any], encoding: str = UTF_8, most: int = MAX_LINE
) -> Iterator[Line]:
    """Yield the decoded lines of a path, or of a text or binary file object as they arrive.

    Raises DataError for a line of more than ``most`` bytes.
    """
    number, begun, length = 1, list[bytes](), 0  # the line whose end is not read yet
    try:
        for block in itertools.chain(_blocks(name, source, encoding), [b""]):
            lines, end, remainder = block.rpartition(b"\n")
            length += block.find(b"\n") if end else len(block)
            if length > most:
                raise DataError(
                    f"{name}:{number}: the line has over {most // 2**20:,} MiB: cut the text of "
                    "this row into several rows, or name the file .json if the line is a whole "
                    "data set."
                )
            if end or (not block and any(begun)):
                text = b"".join([*begun, lines]).decode().removeprefix("\ufeff" * (number == 1))
                if number == 1 and not end and isinstance(source, Path):
                    _refuse_carriage_returns(source, text)
                texts, numbers = text.split("\n"), itertools.count(number)
                if "\r" in text:
                    ends = ("\r" if line.endswith("\r") else "" for line in texts)
                    yield from map(Line, numbers, [line.rstrip("\r") for line in texts], ends)
                else:
                    yield from map(Line, numbers, texts)
                number += len(texts)
                begun, length = [], len(remainder)
            begun.append(remainder)
    except UnicodeDecodeError as error:
        raise _bad_byte(name, number + error.object.count(b"\n", 0, error.start), error) from error
    except (EOFError, OSError, zlib.error) as error:
        _report_damage(error, f"{name}:{number}")
        raise


def _refuse_carriage_returns(path: Path, text: str) -> None:
    if "\r" in text.rstrip("\r"):
        plain = Path(uncompressed_name(path))
        raise DataError(
            f"{path}: the lines end in carriage returns alone, as on old systems, so the file is "
            f"one line: convert it: tr '\\r' '\\n' < {plain} > {plain.stem}-lines{plain.suffix}"
        )


def _blocks(name: str, source: Path | IO[Any], encoding: str) -> Iterator[bytes]:
    # blocks of a file; lines of a stream or of a compressed file, long ones in pieces
    if isinstance(source, io.TextIOBase):
        if encoding != UTF_8:
            raise DataError(f"{name}: --encoding {encoding}: its text is decoded already.")
        yield from (line.encode(errors="surrogatepass") for line in source)
        return
    with source.open("rb", PIECE) if isinstance(source, Path) else nullcontext(source) as stream:
        magic = stream.peek(4)[:4] if hasattr(stream, "peek") else b""
        unzipped: Any = stream
        if magic[:2] == b"\x1f\x8b":
            unzipped = gzip.GzipFile(fileobj=stream)
        elif magic == b"\x28\xb5\x2f\xfd":
            import pyarrow

            unzipped = io.BufferedReader(pyarrow.CompressedInputStream(stream, "zstd"), 2**16)
        blocks: Iterable[bytes] = unzipped
        if isinstance(source, Path):
            read = stream.read1 if unzipped is stream else unzipped.readline
            blocks = iter(partial(read, PIECE), b"")
        yield from blocks if encoding == UTF_8 else _recoded(name, blocks, encoding)


def _recoded(name: str, pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    number = 1
    for raw in itertools.chain(pieces, [b""]):
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeError as error:
            reason = getattr(error, "reason", str(error))
            if not isinstance(error, UnicodeDecodeError) or "BOM" in reason:
                raise DataError(
                    f"{name}: not {encoding} ({reason}): {encoding}-le and {encoding}-be need none."
                ) from error
            pending = len(error.object) - len(raw)  # bytes of an unfinished character before raw
            before = ""
            with contextlib.suppress(UnicodeError):  # bytes of UTF-32 without its mark
                before = decoder.decode(raw[: max(error.start - pending, 0)])
            raise _bad_byte(name, number + before.count("\n"), error, encoding) from error
        number += text.count("\n")
        yield text.encode(errors="surrogatepass")


def read_characters(path: Path, encoding: str = UTF_8) -> str:
    """Read all characters of a file, its byte order mark and its line ends unchanged."""
    with path.open("rb") as stream:
        return b"".join(_recoded(str(path), stream, encoding)).decode()


class Content(NamedTuple):
    """The content of a whole file, decompressed: its digest, and the number of its lines."""

    digest: str
    num_lines: int


def read_content(path: Path) -> Content:
    """Read a whole file once; raise DataError if it is compressed and damaged or truncated."""
    digest, num_lines, last = xxhash.xxh3_128(), 0, b"\n"
    try:
        for block in _blocks(str(path), path, UTF_8):
            digest.update(block)
            num_lines += block.count(b"\n")
            last = block[-1:]
    except (EOFError, OSError, zlib.error) as error:
        _report_damage(error, f"{path}:{num_lines + 1}")
        raise
    return Content(digest.hexdigest(), num_lines + (last != b"\n"))


def _report_damage(error: Exception, where: str) -> None:
    if getattr(error, "errno", None) is None:  # no error of the system
        raise DataError(
            f"{where}: the compressed file is damaged or truncated ({error}): download it again."
        ) from error


def _bad_byte(name: str, line: int, error: UnicodeDecodeError, encoding: str = UTF_8) -> DataError:
    where = f"{name}:{line}: byte 0x{error.object[error.start]:02x} is not"
    if encoding != UTF_8:
        return DataError(f"{where} {encoding}: name the encoding that the file was saved in.")
    # cp1252 is latin1 with the euro sign and quotes in place of control characters
    is_wide = error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    likely, path = "utf-16" if is_wide else "cp1252", Path(uncompressed_name(Path(name)))
    return DataError(
        f"{where} UTF-8: add --encoding {likely} (or the encoding that the file was saved in), or "
        f"convert it: iconv -f {likely} -t utf-8 {path} > {path.stem}-utf8{path.suffix}"
    )
