"""Data files as lines, and rows in blocks that other processes can parse.

Files are decompressed and decoded; messages have the line of a bad byte. Lines end at a line
feed only. Carriage returns and a byte order mark are removed. Characters at which Python's
``str.splitlines`` also breaks (U+2028, U+0085, …) stay within their line.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Generic, NamedTuple, TypeVar, cast

import xxhash

from finetune.data.dataset import DataError

IGNORED_NAMES = {"readme", "license", "licence", "changelog", "copying", "dataset_infos"}
"""First words of the names of files that hold no data."""
UTF_8 = "utf-8"
COMPRESSIONS = (".gz", ".zst")
"""Suffixes of compressed files, after the suffix of the format."""
BLOCK_LINES = 1024
"""Number of lines that are decoded at a time."""
MAX_LINE = 2**24
"""Most bytes of a line, which is a row. The row of a longer one would take gigabytes of memory."""
MAX_JSON = 2**30
"""Most bytes of a line of a JSON file, which is a whole data set."""
PIECE = 2**18
"""Number of bytes of a file that are read at a time."""

T = TypeVar("T")
R = TypeVar("R")


class Line(NamedTuple):
    """One line of a file without its line end. Numbers count from 1."""

    number: int
    text: str


class Record(NamedTuple):
    """The values of one row by column name, and the ``file:line`` where the row begins."""

    values: Mapping[str, Any]
    where: str

    @property
    def key(self) -> str | int | None:
        """The id of the row, from a column `id`."""
        value = self.values.get("id")
        is_id = isinstance(value, str | int) and not isinstance(value, bool) and value != ""
        return value if is_id else None


def keep_error(error: DataError, errors: list[str] | None) -> None:
    """Keep the message of a bad row, for a check of all rows; raise it if none are kept."""
    if errors is None:
        raise error
    errors.append(str(error))


def _unknown(block: Any) -> None:
    return None


class Rows(Iterator[T], Generic[T]):
    """Rows (or lines) of a source, one after another, or in blocks that any process can parse.

    Args:
        blocks: The parts of the source. They can be pickled.
        parse: Returns the rows of a block; by default a block is a row. It can be called again.
        size: About the number of rows in a block.
        share: Returns the fraction of the source that ends with a block; None if it cannot tell.
    """

    def __init__(
        self,
        blocks: Iterable[Any],
        parse: Callable[[Any], Iterable[T]] = lambda block: (block,),
        size: int = 1,
        share: Callable[[Any], float | None] = _unknown,
    ) -> None:
        self.blocks: Iterator[Any] = iter(blocks)
        self.parse, self.size = parse, size
        self.share = share
        self._begun: Iterator[T] = iter(())

    def __next__(self) -> T:
        while True:
            for row in self._begun:
                return row
            self._begun = iter(self.parse(next(self.blocks)))

    def begun(self) -> list[T]:
        """Return what remains of the block that is being read; ``blocks`` has the others."""
        return list(self._begun)

    def ahead(self) -> Iterator[T]:
        """Return the next rows, before any is read; they remain to be read."""
        self.blocks, ahead = itertools.tee(self.blocks)
        return itertools.chain.from_iterable(map(self.parse, ahead))

    def peek(self, number: int) -> list[T]:
        """Return the next rows, at most ``number``, as ``ahead`` does."""
        return list(itertools.islice(self.ahead(), number))

    def converted(self, convert: Callable[[Iterable[T]], Iterable[R]]) -> Rows[R]:
        """Return what ``convert`` makes of each block."""
        parse = self.parse
        return Rows(self.blocks, lambda block: convert(parse(block)), self.size, self.share)


def joined_rows(parts: Iterable[Rows[T]]) -> Rows[T]:
    """Return the rows of several files, one after another.

    To parse blocks in other processes, all parts must be known when these begin.
    """
    known = list(parts) if isinstance(parts, Sequence) else []

    def blocks() -> Iterator[Any]:
        for index, part in enumerate(parts):
            if index == len(known):
                known.append(part)
            yield from ((index, block) for block in part.blocks)

    def share(block: tuple[int, Any]) -> float | None:
        """Return the fraction, as if all parts had the same size."""
        own = known[block[0]].share(block[1])
        return None if own is None else (block[0] + own) / len(known)

    return Rows(
        blocks(),
        lambda block: known[block[0]].parse(block[1]),
        min((part.size for part in known), default=1),
        share,
    )


class ReadOptions(NamedTuple):
    """Options that every reader of a format gets."""

    columns: Mapping[str, str] = {}  # those that the user names, by role
    header_names: frozenset[str] = frozenset()  # in lower case; they tell a header from data
    predicting: bool = False  # no gold is needed
    usual_columns: Mapping[str, str] = {}  # to read if the file has them and the user names none
    errors: list[str] | None = None  # gets the errors of single rows; None raises the first
    convert_row: Callable[[Any, str], Iterator[Record]] | None = (
        None  # JSON of a tool, and its place
    )


class DataFile:
    """An open file: its name for messages, its format, and its ``lines``, which can be peeked at.

    ``live`` input may arrive line by line from another program: peek no further than needed.
    ``encoding`` is for readers that open files themselves.
    """

    def __init__(
        self,
        name: str,
        format: str,
        lines: Rows[Line] | None = None,
        live: bool = False,
        encoding: str = UTF_8,
    ) -> None:
        self.name, self.format, self.live, self.encoding = name, format, live, encoding
        self.lines = Rows[Line](()) if lines is None else lines

    def peek(self, count: int) -> list[Line]:
        """Return the next lines, at most ``count``, without consuming them."""
        return self.lines.peek(count)

    def first_line(self) -> str:
        """Return the first line that is not blank, else ``""``, without consuming it."""
        return next((line.text for line in self.lines.ahead() if line.text.strip()), "")

    def __iter__(self) -> Iterator[Line]:
        return self.lines

    def where(self, number: int) -> str:
        """Return ``file:line``."""
        return f"{self.name}:{number}"


class Block(NamedTuple):
    """Whole lines in UTF-8: the number of the first, all bytes, and the fraction of the file that
    ends with them (None for a stream)."""

    number: int
    content: bytes
    share: float | None = None


def read_lines(
    name: str, source: Path | IO[Any], encoding: str = UTF_8, most: int = MAX_LINE
) -> Rows[Line]:
    """Return the decoded lines of a path, or of a text or binary file object.

    They come in blocks, which other processes can decode, too. Each line of a stream or pipe is a
    block. Raises DataError for a line of more than ``most`` bytes.
    """
    is_file = isinstance(source, Path) and source.is_file()
    blocks = _read_blocks(name, source, encoding, is_file, most)
    size = BLOCK_LINES if is_file else 1
    return Rows(blocks, partial(decoded_block, name), size, attrgetter("share"))


def _read_blocks(
    name: str, source: Path | IO[Any], encoding: str, is_file: bool, most: int
) -> Iterator[Block]:
    number, length, size = 1, 0, BLOCK_LINES if is_file else 1
    lines: list[bytes] = []
    begun: list[bytes] = []  # parts of the line whose end is not read yet

    def share() -> float | None:
        if not is_file:
            return None
        return 1.0 if stream.closed else min(1.0, stream.tell() / total)  # pyarrow closes it

    def taken(least: int) -> Iterator[Block]:
        nonlocal number
        while len(lines) >= least:
            own = lines[:size]
            yield Block(number, b"\n".join(own), share())
            number += len(own)
            del lines[:size]

    with (
        contextlib.ExitStack() as opened,
        _reporting_damage(lambda: f"{name}:{number + len(lines)}"),
    ):
        stream: Any = source
        if isinstance(source, Path):
            total = max(1, source.stat().st_size)
            stream = io.BufferedReader(_Reopened(source), PIECE) if is_file else source.open("rb")
            opened.enter_context(stream)
        try:
            for raw in _pieces(name, stream, encoding, isinstance(source, Path)):
                first, *others = raw.split(b"\n")
                begun.append(first)
                length += len(first)
                if length > most:
                    raise _long_line(name, number + len(lines), most)
                if others:
                    lines += [b"".join(begun), *others[:-1]]
                    begun = others[-1:]
                    length = len(begun[0])
                yield from taken(size)
            if any(begun):
                lines.append(b"".join(begun))
        except (DataError, EOFError, OSError, zlib.error):
            yield from taken(1)  # all lines before the damage are wanted
            raise
        yield from taken(1)


class _Reopened(io.RawIOBase):
    """A file that is open only while a piece is read: a split may have thousands of files."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._position)
            size = file.readinto(buffer)
        self._position += size
        return size


