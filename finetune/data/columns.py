"""Columns of examples in Arrow: their types, their values, and the files that they are mapped from.

Texts, lists of texts and integers have types of Arrow. All other values, such as labels and spans,
are JSON in a dictionary of a record batch, which tells 1, 1.0, True and "1" apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import mmap
from collections.abc import Callable, Iterable, Sequence
from types import UnionType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import xxhash

from finetune.runtime.cache import unnamed_file
from finetune.runtime.files import SaveError
from finetune.types import UserError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[Any]]

_encode = json.JSONEncoder(separators=(",", ":"), default=dataclasses.astuple).encode
MOST_MAPPED = 2**26
"""Number of bytes after which mapped pages are taken out of the memory of the process."""
Read = Callable[[Any], Any]
"""Makes a value of a field from a value of JSON."""


class Field(NamedTuple):
    """A field of examples: the type of its column, and the function that reads its JSON."""

    name: str
    type: pa.DataType
    read: Read

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Make a column of values.

        Raises:
            UserError: A text has half of a surrogate pair.
        """
        import pyarrow as pa

        if pa.types.is_dictionary(self.type):
            by_id = dict(zip(map(id, values), values, strict=True))  # few: () or None in most rows
            texts = {key: None if value is None else _encode(value) for key, value in by_id.items()}
            encoded = pa.array([texts[id(value)] for value in values], self.type.value_type)
            return encoded.dictionary_encode()
        try:
            return pa.array(values, self.type)
        except UnicodeEncodeError as error:
            raise UserError(
                f"{self.name}: {error.object[error.start : error.end]!r} is half of a surrogate "
                "pair (UTF-16), not a character: remove it, or write both halves."
            ) from error

    def values(self, array: pa.Array | pa.ChunkedArray) -> list[Any]:
        """The values of a column."""
        import pyarrow as pa

        if isinstance(array, pa.ChunkedArray):
            return list(itertools.chain.from_iterable(map(self.values, array.chunks)))
        if pa.types.is_dictionary(self.type):
            if len(array.dictionary) > len(array):  # of few rows of a batch
                array = array.dictionary_decode().dictionary_encode()
            texts = array.dictionary.to_pylist()
            known = [*(self.read(json.loads(text)) for text in texts), None]
            return [known[index] for index in array.indices.fill_null(-1).to_numpy().tolist()]
        values: list[Any] = _tuples(array) if pa.types.is_list(self.type) else array.to_pylist()
        return values


def _tuples(lists: pa.ListArray) -> list[tuple[Any, ...] | None]:
    import pyarrow as pa

    sizes, inner = lists.value_lengths().fill_null(-1).to_numpy().tolist(), lists.flatten()
    is_list = pa.types.is_list(inner.type)
    items = iter(_tuples(inner) if is_list else inner.to_numpy(zero_copy_only=False).tolist())
    return [None if size < 0 else tuple(itertools.islice(items, size)) for size in sizes]


@functools.cache
def fields_of(example_type: Any) -> dict[str, Field]:
    """The fields of examples, or of a named tuple, by name."""
    import pyarrow as pa

    text = pa.large_string()
    types = {
        str: text,
        str | None: text,
        int: pa.int64(),
        tuple[str, ...]: pa.list_(text),
        tuple[str, ...] | None: pa.list_(text),
        tuple[tuple[str, ...], ...]: pa.list_(pa.list_(text)),
        tuple[bytes, bytes, bytes]: pa.list_(pa.large_binary()),
    }
    as_json, hints = pa.dictionary(pa.int32(), text), get_type_hints(example_type)
    return {
        name: Field(name, types.get(hints[name], as_json), _reader(hints[name]))
        for name in example_type.__match_args__
    }


def _same(value: Any) -> Any:
    return value


def _reader(hint: Any) -> Read:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        read_list = next((read for read in map(_reader, parts) if read is not _same), _same)
        return lambda value: read_list(value) if isinstance(value, list) else value
    if origin is tuple and parts[-1] is Ellipsis:
        read_item = _reader(parts[0])
        return tuple if read_item is _same else lambda values: tuple(map(read_item, values))
    make = None
    if hasattr(hint, "__match_args__"):  # a dataclass or a named tuple
        make, parts = hint, tuple(map(get_type_hints(hint).get, hint.__match_args__))
    elif origin is not tuple:
        return _same
    reads = list(map(_reader, parts))
    if all(read is _same for read in reads):
        return (lambda values: make(*values)) if make else tuple

    def read_parts(values: Sequence[Any]) -> Any:
        parts = [read(value) for read, value in zip(reads, values, strict=True)]
        return make(*parts) if make else tuple(parts)

    return read_parts


class MappedTable:
    """A table of Arrow that is mapped from a file of record batches, which may be closed.

    What is read of it does not stay in the memory of this process.
    """

    def __init__(self, file: IO[bytes]) -> None:
        import numpy as np
        import pyarrow as pa

        self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._table: pa.Table = pa.ipc.open_stream(pa.py_buffer(self._pages)).read_all()
        self._firsts = np.cumsum([0, *map(len, self._table.column(0).chunks)])
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._table)

    def take(self, name: str, rows: Numbers) -> pa.ChunkedArray:
        """Read a column of a few rows."""
        import numpy as np
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

    @functools.cached_property
    def digest(self) -> bytes:
        """A hash of all columns but ``where``."""
        digest = xxhash.xxh3_128()
        for name in self._table.column_names:
            for number in range(len(self._firsts) - 1 if name != "where" else 0):
                chunk = self._chunk(name, number)
                is_json = hasattr(chunk, "dictionary")
                for array in (chunk.indices, chunk.dictionary) if is_json else (chunk,):
                    for buffer in filter(None, array.buffers()):
                        digest.update(buffer)
        return digest.digest()


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
