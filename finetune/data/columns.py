"""Columns of examples in Arrow: their types, their values, and the files that they are mapped from.

Texts, lists of texts and integers have types of Arrow. All other values, such as labels and spans,
are JSON in a dictionary of a record batch, which tells 1, 1.0, True and "1" apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import UnionType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    import pyarrow as pa

_encode = json.JSONEncoder(separators=(",", ":"), default=dataclasses.astuple).encode
_SEPARATOR = "\x1f"
"""A control character between texts, which hardly any text has."""
Read = Callable[[Any], Any]
"""Makes a value of a field from a value of JSON."""


class Field(NamedTuple):
    """A field of a kind of examples: the type of its column, and what reads its JSON."""

    type: pa.DataType
    read: Read

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return values as a column."""
        import pyarrow as pa

        if not pa.types.is_dictionary(self.type):
            return pa.array(values, self.type)
        known: dict[int, str | None] = {id(None): None}  # such as () of most rows
        for value in values:
            if id(value) not in known:
                known[id(value)] = _encode(value)
        texts = [known[id(value)] for value in values]
        return pa.array(texts, self.type.value_type).dictionary_encode()

    def values(self, array: pa.Array) -> list[Any]:
        """Return the values of a column."""
        import pyarrow as pa

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


def names_of(kind: Any) -> tuple[str, ...]:
    """Return the fields of examples except ``id``, or of a named tuple."""
    if dataclasses.is_dataclass(kind):
        names = (field.name for field in dataclasses.fields(kind))
        return tuple(name for name in names if name != "id")
    fields: tuple[str, ...] = kind._fields
    return fields


def fields_of(kind: Any) -> dict[str, Field]:
    """Return the fields of examples except ``id``, or of a named tuple, by name."""
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
    as_json, hints = pa.dictionary(pa.int32(), text), get_type_hints(kind)
    return {
        name: Field(types.get(hints[name], as_json), _reader(hints[name]) or (lambda value: value))
        for name in names_of(kind)
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


class ColumnFile:
    """Record batches of one schema in a file of Arrow, which is mapped into memory.

    Args:
        file: The file, which may be closed afterwards.
    """

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow as pa

        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.batches: list[pa.RecordBatch] = list(pa.ipc.open_stream(pa.py_buffer(self._map)))

    def buffers(self, name: str) -> Iterator[pa.Buffer]:
        """Yield the bytes of a column."""
        for batch in self.batches:
            column = batch.column(name)
            dictionary = getattr(column, "dictionary", None)  # no buffer of its column
            for part in [column] if dictionary is None else [column, dictionary]:
                yield from filter(None, part.buffers())

    def release(self) -> None:
        """Take the pages that were read out of the memory of this process."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class ColumnWriter:
    """Writes record batches of one schema to a file, which ``ColumnFile`` reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._stream: pa.RecordBatchStreamWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a record batch."""
        import pyarrow as pa

        with self._in_need_of_room():
            self._stream = self._stream or pa.ipc.new_stream(self.file, batch.schema)
            self._stream.write_batch(batch)

    def close(self) -> None:
        """End the file, which has a batch at least."""
        with self._in_need_of_room():
            assert self._stream is not None
            self._stream.close()
            self.file.flush()

    def columns(self) -> ColumnFile:
        """Return what was written."""
        self.close()
        with self.file:
            return ColumnFile(self.file)

    @contextlib.contextmanager
    def _in_need_of_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            from finetune.runtime.files import SaveError

            with contextlib.suppress(OSError):
                self.file.close()
            raise SaveError(
                f"no room for the examples, which are larger than memory ({error.strerror}): make "
                "room on the disk of the cache, or name a folder on a larger one, "
                "FINETUNE_CACHE=FOLDER."
            ) from error
