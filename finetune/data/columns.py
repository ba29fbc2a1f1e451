"""Columns of examples in Arrow: their types, their values, and the files that they are mapped from.

Texts, integers and lists of them have types of Arrow. All other values, such as labels and spans,
are JSON in a dictionary of a record batch, which tells 1, 1.0, True and "1" apart.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import mmap
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import astuple
from types import NoneType, UnionType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import xxhash

from finetune.runtime.cache import unnamed_file
from finetune.runtime.files import SaveError
from finetune.runtime.memory import without_garbage_collection
from finetune.types import UserError

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[Any]]
json_text = json.JSONEncoder(separators=(",", ":"), default=astuple).encode
_END = "\x00end of row\x00"  # marks the end of each of several values
_ENCODED_END = json_text(_END)
MOST_MAPPED = 2**26
"""Number of bytes after which mapped pages are taken out of the memory of the process."""


def json_texts(values: Collection[Any]) -> list[str]:
    """Write each value as JSON: all at once, which is faster, unless one of them is the mark."""
    ended = [item for value in values for item in (value, _END)]
    texts = json_text(ended)[1 : -len(_ENCODED_END) - 2].split(f",{_ENCODED_END},")
    return texts if len(texts) == len(values) else list(map(json_text, values))


class Field(NamedTuple):
    """A field of examples, and the type of its values."""

    name: str
    hint: Any

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Make a column of values.

        Raises:
            UserError: A text has half of a surrogate pair.
        """
        import pyarrow as pa

        type = arrow_type(self.hint)
        if type is None:
            by_id = dict(zip(map(id, values), values, strict=True))  # few: () or None in most rows
            texts = dict(zip(by_id, json_texts(by_id.values()), strict=True))
            column = [None if value is None else texts[id(value)] for value in values]
            return pa.array(column, pa.large_string()).dictionary_encode()
        try:
            return pa.array(values, type)
        except UnicodeEncodeError as error:
            raise UserError(
                f"{self.name}: {error.object[error.start : error.end]!r} is half of a surrogate "
                "pair (UTF-16), not a character: remove it, or write both halves."
            ) from error

    @without_garbage_collection()
    def values(self, array: Any) -> list[Any]:
        """The values of a column."""
        if isinstance(array, np.ndarray):
            return list(array.tolist())
        if hasattr(array, "chunks"):
            return list(itertools.chain.from_iterable(map(self.values, array.chunks)))
        if not hasattr(array, "dictionary"):
            return _values(array)
        values, indices = self.distinct(array)
        return [values[index] for index in indices.tolist()]

    def distinct(self, array: Any) -> tuple[list[Any], Numbers]:
        """The values of a column and, for each row, the index of its value.

        Values that are written as JSON are listed once in each batch, all others once for each row.
        """
        if not hasattr(array, "dictionary"):
            return self.values(array), np.arange(len(array))
        if len(array.dictionary) > len(array):  # of few rows of a batch
            array = array.dictionary_decode().dictionary_encode()
        of_json = _of_json(self.hint)
        values = [*(of_json(json.loads(text)) for text in array.dictionary.to_pylist()), None]
        return values, array.indices.fill_null(len(values) - 1).to_numpy()


@functools.cache
def fields_of(example_type: Any) -> dict[str, Field]:
    """The fields of examples, or of a named tuple, by name."""
    hints = get_type_hints(example_type)
    return {name: Field(name, hints[name]) for name in example_type.__match_args__}


@functools.cache
def arrow_type(hint: Any) -> pa.DataType | None:
    """The Arrow type of the values of a type; None if they are written as JSON."""
    import pyarrow as pa

    hint = _without_none(hint)
    if get_args(hint)[1:] == (...,):
        item = arrow_type(get_args(hint)[0])
        return None if item is None or pa.types.is_list(item) else pa.list_(item)
    types = {str: pa.large_string(), bytes: pa.large_binary(), int: pa.int64()}
    return types.get(hint)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType) and {NoneType} < {*get_args(hint)}:
        return functools.reduce(operator.or_, (h for h in get_args(hint) if h is not NoneType))
    return hint