def _pieces(name: str, stream: Any, encoding: str, of_path: bool) -> Iterator[bytes]:
    """Yield the bytes of a stream in UTF-8.

    They are the lines of a stream or of a compressed file, whose long lines are several pieces; of
    another file they are blocks, which are faster.
    """
    if isinstance(stream, io.TextIOBase):
        if encoding != UTF_8:
            raise DataError(f"{name}: --encoding {encoding}: its text is decoded already.")
        yield from (line.encode(errors="surrogatepass") for line in stream)
        return
    unzipped = _unzipped(stream)
    pieces: Iterable[bytes] = unzipped
    if of_path:
        is_plain = unzipped is stream
        read = stream.read1 if is_plain else unzipped.readline
        pieces = iter(partial(read, PIECE), b"")
    yield from pieces if encoding == UTF_8 else _recoded(name, pieces, encoding)


def _recoded(name: str, pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    number = 1
    for raw in itertools.chain(pieces, [b""]):
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            pending = len(error.object) - len(raw)  # bytes of an unfinished character before raw
            before = ""
            with contextlib.suppress(UnicodeError):  # bytes of UTF-32 without its mark
                before = decoder.decode(raw[: max(error.start - pending, 0)])
            raise _bad_byte(name, number + before.count("\n"), error, encoding) from error
        except UnicodeError as error:
            raise DataError(
                f"{name}: not {encoding} ({error}): {encoding}-le and {encoding}-be need none."
            ) from error
        number += text.count("\n")
        yield text.encode(errors="surrogatepass")


def _long_line(name: str, number: int, most: int) -> DataError:
    return DataError(
        f"{name}:{number}: the line has over {most // 2**20:,} MiB: cut the text of this row into "
        "several rows, or name the file .json if the line is a whole data set."
    )


Breaks = Callable[[Sequence[bytes], int], bool]
"""Tells whether paragraphs can be cut after a blank line, the line of an index among some lines."""


def whole_paragraphs(
    blocks: Iterable[Block], breaks: Breaks = lambda lines, index: True
) -> Iterator[Block]:
    """Yield the lines of blocks in other blocks, each of which ends at a blank line."""
    number, share, lines = 1, None, list[bytes]()
    for block in blocks:
        known, share = len(lines), block.share
        lines += block.content.split(b"\n")
        places = range(len(lines) - 1, known - 1, -1)
        blank = (i for i in places if not lines[i].decode(errors="replace").strip())
        if (last := next((index for index in blank if breaks(lines, index)), None)) is not None:
            yield Block(number, b"\n".join(lines[: last + 1]), share)
            del lines[: last + 1]
            number += last + 1
    if lines:
        yield Block(number, b"\n".join(lines), share)


def decoded_block(name: str, block: Block, *, keep_returns: bool = False) -> list[Line]:
    """Return the lines of a block, by default without the carriage returns at their ends.

    Raises:
        DataError: If a byte is not UTF-8; the message has its line.
    """
    try:
        text = block.content.decode()
    except UnicodeDecodeError as error:
        line = block.number + block.content.count(b"\n", 0, error.start)
        raise _bad_byte(name, line, error) from error
    if block.number == 1:
        text = text.removeprefix("\ufeff")
    lines = text.split("\n")
    if "\r" in text:
        end = "\r" if keep_returns else ""
        lines = [line.rstrip("\r") + end if line[-1:] == "\r" else line for line in lines]
    return list(map(Line, itertools.count(block.number), lines))


def read_characters(path: Path, encoding: str = UTF_8) -> str:
    """Return all characters of a file, its byte order mark and its line ends unchanged."""
    with path.open("rb") as stream:
        return b"".join(_recoded(str(path), stream, encoding)).decode()


def uncompressed_name(path: Path) -> str:
    """Return the file name without the suffix of a compression."""
    for suffix in COMPRESSIONS:
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.name


class Content(NamedTuple):
    """The content of a whole file, decompressed: its digest, and the number of its lines."""

    digest: str
    num_lines: int


def read_content(path: Path) -> Content:
    """Read a whole file once; raise DataError if it is compressed and damaged or truncated."""
    digest, num_lines, last = xxhash.xxh3_128(), 0, b"\n"
    with path.open("rb") as stream, _reporting_damage(lambda: f"{path}:{num_lines + 1}"):
        unzipped = _unzipped(stream)
        while block := unzipped.read(2**20):
            digest.update(block)
            num_lines += block.count(b"\n")
            last = block[-1:]
    return Content(digest.hexdigest(), num_lines + (last != b"\n"))


def _unzipped(stream: IO[bytes]) -> IO[bytes]:
    peek = getattr(stream, "peek", None)
    magic = b"" if peek is None else peek(4)[:4]
    if magic[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    if magic == b"\x28\xb5\x2f\xfd":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(stream, "zstd"), 2**16)
    return stream


@contextlib.contextmanager
def _reporting_damage(where: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the system
        raise DataError(
            f"{where()}: the compressed file is damaged or truncated ({error}): download it again."
        ) from error


def _bad_byte(name: str, line: int, error: UnicodeDecodeError, encoding: str = UTF_8) -> DataError:
    raw = error.object
    where = f"{name}:{line}: byte 0x{raw[error.start]:02x} is not"
    if encoding != UTF_8:
        return DataError(f"{where} {encoding}: name the encoding that the file was saved in.")
    # cp1252 is latin1 with the euro sign and quotes in place of control characters
    likely = _wide_encoding(raw) if b"\0" in raw else "cp1252"
    return DataError(f"{where} UTF-8: {_add_encoding(name, likely)}")


def _wide_encoding(raw: bytes) -> str:
    name = "utf-32" if b"\0\0" in raw[:8] else "utf-16"
    if raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        return name
    is_little = raw[0] != 0 if name == "utf-32" else raw.index(b"\0") % 2 == 1
    return f"{name}-le" if is_little else f"{name}-be"


def _add_encoding(name: str, likely: str) -> str:
    path = Path(uncompressed_name(Path(name)))
    return (
        f"add --encoding {likely} (or the encoding that the file was saved in), or "
        f"convert it: iconv -f {likely} -t utf-8 {path} > {path.stem}-utf8{path.suffix}"
    )


def check_characters(name: str, line: Line, is_last: bool) -> None:
    """Raise DataError if the first line shows UTF-16 or UTF-32 without a mark, or other line ends.

    A carriage return inside of the only line of a file is a line end, as on old systems.
    """
    text, raw = line.text, line.text.encode(errors="surrogatepass")
    zeros = {index % 2 for index, byte in enumerate(raw) if byte == 0} if "\0" in text else set()
    if raw.count(0) > 1 and (len(zeros) == 1 or b"\0\0\0" in raw):
        encoding = _wide_encoding(raw)
        raise DataError(
            f"{name}: bytes of 0 among its letters, so this is {encoding[:6].upper()} without a "
            f"byte order mark: {_add_encoding(name, encoding)}"
        )
    if is_last and "\r" in text:
        path = Path(uncompressed_name(Path(name)))
        raise DataError(
            f"{name}: the lines end in carriage returns alone, so the file is one line: convert "
            f"it: tr '\\r' '\\n' < {path} > {path.stem}-lines{path.suffix}"
        )
