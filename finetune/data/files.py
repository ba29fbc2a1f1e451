"""Opening data files: decompression, UTF-8 with the place of a bad byte, and the file format.

Lines end at a line feed only; carriage returns and a byte order mark are taken off. Characters
that Python's ``str.splitlines`` would also break at (U+2028, U+0085, …) stay within their line.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from finetune.data.dataset import DataError

FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv",
    ".txt": "txt", ".parquet": "parquet", ".conll": "conll", ".bio": "conll", ".iob": "conll",
    ".iob2": "conll", ".bmes": "conll", ".bioes": "conll", ".bilou": "conll", ".conllu": "conllu",
}  # fmt: skip
"""The format that a file suffix stands for (each suffix may be followed by ``.gz``)."""

IGNORED_NAMES = {"readme", "license", "licence", "changelog", "copying", "dataset_infos"}
"""First words of file names that hold no data."""

TAG = re.compile(r"O|[BIESLUM]-\S+")
"""What a tag of some span scheme looks like."""


class Line(NamedTuple):
    """One line of a file without its line end; numbers count from 1."""

    number: int
    text: str


class Opened:
    """A file whose first lines may be looked at: name for messages, format, all its lines.

    ``live`` input may come line by line from another program: look no further than needed.
    """

    def __init__(self, name: str, format: str, lines: Iterable[Line], live: bool = False) -> None:
        self.name = name
        self.format = format
        self.live = live
        self._lines = iter(lines)

    def peek(self, count: int) -> list[Line]:
        """The next lines, at most ``count``, which stay to be read."""
        ahead = list(itertools.islice(self._lines, count))
        self._lines = itertools.chain(ahead, self._lines)
        return ahead

    def first(self) -> str:
        """The first line that is not blank, ``""`` if there is none; it stays to be read."""
        ahead: list[Line] = []
        for line in self._lines:
            ahead.append(line)
            if line.text.strip():
                break
        self._lines = itertools.chain(ahead, self._lines)
        return ahead[-1].text if ahead else ""

    def __iter__(self) -> Iterator[Line]:
        yield from self._lines

    def where(self, number: int) -> str:
        """``file:line``."""
        return f"{self.name}:{number}"


def bare_name(path: Path) -> str:
    """File name without ``.gz``."""
    return path.name.removesuffix(".gz")


def format_of(path: Path) -> str | None:
    """Format by the suffix of a file name, None where the suffix says nothing.

    A folder, and an .ann file, can only be documents with standoff annotation.
    """
    if path.suffix == ".ann" or path.is_dir():
        return "standoff"
    return FORMATS.get(Path(bare_name(path)).suffix.lower())


def document_names(folder: Path) -> list[str]:
    """Names, without suffix, of the documents of a folder: each NAME.txt, and each NAME.ann.

    Hidden files are none, nor is a README.txt without annotation.
    """
    files = [path for path in folder.iterdir() if not path.name.startswith(".")]
    annotated = {path.stem for path in files if path.suffix == ".ann" and path.is_file()}
    texts = {path.stem for path in files if path.suffix == ".txt" and path.is_file()}
    about = {name for name in texts - annotated if name.lower() in IGNORED_NAMES}
    return sorted((texts | annotated) - about)


def open_data(source: str | Path | IO[Any], format: str | None = None) -> Opened:
    """Open a path, a file object, or ``-`` (standard input) for reading by lines.

    A file object and standard input hold JSON Lines or, by their first line, plain lines, unless
    ``format`` says otherwise. A folder of documents and an .ann file are of format standoff, and
    have no lines of their own. Raises DataError for a missing file or an unknown format.
    """
    if format is not None and format not in FORMATS.values():
        raise DataError(
            f"format {format!r} is unknown: choose {', '.join(dict.fromkeys(FORMATS.values()))}."
        )
    if not isinstance(source, str | Path):
        return _sniffed(str(getattr(source, "name", "<input>")), source, format or "lines")
    if str(source) == "-":
        return _sniffed("<stdin>", sys.stdin.buffer, format or "lines")
    path = Path(source)
    if format is None and _is_standoff(path):
        return Opened(str(path), "standoff", ())
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}: give the path of a data file.")
    if (format or format_of(path)) == "parquet":
        return Opened(str(path), "parquet", ())
    return _sniffed(str(path), path, format or format_of(path) or "unknown")


def _is_standoff(path: Path) -> bool:
    """Whether a path names documents: a folder of some, or an .ann file of one.

    The .ann file may be missing where its text is there: a document that nobody annotated.
    """
    if path.is_dir():
        return bool(document_names(path))
    return path.suffix == ".ann" and (path.is_file() or path.with_suffix(".txt").is_file())


def _sniffed(name: str, source: Path | IO[Any], format: str) -> Opened:
    opened = Opened(name, format, _lines(name, source), live=not isinstance(source, Path))
    if format in ("lines", "unknown"):
        first = opened.first().lstrip()
        if first.startswith("{"):
            opened.format = "jsonl"
        elif first.startswith("[") and format == "unknown":
            opened.format = "json"
        elif format == "lines":
            opened.format = "txt"
    return opened


def _lines(name: str, source: Path | IO[Any]) -> Iterator[Line]:
    """Decoded lines of a path, or of a text or binary file object."""
    if isinstance(source, Path):
        with source.open("rb") as stream:
            yield from _decoded(name, _unzipped(stream))
    elif isinstance(source, io.TextIOBase):
        for number, text in enumerate(source, 1):
            yield Line(number, text.rstrip("\r\n"))
    else:
        yield from _decoded(name, _unzipped(source))


def whole_text(path: Path) -> str:
    """All characters of a file, with its byte order mark and its line ends as they are."""
    parts, offset = [], 0
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            parts.append(_utf8(str(path), number, offset, raw))
            offset += len(raw)
    return "".join(parts)


def _unzipped(stream: IO[bytes]) -> Iterable[bytes]:
    """The stream itself, or what it holds where its first bytes say that it is gzip."""
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
            f"{name}:{number + 1}: the compressed file is damaged or cut off ({error}): "
            "fetch it again."
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