@functools.cache
def _of_json(hint: Any) -> Callable[[Any], Any]:
    hint = _without_none(hint)
    if names := getattr(hint, "__match_args__", ()):
        parts = [_of_json(part) for name, part in get_type_hints(hint).items() if name in names]
        return lambda values: hint(
            *(part(value) for part, value in zip(parts, values, strict=True))
        )
    if get_args(hint)[1:] == (...,) and (item := _of_json(get_args(hint)[0])) is not _tuples:
        return lambda values: tuple(map(item, values))
    return _tuples


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _values(array: pa.Array) -> list[Any]:
    import pyarrow as pa

    if not pa.types.is_list(array.type):
        has_floats = array.null_count and pa.types.is_integer(array.type)  # in place of None
        array = array if has_floats else array.to_numpy(zero_copy_only=False)
        return array.tolist()  # type: ignore[no-any-return]
    items, lengths = _values(array.flatten()), array.value_lengths().fill_null(0).to_numpy()
    ends = lengths.cumsum().tolist()
    lists: Any = map(tuple, map(items.__getitem__, map(slice, [0, *ends], ends)))
    if not array.null_count:
        return list(lists)
    valid = array.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(lists, valid, strict=True)]


class MappedTable:
    """A table of Arrow that is mapped from a file of record batches, which may be closed.

    What is read of it does not stay in the memory of this process.
    """

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow as pa

        self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._table: pa.Table = pa.ipc.open_stream(pa.py_buffer(self._pages)).read_all()
        self._firsts = np.cumsum([0, *map(len, self._table.column(0).chunks)])
        self._num_bytes = 0
        self.names: list[str] = self._table.column_names
        self._digests = dict[str, bytes]()

    def __len__(self) -> int:
        return len(self._table)

    def take(self, name: str, rows: Numbers) -> pa.ChunkedArray:
        """Read a column of a few rows."""
        import pyarrow as pa

        in_order = bool((rows[1:] > rows[:-1]).all())
        order = None if in_order else np.argsort(rows)
        ordered = rows if order is None else rows[order]
        batch = np.searchsorted(self._firsts, ordered, "right") - 1
        batches, begins = np.unique(batch, return_index=True)
        parts = []
        for number, part in zip(
            batches, np.split(ordered - self._firsts[batch], begins[1:]), strict=True
        ):
            chunk, first = self._chunk(name, number), int(part[0])
            if in_order and part[-1] - first + 1 == len(part):
                parts.append(chunk.slice(first, len(part)))
            else:
                parts.append(chunk.take(pa.array(part)))
        taken = pa.chunked_array(parts, self._table.schema.field(name).type)
        return taken if order is None else taken.take(pa.array(np.argsort(order)))

    def _chunk(self, name: str, number: int) -> pa.Array:
        chunk = self._table.column(name).chunk(number)
        self._num_bytes += chunk.nbytes
        if self._num_bytes > MOST_MAPPED and hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED)
            self._num_bytes = 0
        return chunk

    def digest(self, name: str) -> bytes:
        """A hash of a column."""
        if name in self._digests:
            return self._digests[name]
        digest = xxhash.xxh3_128()
        for number in range(len(self._firsts) - 1):
            chunk = self._chunk(name, number)
            is_json = hasattr(chunk, "dictionary")
            for array in (chunk.indices, chunk.dictionary) if is_json else (chunk,):
                for buffer in filter(None, array.buffers()):
                    digest.update(buffer)
        return self._digests.setdefault(name, digest.digest())


def write_batches(file: Any, batches: Iterable[pa.RecordBatch]) -> None:
    """Write one or more record batches of one schema."""
    import pyarrow as pa

    remaining = iter(batches)
    first = next(remaining)
    stream = pa.ipc.new_stream(file, first.schema)
    for batch in itertools.chain([first], remaining):
        stream.write_batch(batch)
    stream.close()  # not after an error: it writes to a disk that may be full


def stored(batches: Iterable[pa.RecordBatch]) -> MappedTable:
    """Write record batches to a temporary file, which is mapped into memory.

    Raises:
        SaveError: The disk is full.
    """
    file = unnamed_file()
    try:
        write_batches(file, batches)
        file.flush()
        return MappedTable(file)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise SaveError(
            f"no room for the examples, which are larger than memory ({error.strerror}): make room "
            "on the disk of the cache, or name a folder on a larger one, FINETUNE_CACHE=FOLDER."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # it writes again to a disk that is full
            file.close()
