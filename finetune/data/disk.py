"""Columns of examples on disk: a file that grows, and the values in it."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import threading
import weakref
from collections.abc import Sequence
from typing import IO, Any

from finetune.runtime.memory import without_garbage_collection
from finetune.types import (
    EXAMPLES,
    Answer,
    LabelSet,
    Relation,
    SenseTarget,
    Span,
)

_VALUES = (Span, Relation, Answer, SenseTarget, LabelSet, *EXAMPLES)
_CLASSES = {kind.__name__: kind for kind in _VALUES}


Place = tuple[int, int]
"""Where bytes are in a file: the first one, and their number."""
Column = Sequence[Place]
"""The places of the values of a column, one for each chunk."""


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

    def write(self, content: bytes) -> Place:
        """Append bytes, and return their place."""
        place = self.size, len(content)
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
        return place

    def read(self, place: Place) -> bytes:
        """Return the bytes at a place."""
        first, size = place
        file, start = self.file, first - self._begin
        if self.saved is not None and start < 0:
            file, start = self.saved, first
        if os.name == "posix":
            return os.pread(file.fileno(), size, start)
        with self._lock:
            file.seek(start)
            return file.read(size)


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
    """A file that the columns of several data sets are saved in; shared values are written once."""

    def __init__(self, file: IO[bytes]) -> None:
        self.disk = Disk(file)
        self._known: dict[tuple[int, Place], Place] = {}

    def copied(self, disk: Disk, column: Column) -> Column:
        """Copy the values of a column; return their places."""
        for place in column:
            if (id(disk), place) not in self._known:
                self._known[id(disk), place] = self.disk.write(disk.read(place))
        return [self._known[id(disk), place] for place in column]
