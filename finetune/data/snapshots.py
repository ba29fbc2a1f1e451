"""Prepared data in the cache, so that a second start on large data reads no row again.

A snapshot has the examples of all splits, as they were read, checked, converted and divided, and
what was derived from them. It is named by a hash of the bytes of the input files, of the settings
that it depends on, and of the program that made it. Data that fit in memory have none.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import finetune
from finetune.data.dataset import Dataset, remember_fingerprint
from finetune.data.disk import Disk, SavedColumns, dump_values, load_values
from finetune.data.examples import Examples
from finetune.data.sources import Content
from finetune.runtime.cache import (
    cache_folder,
    check_entry,
    file_hash,
    is_enabled,
    making,
    unnamed_file,
    write_about,
)
from finetune.runtime.files import SaveError, replace_folder

KIND = "examples"
"""The folder of the cache."""
MIN_BYTES = 10 * 2**20
"""Least size of the input files; smaller ones are read in a few seconds."""
COLUMNS, DESCRIPTION = "columns.bin", "description.bin"
"""Files of an entry: the columns of the examples on disk, and all else."""


class Prepared(NamedTuple):
    """Data that are ready for a task."""

    data: Dataset
    derived: Any
    """Further values for the task: values of Python, and a ``LabelSet``."""
    is_large: bool
    """Whether the data, or the documents that they were made from, do not fit in memory."""


class Inputs:
    """The files that data are read from, commits of the hub, and settings: all that matters."""

    def __init__(
        self, files: Sequence[Path], commits: Sequence[str], settings: Mapping[str, Any]
    ) -> None:
        self.files, self.commits, self.settings = files, commits, settings
        self.content = self._content()

    def prepared(self, make: Callable[[], Prepared], **more: Any) -> Prepared:
        """Return the prepared data: from the cache, or made and, if they are large, kept there.

        Of several processes one makes them, and the others wait for it.

        Args:
            make: Reads and prepares the data.
            more: Further settings that the result depends on.
        """
        key = self._key(more)
        if (found := _load(key)) is not None:
            return found
        with making(KIND, key) as waited:
            if (found := _load(key)) is not None:
                return found
            if not waited:
                made = make()
                if made.is_large and self._content() == self.content:
                    return _saved(key, made) or made
                return made
        return make()  # small data, or there is no room: each process reads for itself

    def known(self) -> Prepared | None:
        """Return the prepared data if they are in the cache."""
        return _load(self._key({}))

    def _key(self, more: Mapping[str, Any]) -> str:
        facts = [_program(), self.content, {**self.settings, **more}]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _content(self) -> list[str]:
        return [*map(file_hash, self.files), *self.commits]


def large_inputs(contents: Sequence[Content], settings: Mapping[str, Any]) -> Inputs | None:
    """Return inputs whose data may be kept; None for small ones, and without the cache.

    Args:
        contents: What each data set is read from, in order; None if data are in memory.
        settings: Values of JSON.
    """
    if not is_enabled():
        return None
    files, commits, size = list[Path](), list[str](), 0
    try:
        for content in contents:
            if content is None:
                return None
            if isinstance(content, Sequence):
                files += content
                size += sum(path.stat().st_size for path in content)
            elif content.used.revision is None:
                return None
            else:
                commits.append(str(content.used))
                size += content.size
        if size < MIN_BYTES:
            return None
        return Inputs(files, commits, settings)
    except OSError:
        return None  # the readers report it


@functools.cache
def _program() -> str:
    folder = Path(finetune.__file__).parent
    sources = [path.read_bytes() for path in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"\x00".join(sources)).hexdigest()


def _load(key: str) -> Prepared | None:
    entry = cache_folder(KIND) / key
    with contextlib.suppress(OSError, ValueError, pickle.UnpicklingError):
        check_entry(entry)
        saved = load_values((entry / DESCRIPTION).read_bytes())
        disk = Disk(unnamed_file(), (entry / COLUMNS).open("rb"))
        splits = {name: Examples.load(disk, rows) for name, rows in saved["splits"].items()}
        fingerprint = saved["fingerprint"]
        data = Dataset(**saved["fields"], splits=splits, fingerprint_of=lambda: fingerprint)
        remember_fingerprint(data.without_tests(), saved["training_fingerprint"])
        return Prepared(data, saved["derived"], True)
    return None


def _saved(key: str, made: Prepared) -> Prepared | None:
    """Write an entry and return its content, so that the disk has the examples once.

    Return None if there is no room.
    """
    data, entry = made.data, cache_folder(KIND) / key
    with contextlib.suppress(OSError, SaveError), replace_folder(entry) as fresh:
        with (fresh / COLUMNS).open("wb") as columns:
            file = SavedColumns(columns)
            splits = {name: rows.save(file) for name, rows in data.splits.items()}
        content = {
            "splits": splits,
            "fields": {
                "name": data.name,
                "notes": data.notes,
                "format": data.format,
                "label_order": data.label_order,
                "pinned": data.pinned,
            },
            "fingerprint": data.fingerprint,
            "training_fingerprint": data.training_fingerprint,
            "derived": made.derived,
        }
        (fresh / DESCRIPTION).write_bytes(dump_values(content))
        write_about(fresh)
    return _load(key)
