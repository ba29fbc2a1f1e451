"""Examples in columns on disk, for data sets larger than memory.

An ``ExampleStore`` stands wherever a list of examples stands. Its examples are read a chunk at a
time. The functions of this module do for stores and for lists what else would make a list of new
examples: choose rows, change their ids, and replace labels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, NamedTuple, overload

from finetune.runtime.cache import unnamed_file
from finetune.runtime.memory import without_garbage_collection
from finetune.types import (
    Answer,
    LabelSet,
    Relation,
    SenseTarget,
    Span,
    TextExample,
    TokenExample,
)

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]

MOST_IN_MEMORY = 200_000
"""Most examples of a split that are kept in memory."""
CHUNK = 8192
"""Number of examples that are read from disk, or tokenized, at a time."""

_INTERNED = ("label", "tags", "layers", "document", "key")
"""Columns with few different values, each of which is written once in a chunk."""
_VALUES = (Span, Relation, Answer, SenseTarget, LabelSet, TextExample, TokenExample)
_CLASSES = {kind.__name__: kind for kind in _VALUES}


class _Part(NamedTuple):
    """The values of a column in one chunk: at a place of the file, or one value for all."""

    start: int
    size: int
    constant: Any = None


Column = tuple[_Part, ...]
"""The parts of a column, one for each chunk."""
ComputeFacts = Callable[[Sequence[Any]], Mapping[str, Any]]
"""Computes arrays [N], by name, of N examples."""


class Disk:
    """A file that grows. Threads and forked processes may read it at the same time.

    Args:
        file: The file, empty.
        saved: A file of the cache that is read as the beginning of this one, and not written.
    """

    def __init__(self, file: IO[bytes], saved: IO[bytes] | None = None) -> None:
        self.file, self.saved, self._lock = file, saved, threading.Lock()
        self._begin = 0 if saved is None else os.fstat(saved.fileno()).st_size
        self.size = self._begin
        weakref.finalize(self, file.close)
        if saved is not None:
            weakref.finalize(self, saved.close)

    def write(self, content: bytes) -> _Part:
        """Append bytes, and return their place."""
        part = _Part(self.size, len(content))
        try:
            self.file.seek(self.size - self._begin)
            self.file.write(content)
            self.file.flush()
        except OSError as error:
            from finetune.runtime.files import SaveError

            with contextlib.suppress(OSError):
                self.file.close()
            raise SaveError(
                f"no room for the examples, which are larger than memory ({error.strerror}, after "
                f"{self.size / 2**20:,.0f} MiB): make room on the disk of the cache, or name a "
                "folder on a larger one, FINETUNE_CACHE=FOLDER."
            ) from error
        self.size += len(content)
        return part

    def read(self, part: _Part) -> bytes:
        """Return the bytes at a place."""
        file, start = self.file, part.start - self._begin
        if self.saved is not None and start < 0:
            file, start = self.saved, part.start
        if os.name == "posix":
            return os.pread(file.fileno(), part.size, start)
        with self._lock:
            file.seek(start)
            return file.read(part.size)


class _Loader(pickle.Unpickler):
    """Loads examples, their values and no other class: a file of the cache runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "finetune.types" and name in _CLASSES:
            return _CLASSES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is no value of an example")


def dump_values(values: Any) -> bytes:
    """Return values of examples, or examples, as bytes."""
    return pickle.dumps(values, pickle.HIGHEST_PROTOCOL)


def load_values(content: bytes) -> Any:
    """Return what ``dump_values`` got."""
    with without_garbage_collection():
        return _Loader(io.BytesIO(content)).load()


