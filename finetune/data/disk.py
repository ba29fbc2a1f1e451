"""Columns of examples on disk: a file that grows, and the values in it."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import threading
import weakref
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from finetune.runtime.memory import without_garbage_collection
from finetune.types import (
    EXAMPLES,
    Answer,
    LabelSet,
    Relation,
    SenseTarget,
    Span,
)

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]

_VALUES = (Span, Relation, Answer, SenseTarget, LabelSet, *EXAMPLES)
_CLASSES = {kind.__name__: kind for kind in _VALUES}


class Part(NamedTuple):
    """The values of a column in one chunk: at a place of the file, or one value for all."""

    start: int
    size: int
    constant: Any = None


Column = tuple[Part, ...]
"""The parts of a column, one for each chunk."""


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

    def write(self, content: bytes) -> Part:
        """Append bytes, and return their place."""
        part = Part(self.size, len(content))
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

    def read(self, part: Part) -> bytes:
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


class SavedColumns:
    """A file that the columns of several data sets are saved in; shared parts are written once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._disk = Disk(file)
        self._known: dict[tuple[int, Part], tuple[Any, ...]] = {}

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
