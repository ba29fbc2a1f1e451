"""Columns of examples in Arrow: their types, their values, and the files that they are mapped from.

Texts, integers, and lists and records of them, such as spans, have types of Arrow. All other
values, such as labels, are JSON in a dictionary of a record batch, which tells 1, 1.0, True and "1"
apart.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import mmap
import operator
from collections.abc import Iterable, Sequence
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
_encode = json.JSONEncoder(separators=(",", ":")).encode
MOST_MAPPED = 2**26
"""Number of bytes after which mapped pages are taken out of the memory of the process."""


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

        if arrow_type(self.hint) is None:
            by_id = dict(zip(map(id, values), values, strict=True))  # few: () or None in most rows
            texts = {key: None if value is None else _encode(value) for key, value in by_id.items()}
            encoded = pa.array([texts[id(value)] for value in values], pa.large_string())
            return encoded.dictionary_encode()
        try:
            return _array(values, self.hint)
        except UnicodeEncodeError as error:
            raise UserError(
                f"{self.name}: {error.object[error.start : error.end]!r} is half of a surrogate "
                "pair (UTF-16), not a character: remove it, or write both halves."
            ) from error

    @without_garbage_collection()
    def values(self, array: pa.Array | pa.ChunkedArray) -> list[Any]:
        """The values of a column."""
        import pyarrow as pa

        if isinstance(array, pa.ChunkedArray):
            return list(itertools.chain.from_iterable(map(self.values, array.chunks)))
        if not pa.types.is_dictionary(array.type):
            return _values(array, self.hint)
        values, indices = self.distinct(array)
        return [values[index] for index in indices.tolist()]

    def distinct(self, array: Any) -> tuple[list[Any], Numbers]:
        """The values of a column and, for each row, the index of its value.

        Values that are written as JSON are listed once in each batch, all others once for each row.
        """
        if not hasattr(array, "dictionary"):
            values = array.tolist() if isinstance(array, np.ndarray) else self.values(array)
            return values, np.arange(len(values))
        if len(array.dictionary) > len(array):  # of few rows of a batch
            array = array.dictionary_decode().dictionary_encode()
        values = [*(_tuples(json.loads(text)) for text in array.dictionary.to_pylist()), None]
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
    if hint in (str, bytes, int):
        return {str: pa.large_string(), bytes: pa.large_binary(), int: pa.int64()}[hint]
    if (item := _item(hint)) is not None:
        inner = arrow_type(item)
        return None if inner is None else pa.list_(inner)
    types = {str(name): arrow_type(part) for name, part in _parts(hint).items()}
    return pa.struct(types.items()) if types and None not in types.values() else None


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType) and {NoneType} < {*get_args(hint)}:
        return functools.reduce(operator.or_, (h for h in get_args(hint) if h is not NoneType))
    return hint


def _item(hint: Any) -> Any:
    is_list = get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis
    return get_args(hint)[0] if is_list else None


def _parts(record: Any) -> dict[Any, Any]:
    if get_origin(record) is tuple:
        return dict(enumerate(get_args(record)))
    hints = get_type_hints(record) if isinstance(record, type) else {}
    return {name: hints[name] for name in getattr(record, "__match_args__", ())}


def _array(values: Sequence[Any], hint: Any) -> pa.Array:
    import pyarrow as pa

    type: Any = arrow_type(hint)
    hint = _without_none(hint)
    if "struct" not in str(type):
        return pa.array(values, type)
    missing = pa.array([value is None for value in values], pa.bool_())
    if missing.true_count == len(values):
        return pa.nulls(len(values), type)
    if (item := _item(hint)) is not None:
        ends = itertools.accumulate((len(value or ()) for value in values), initial=0)
        items = _array(list(itertools.chain.from_iterable(filter(None, values))), item)
        return pa.ListArray.from_arrays(pa.array(list(ends), pa.int32()), items, type, mask=missing)
    columns = []
    for name, part in _parts(hint).items():
        get: Any = (operator.itemgetter if isinstance(name, int) else operator.attrgetter)(name)
        column = [None if value is None else get(value) for value in values]
        columns.append(_array(column, part))
    return pa.StructArray.from_arrays(columns, fields=list(type), mask=missing)


def _values(array: pa.Array, hint: Any) -> list[Any]:
    if array.null_count == len(array):
        return [None] * len(array)
    hint = _without_none(hint)
    if (item := _item(hint)) is not None:
        items, ends = _values(array.flatten(), item), array.value_lengths().fill_null(0)
        ends = ends.to_numpy().cumsum().tolist()
        lists: Iterable[Any] = map(tuple, map(items.__getitem__, map(slice, [0, *ends], ends)))
        return _with_none(array, lists)
    if not (parts := _parts(hint)):
        has_floats = hint is int and array.null_count  # in place of None
        array = array if has_floats else array.to_numpy(zero_copy_only=False)
        return array.tolist()  # type: ignore[no-any-return]
    columns = map(_values, array.flatten(), parts.values())
    records: Iterable[Any] = zip(*columns, strict=True)
    if isinstance(hint, type):
        is_tuple = issubclass(hint, tuple)
        new = functools.partial(tuple.__new__, hint)
        records = map(new, records) if is_tuple else itertools.starmap(hint, records)
    return _with_none(array, records)


def _with_none(array: pa.Array, values: Iterable[Any]) -> list[Any]:
    if not array.null_count:
        return list(values)
    valid = array.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


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