class StoreFile:
    """A file that several stores are saved in; what they share is written once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._disk = Disk(file)
        self._known: dict[tuple[int, _Part], tuple[Any, ...]] = {}

    def copied(self, disk: Disk, column: Column) -> list[tuple[Any, ...]]:
        """Copy the parts of a column; return their places."""
        found = []
        for part in column:
            key = id(disk), part
            if key not in self._known:
                place = self._disk.write(disk.read(part)) if part.size else part
                self._known[key] = tuple(place._replace(constant=part.constant))
            found.append(self._known[key])
        return found

    def array(self, values: Numbers | None) -> tuple[Any, ...] | None:
        """Write an array; return its place."""
        if values is None:
            return None
        return tuple(self._disk.write(values.tobytes())._replace(constant=values.dtype.str))


class ExampleStore(Sequence[Any]):
    """Examples in columns on disk, or some of them in any order.

    Args:
        kind: ``TextExample``, ``TokenExample``, or a named tuple without ``id``.
        disk: The file of the columns.
        columns: The columns by the field of the example. ``id`` is not among them.
        numbers: Columns of numbers by name: the facts of the examples.
        sizes: The number of examples in each chunk.
        rows: The chosen examples; None is all.
        ids: The ``id`` of each; None is its index.
        digest: The hash of the columns, if it is known.
    """

    def __init__(
        self,
        kind: type[Any],
        disk: Disk,
        columns: Mapping[str, Column],
        numbers: Mapping[str, Column],
        sizes: Sequence[int],
        rows: Numbers | None = None,
        ids: Numbers | None = None,
        digest: str | None = None,
    ) -> None:
        self.kind, self.disk = kind, disk
        self.sizes, self.size = tuple(sizes), sum(sizes)
        self.columns, self._numbers = dict(columns), dict(numbers)
        self.rows, self.ids, self._columns_digest = rows, ids, digest
        self._last: tuple[int, list[Any]] = (-1, [])

    def __len__(self) -> int:
        return self.size if self.rows is None else len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        numbered = dataclasses.is_dataclass(self.kind)
        first = 0
        for values in self._chunks(fields_of(self.kind)):
            number = len(values[0])
            if not numbered:
                yield from map(self.kind, *values)
                continue
            ids: Iterable[int] = range(first, first + number)
            if self.ids is not None:
                ids = self.ids[first : first + number].tolist()
            yield from map(self.kind, ids, *values)
            first += number

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> ExampleStore: ...
    def __getitem__(self, index: int | slice) -> Any:
        import numpy as np

        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        index = range(len(self))[index]
        start = index // CHUNK * CHUNK
        if self._last[0] != start:
            self._last = start, list(self[start : start + CHUNK])
        return self._last[1][index - start]

    def column(self, name: str) -> Iterator[Any]:
        """Return the values of one field in order."""
        if name == "id":
            return iter(range(len(self))) if self.ids is None else map(int, self.ids)
        return itertools.chain.from_iterable(values for (values,) in self._chunks((name,)))

    def all_have(self, values: Mapping[str, Any]) -> bool:
        """Return whether all examples have these values, None or (), of some fields."""
        return all(
            not part.size and part.constant == value
            for name, value in values.items()
            for part in self.columns[name]
        )

    def numbers(self, name: str) -> Numbers:
        """Return a column of numbers [N]."""
        import numpy as np

        found = [np.frombuffer(self.disk.read(part), part.constant) for part in self._numbers[name]]
        joined: Numbers = np.concatenate(found)
        return joined if self.rows is None else joined[self.rows]

    def take(self, indices: Numbers) -> ExampleStore:
        """Return the examples at some indices, with the ids that they have."""
        import numpy as np

        small = np.uint32 if self.size < 2**32 else np.int64
        rows = indices.astype(small) if self.rows is None else self.rows[indices]
        ids = indices.astype(small) if self.ids is None else self.ids[indices]
        return self._changed(rows=rows, ids=ids)

    def renumbered(self) -> ExampleStore:
        """Return the examples with ``id`` = index."""
        return self._changed(ids=None)

    def with_ids(self, ids: Numbers) -> ExampleStore:
        """Return the examples with other ids [N]."""
        return self._changed(ids=ids)

    def with_column(self, name: str, values: Iterable[Any]) -> ExampleStore:
        """Return the examples with other values of a field, which are written in chunks."""
        values = iter(values)
        if self.rows is None:
            chunks = (list(itertools.islice(values, size)) for size in self.sizes)
            parts = [_written(self.disk, _dumped(name, chunk)) for chunk in chunks]
            if next(values, values) is not values:
                raise ValueError(f"more than {self.size} values of {name}")
            return self._changed(columns={**self.columns, name: tuple(parts)})
        return self._with_chosen(name, values)

    def _with_chosen(self, name: str, values: Iterator[Any]) -> ExampleStore:
        """Replace the values of the chosen rows, which are in order; others keep their values."""
        parts = list(self.columns[name])
        for number, places in self._segments():
            own = list(itertools.islice(values, len(places)))
            whole = list(self._loaded(parts[number], self.sizes[number]))
            for place, value in zip(places.tolist(), own, strict=True):
                whole[place] = value
            parts[number] = _written(self.disk, _dumped(name, whole))
        return self._changed(columns={**self.columns, name: tuple(parts)})

    def digest(self) -> str:
        """Return a hash of the content, ids and order of the examples; ``where`` is no part."""
        import xxhash

        digest = xxhash.xxh3_128(self.columns_digest().encode())
        for numbers in (self.rows, self.ids):
            digest.update(b"-" if numbers is None else numbers.tobytes())
        return digest.hexdigest()

    def columns_digest(self) -> str:
        """Return a hash of all examples on disk, without ``where``."""
        import xxhash

        if self._columns_digest is None:
            digest = xxhash.xxh3_128(self.kind.__name__.encode())
            for name, column in self.columns.items():
                digest.update(f"\x00{name}".encode())
                for part in column if name != "where" else ():
                    content = self.disk.read(part) if part.size else repr(part.constant).encode()
                    digest.update(content)
            self._columns_digest = digest.hexdigest()
        return self._columns_digest

    def save(self, file: StoreFile) -> dict[str, Any]:
        """Write to a file what these examples use; return their description for ``load``."""
        return {
            "kind": self.kind.__name__,
            "columns": {name: file.copied(self.disk, own) for name, own in self.columns.items()},
            "numbers": {name: file.copied(self.disk, own) for name, own in self._numbers.items()},
            "sizes": self.sizes,
            "rows": file.array(self.rows),
            "ids": file.array(self.ids),
            "digest": self.columns_digest(),
        }

    @classmethod
    def load(cls, disk: Disk, saved: Mapping[str, Any]) -> ExampleStore:
        """Return the examples that ``save`` has described, from its file."""
        import numpy as np

        columns, numbers = (
            {name: tuple(_Part(*part) for part in parts) for name, parts in saved[of].items()}
            for of in ("columns", "numbers")
        )
        rows, ids = (
            None if part is None else np.frombuffer(disk.read(_Part(*part)), part[2])
            for part in (saved["rows"], saved["ids"])
        )
        kind = _CLASSES[saved["kind"]]
        return cls(kind, disk, columns, numbers, saved["sizes"], rows, ids, saved["digest"])

    def _changed(self, **changes: Any) -> ExampleStore:
        own: dict[str, Any] = {"columns": self.columns, "rows": self.rows, "ids": self.ids}
        if "columns" not in changes:
            own["digest"] = self._columns_digest
        own |= changes
        return ExampleStore(self.kind, self.disk, numbers=self._numbers, sizes=self.sizes, **own)

    def _loaded(self, part: _Part, size: int) -> Sequence[Any]:
        """Return the values of a column in one chunk."""
        if not part.size:
            return [part.constant] * size
        values: list[Any] = load_values(self.disk.read(part))
        return values

    def _segments(self) -> Iterator[tuple[int, Numbers]]:
        """Yield the chunks of the chosen rows in order, each with the places of rows in it."""
        import numpy as np

        assert self.rows is not None
        block = 64 * CHUNK
        ends = np.cumsum(self.sizes)
        for first in range(0, len(self.rows), block):
            rows = self.rows[first : first + block].astype(np.int64)
            numbers = np.searchsorted(ends, rows, side="right")
            places = rows - (ends - self.sizes)[numbers]
            cuts = np.flatnonzero(np.diff(numbers)) + 1
            for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
                yield int(numbers[start]), places[start:end]

    def _chunks(self, names: Sequence[str]) -> Iterator[list[Sequence[Any]]]:
        """Yield the values of some fields, for some of the examples at a time."""
        if self.rows is None:
            for number, size in enumerate(self.sizes):
                yield [self._loaded(self.columns[name][number], size) for name in names]
            return
        for number, places in self._segments():
            size = self.sizes[number]
            chosen = places.tolist()
            whole = len(chosen) == size and chosen == list(range(size))
            found = [self._loaded(self.columns[name][number], size) for name in names]
            yield found if whole else [[values[i] for i in chosen] for values in found]


def fields_of(kind: Any) -> tuple[str, ...]:
    """Return the fields of examples except ``id``, or of a named tuple."""
    if dataclasses.is_dataclass(kind):
        names = (field.name for field in dataclasses.fields(kind))
        return tuple(name for name in names if name != "id")
    fields: tuple[str, ...] = kind._fields
    return fields


class _Content(NamedTuple):
    """The values of a column in one chunk: as bytes, or one value for all."""

    data: bytes
    constant: Any = None


class Packed(NamedTuple):
    """A chunk of examples that another process may have made."""

    kind: type[Any]
    size: int
    columns: dict[str, _Content]
    numbers: dict[str, _Content]


def packed(examples: Sequence[Any], facts: ComputeFacts) -> Packed:
    """Return the columns of a chunk of examples, and its facts by name."""
    kind = type(examples[0])
    names = fields_of(kind)
    columns = {name: _dumped(name, list(map(attrgetter(name), examples))) for name in names}
    found = facts(examples).items()
    numbers = {name: _Content(array.tobytes(), array.dtype.str) for name, array in found}
    return Packed(kind, len(examples), columns, numbers)


def _dumped(name: str, values: list[Any]) -> _Content:
    """Return the values of a column in one chunk as bytes, or the value that all have."""
    first = values[0]
    if first is None or first == ():
        if all(value is first or value == first for value in values):
            return _Content(b"", first)
    if name in _INTERNED:
        known: dict[Any, Any] = {}
        # 1, 1.0 and True are equal, and so are 0.0 and -0.0, and not the same label
        values = [
            each if isinstance(each, float) else known.setdefault((type(each), each), each)
            for each in values
        ]
    return _Content(dump_values(values))


def _written(disk: Disk, content: _Content) -> _Part:
    if not content.data:
        return _Part(0, 0, content.constant)
    return disk.write(content.data)._replace(constant=content.constant)


class StoreWriter:
    """Writes examples to a new store, a chunk at a time."""

    def __init__(self) -> None:
        self.disk, self.sizes = Disk(unnamed_file()), list[int]()
        self.size = 0
        self.kind: type[Any] = TextExample
        self.columns: dict[str, list[_Part]] = {}
        self.numbers: dict[str, list[_Part]] = {}

    def add(self, chunk: Packed) -> None:
        """Write one chunk: most have ``CHUNK`` examples."""
        self.kind = chunk.kind
        self.size += chunk.size
        self.sizes.append(chunk.size)
        for own, new in (self.columns, chunk.columns), (self.numbers, chunk.numbers):
            for name, content in new.items():
                own.setdefault(name, []).append(_written(self.disk, content))

    def finish(self) -> ExampleStore:
        """Return the store."""
        columns = {name: tuple(parts) for name, parts in self.columns.items()}
        numbers = {name: tuple(parts) for name, parts in self.numbers.items()}
        return ExampleStore(self.kind, self.disk, columns, numbers, self.sizes)


GOLD_FIELDS: Mapping[type[Any], tuple[str, ...]] = {
    TextExample: ("label", "answers"),
    TokenExample: ("relations", "spans", "unreachable", "tags"),
}
"""The fields of the gold of an example."""


def column(rows: Sequence[Any], name: str) -> Iterator[Any]:
    """Yield the values of one field of examples."""
    if isinstance(rows, ExampleStore):
        return rows.column(name)
    return map(attrgetter(name), rows)


def columns(rows: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some fields of examples."""
    return zip(*(column(rows, name) for name in names), strict=True)


