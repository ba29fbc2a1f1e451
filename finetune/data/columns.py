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
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from types import UnionType
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import xxhash

from finetune.runtime.cache import unnamed_file
from finetune.runtime.files import SaveError
from finetune.types import UserError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[Any]]

_encode = json.JSONEncoder(separators=(",", ":"), default=dataclasses.astuple).encode
_SEPARATOR = "\x1f"
"""A control character between texts, which hardly any text has."""
Read = Callable[[Any], Any]
"""Makes a value of a field from a value of JSON."""


class Field(NamedTuple):
    """A field of examples: the type of its column, and the function that reads its JSON."""

    type: pa.DataType
    read: Read

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Make a column of values."""
        import pyarrow as pa

        if not pa.types.is_dictionary(self.type):
            return pa.array(values, self.type)
        by_id = dict(zip(map(id, values), values, strict=True))  # few: () or None in most rows
        texts = {key: _encode(value) for key, value in by_id.items() if value is not None}
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts.values()))}
        codes = {key: numbers[text] for key, text in texts.items()}
        if len(by_id) == 1:
            code = pa.scalar(next(iter(codes.values()), None), pa.int32())
            indices = pa.repeat(code, len(values))
        else:
            indices = pa.array([codes.get(id(value)) for value in values], pa.int32())
        return pa.DictionaryArray.from_arrays(indices, pa.array(numbers, self.type.value_type))

    def values(self, array: pa.Array | pa.ChunkedArray) -> list[Any]:
        """The values of a column."""
        import pyarrow as pa

        if isinstance(array, pa.ChunkedArray):
            return list(itertools.chain.from_iterable(map(self.values, array.chunks)))
        if pa.types.is_dictionary(self.type):
            texts = array.dictionary.to_pylist()
            known = [*(self.read(json.loads(text)) for text in texts), None]
            return [known[index] for index in array.indices.fill_null(-1).to_numpy().tolist()]
        values: list[Any] = _tuples(array) if pa.types.is_list(self.type) else array.to_pylist()
        return values


def _tuples(lists: pa.ListArray) -> list[tuple[Any, ...] | None]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(lists.type.value_type):
        inner, ends = _tuples(lists.values), lists.offsets.tolist()
        return [tuple(inner[start:end]) for start, end in pairwise(ends)]
    is_text = pa.types.is_large_string(lists.type.value_type)
    if is_text and not pc.any(pc.match_substring(lists.values, _SEPARATOR)).as_py():
        # takes half the time of a list of each row
        texts = pc.binary_join(lists, pa.scalar(_SEPARATOR, lists.type.value_type)).to_pylist()
        sizes = pc.list_value_length(lists).to_pylist()
        return [
            None if text is None else tuple(text.split(_SEPARATOR)) if size else ()
            for text, size in zip(texts, sizes, strict=True)
        ]
    return [None if values is None else tuple(values) for values in lists.to_pylist()]


def names_of(example_type: Any) -> tuple[str, ...]:
    """The names of the fields of examples, or of a named tuple."""
    if dataclasses.is_dataclass(example_type):
        return tuple(field.name for field in dataclasses.fields(example_type))
    fields: tuple[str, ...] = example_type._fields
    return fields


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
        name: Field(types.get(hints[name], as_json), _reader(hints[name]) or (lambda value: value))
        for name in names_of(example_type)
    }


def _reader(hint: Any) -> Read | None:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        reads = [read for read in map(_reader, parts) if read is not None]
        return (
            (lambda value: reads[0](value) if isinstance(value, list) else value) if reads else None
        )
    if origin is tuple and parts[-1] is Ellipsis:
        item = _reader(parts[0])
        return tuple if item is None else lambda values: tuple(map(item, values))
    if origin is tuple:
        return _of_parts(lambda *values: values, parts)
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        hints = get_type_hints(hint)
        return _of_parts(hint, [hints[name] for name in names_of(hint)])
    return None


def _of_parts(make: Callable[..., Any], hints: Sequence[Any]) -> Read:
    reads = list(map(_reader, hints))
    if not any(reads):
        return lambda values: make(*values)
    known = [read or (lambda value: value) for read in reads]
    return lambda values: make(*(read(v) for read, v in zip(known, values, strict=True)))


class Columns:
    """All fields of examples, and statistics of them, as they are mapped from a file.

    Args:
        example_type: The class of the examples.
        file: A stream of record batches; it may be closed afterwards.
    """

    def __init__(self, example_type: type[Any], file: IO[bytes]) -> None:
        import pyarrow as pa

        self.example_type, self.fields = example_type, fields_of(example_type)
        self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.table: pa.Table = pa.ipc.open_stream(pa.py_buffer(self._pages)).read_all()

    def selected(self, names: Sequence[str], rows: Numbers) -> pa.Table:
        """Read some columns of a few rows."""
        first, last = int(rows.min()), int(rows.max())
        table = self.table.select(names).slice(first, last - first + 1)
        if len(rows) == len(table) and (rows[1:] > rows[:-1]).all():
            return table
        if len(table) <= 16 * len(rows):
            table = table.combine_chunks()  # of one chunk, many times as fast
        return table.take(rows - first)

    @functools.cached_property
    def digest(self) -> bytes:
        """A hash of all examples, without ``where``."""
        import pyarrow as pa

        digest = xxhash.xxh3_128(self.example_type.__name__.encode())
        for column in self.table.drop_columns(["where"]).itercolumns():
            is_json = pa.types.is_dictionary(column.type)
            for chunk in column.chunks:
                for array in (chunk.indices, chunk.dictionary) if is_json else (chunk,):
                    for buffer in filter(None, array.buffers()):
                        digest.update(buffer)
        self.release()
        return digest.digest()

    def release(self) -> None:
        """Take the pages that were read out of the memory of this process."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED)


def write_batches(file: Any, batches: Iterable[pa.RecordBatch]) -> None:
    """Write one or more record batches of one schema."""
    import pyarrow as pa

    remaining = iter(batches)
    first = next(remaining)
    stream = pa.ipc.new_stream(file, first.schema)
    for batch in itertools.chain([first], remaining):
        stream.write_batch(batch)
    stream.close()  # not after an error: it writes to a disk that may be full


def packed(examples: Sequence[Any], stats: Mapping[str, Numbers]) -> pa.RecordBatch:
    """Convert examples of one type to a record batch, with further columns.

    Raises:
        UserError: A text has half of a surrogate pair.
    """
    import pyarrow as pa

    columns = dict[str, pa.Array]()
    for name, field in fields_of(type(examples[0])).items():
        try:
            columns[name] = field.array(list(map(attrgetter(name), examples)))
        except UnicodeEncodeError as error:
            raise UserError(
                f"{name}: {error.object[error.start : error.end]!r} is half of a surrogate pair "
                "(UTF-16), not a character: remove it, or write both halves."
            ) from error
    columns |= {name: pa.array(numbers) for name, numbers in stats.items()}
    return pa.record_batch(list(columns.values()), list(columns))


def stored(example_type: type[Any], batches: Iterable[pa.RecordBatch]) -> Columns:
    """Write record batches to a temporary file, which is mapped into memory.

    Raises:
        SaveError: The disk is full.
    """
    file = unnamed_file()
    try:
        write_batches(file, batches)
        file.flush()
        return Columns(example_type, file)
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
