"""Data files as lines: decompression, UTF-8 with the position of a bad byte, line ends.

Lines end at a line feed only. Carriage returns and a byte order mark are removed. Characters at
which Python's ``str.splitlines`` also breaks (U+2028, U+0085, …) stay within their line.
"""

from __future__ import annotations

import gzip
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from finetune.data.dataset import DataError

IGNORED_NAMES = {"readme", "license", "licence", "changelog", "copying", "dataset_infos"}
"""First words of the names of files that hold no data."""


class Line(NamedTuple):
    """One line of a file without its line end. Numbers count from 1."""

    number: int
    text: str


class ReadOptions(NamedTuple):
    """Options that every reader of a format gets.

    ``columns`` are the columns that the user names, by role. ``header_names`` are the lower-case
    column names that tell a header from data. With ``words_only`` no gold is needed (prediction).
    """

    columns: Mapping[str, str] = {}
    header_names: frozenset[str] = frozenset()
    words_only: bool = False


class DataFile:
    """An open file: its name for messages, its format, and its lines, which can be peeked at.

    ``live`` input may arrive line by line from another program: peek no further than needed.
    """

    def __init__(
        self, name: str, format: str, lines: Iterable[Line] = (), live: bool = False
    ) -> None:
        self.name = name
        self.format = format
        self.live = live
        self._lines = iter(lines)

    def peek(self, count: int) -> list[Line]:
        """Return the next lines, at most ``count``, without consuming them."""
        ahead = list(itertools.islice(self._lines, count))
        self._lines = itertools.chain(ahead, self._lines)
        return ahead

    def first_line(self) -> str:
        """Return the first line that is not blank, else ``""``, without consuming it."""
        ahead: list[Line] = []
        for line in self._lines:
            ahead.append(line)
            if line.text.strip():
                break
        self._lines = itertools.chain(ahead, self._lines)
        return ahead[-1].text if ahead else ""

    def __iter__(self) -> Iterator[Line]:
        return self._lines

    def where(self, number: int) -> str:
        """Return ``file:line``."""
        return f"{self.name}:{number}"


def read_lines(name: str, source: Path | IO[Any]) -> Iterator[Line]:
    """Yield the decoded lines of a path, or of a text or binary file object."""
    if isinstance(source, Path):
        with source.open("rb") as stream:
            yield from _decoded(name, _unzipped(stream))
    elif isinstance(source, io.TextIOBase):
        for number, text in enumerate(source, 1):
            yield Line(number, text.rstrip("\r\n"))
    else:
        yield from _decoded(name, _unzipped(source))


def read_characters(path: Path) -> str:
    """Return all characters of a file, its byte order mark and its line ends unchanged."""
    parts, offset = [], 0
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            parts.append(_utf8(str(path), number, offset, raw))
            offset += len(raw)
    return "".join(parts)


def name_without_gz(path: Path) -> str:
    """Return the file name without ``.gz``."""
    return path.name.removesuffix(".gz")


def _unzipped(stream: IO[bytes]) -> Iterable[bytes]:
    """Return the stream, decompressed if its first bytes are those of gzip."""
    peek = getattr(stream, "peek", None)
    if peek is not None and peek(2)[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=stream)
    return stream


def _decoded(name: str, stream: Iterable[bytes]) -> Iterator[Line]:
    number = offset = 0
    try:
        for number, raw in enumerate(stream, 1):
            text = _utf8(name, number, offset, raw).rstrip("\r\n")
            offset += len(raw)
            yield Line(number, text.removeprefix("\ufeff") if number == 1 else text)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{name}:{number + 1}: the compressed file is damaged or truncated ({error}): "
            "download it again."
        ) from error


def _utf8(name: str, number: int, offset: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
        raise DataError(
            f"{name}:{number}: byte 0x{raw[error.start]:02x} at position {error.start + 1} of the "
            f"line (byte {offset + error.start} of the file) is not UTF-8: convert the file, for "
            f"instance `iconv -f {encoding} -t utf-8 {Path(name).name} > converted.txt`."
        ) from error