def places(rows: Sequence[Any], indices: Iterable[int]) -> list[str]:
    """Return the ``file:line`` of a few examples."""
    return [str(rows[int(index)].where) for index in indices]


def chosen(rows: Sequence[Any], keep: Iterable[bool]) -> Sequence[Any]:
    """Return the examples of which ``keep`` is true, with the ids that they have."""
    if isinstance(rows, ExampleStore):
        import numpy as np

        return rows.take(np.fromiter(keep, bool, len(rows)).nonzero()[0])
    return list(itertools.compress(rows, keep))


def taken(rows: Sequence[Any], indices: Numbers) -> Sequence[Any]:
    """Return the examples at some indices, with ``id`` = index among them."""
    if isinstance(rows, ExampleStore):
        return rows.take(indices).renumbered()
    return [dataclasses.replace(rows[i], id=n) for n, i in enumerate(indices.tolist())]


def with_labels(rows: Sequence[Any], labels: Iterable[Any]) -> Sequence[Any]:
    """Return texts with other labels."""
    if isinstance(rows, ExampleStore):
        return rows.with_column("label", labels)
    pairs = zip(rows, labels, strict=True)
    return [r if r.label is label else dataclasses.replace(r, label=label) for r, label in pairs]


def relabeled(rows: Sequence[Any], convert: Callable[[Any], Any]) -> Sequence[Any]:
    """Return texts with the labels that ``convert`` returns; equal labels become the same label."""
    if not isinstance(rows, ExampleStore):
        return with_labels(rows, map(convert, rows))
    known: dict[Any, Any] = {}
    for index, label in enumerate(rows.column("label")):
        if (key := (type(label), label)) not in known:
            if isinstance(label, float) or len(known) >= CHUNK:  # -0.0 equals 0.0
                return rows.with_column("label", map(convert, rows))
            known[key] = convert(rows[index])
    if all((type(new), new) == key for key, new in known.items()):
        return rows
    return rows.with_column("label", (known[type(each), each] for each in rows.column("label")))
