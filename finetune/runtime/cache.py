"""The cache of the toolkit: its folder, the entries in it, and how they are removed.

Entries are in the folder ``finetune-cache-1`` of ``$FINETUNE_CACHE`` (by default
``~/.cache/finetune``; ``off`` disables the cache). An entry is a folder, which appears whole or not
at all. One process makes it, and others wait for a lock of the system, which has no time limit. It
is removed after a month without use. Nothing else is removed: an entry is named by a hash and has
the mark of the cache inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import xxhash

from finetune.runtime.files import (
    LOCK,
    FolderInUse,
    SaveError,
    is_held,
    lock_folder,
    temporary_target,
)
from finetune.types import UserError

VARIABLE = "FINETUNE_CACHE"
OFF = "off"
"""Value of the variable that disables the cache."""
FOLDER = "finetune-cache-1"
"""The folder of the cache in the folder that the variable names."""
KINDS = ("encodings", "examples", "vocabularies")
"""The folders of the cache: sequences of token ids, examples as they were read and checked, and
vocabularies of training data."""
ABOUT = "about.json"
"""File of an entry with its title and the hashes of its other files, written last."""
MARK = ".finetune-cache-entry"
"""Empty file of an entry: the cache made this folder, and may remove it."""
_KEY = re.compile(r"[0-9a-f]{64}")
"""Name of an entry."""
_OWN_LOCK = re.compile(re.escape(LOCK) + "-[0-9a-f]{64}")
"""Name of the lock of an entry."""
UNUSED_SECONDS = 30 * 86_400
"""Time without use after which an entry is deleted."""
_BLOCK = 2**24
"""Bytes to hash at a time."""


class CacheEntry(NamedTuple):
    """An entry of the cache."""

    path: Path
    title: str
    """The data and the task."""
    size: int
    """Bytes on disk."""
    age: float
    """Seconds since its last use."""


def is_enabled() -> bool:
    """Return whether the cache may be used."""
    return os.environ.get(VARIABLE) != OFF


def cache_folder(kind: str) -> Path:
    """Return the folder of the entries of a kind."""
    named = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named or Path(base) / "finetune").expanduser() / FOLDER / kind


def cache_entries() -> list[CacheEntry]:
    """Return all entries, the last used first; also incomplete ones, unless a process makes them.

    There are none if the cache is disabled.
    """
    found = []
    for kind in KINDS if is_enabled() else ():
        folder = cache_folder(kind)
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if _is_removable(path):
                    found.append(_entry(path))
    return sorted(found, key=lambda entry: entry.age)


def _is_removable(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    if _KEY.fullmatch(path.name):
        return (path / MARK).is_file()
    return _KEY.fullmatch(temporary_target(path) or "") is not None and not is_held(path)


def _entry(path: Path) -> CacheEntry:
    title = "(incomplete)"
    with contextlib.suppress(OSError, ValueError):
        title = _read_about(path)[0]
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return CacheEntry(path, title, size, max(0.0, time.time() - path.stat().st_mtime))


def write_about(folder: Path, title: str) -> None:
    """Write the mark and the title of an entry and the hashes of its files into its folder."""
    (folder / MARK).touch()
    hashes = {path.name: file_hash(path) for path in sorted(folder.iterdir())}
    content = json.dumps({"title": title, "hashes": hashes})
    (folder / ABOUT).write_text(content, encoding="utf-8")


def use_entry(folder: Path) -> None:
    """Compare the files of an entry with their hashes, and note that it is used.

    Raises:
        OSError, ValueError: The entry is missing or damaged.
    """
    hashes = _read_about(folder)[1]
    if hashes.keys() != {path.name for path in folder.iterdir()} - {ABOUT}:
        raise ValueError("files are missing, or were added")
    for name, expected in hashes.items():
        if file_hash(folder / name) != expected:
            raise ValueError(f"{name} is damaged")
    with contextlib.suppress(OSError):  # a folder that others write may be read-only
        os.utime(folder)


def _read_about(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the title of an entry and the hashes of its files.

    Raises:
        OSError, ValueError: The entry is missing or damaged.
    """
    try:
        content = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return str(content["title"]), dict(content["hashes"])
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{ABOUT} is damaged") from error


def file_hash(path: Path) -> str:
    """Return the 128-bit hash of the bytes of a file: a second for a few gigabytes."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def making(kind: str, key: str) -> Iterator[bool]:
    """Hold an entry while this process makes it.

    Yields:
        False; or True if another process held the entry before, and has made it if it could. No
        process waits if the folder cannot be written, or has no locks.
    """
    from finetune.runtime.progress import stage

    folder, lock, waited = cache_folder(kind), f"{LOCK}-{key}", False
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock_folder(folder, name=lock))
        except FolderInUse:
            waited = True
            with stage("waiting for another process, which reads or tokenizes the data"):
                held.enter_context(lock_folder(folder, wait=True, name=lock))
        except SaveError:
            pass  # nothing is kept
        yield waited


def clear_cache() -> list[CacheEntry]:
    """Remove all entries, and return them."""
    chosen = cache_entries()
    for entry in chosen:
        try:
            shutil.rmtree(entry.path)
        except FileNotFoundError:  # another process removed it
            continue
        except OSError as error:
            raise UserError(
                f"{entry.path}: cannot be removed ({error.strerror}): remove it by hand."
            ) from error
    return chosen


def remove_unused(folder: Path) -> None:
    """Remove the entries of a folder that were not used for a month.

    Incomplete entries and locks of killed processes are removed, too.
    """
    latest = time.time() - UNUSED_SECONDS
    for other in folder.iterdir():
        with contextlib.suppress(OSError, FolderInUse, SaveError):
            if other.lstat().st_mtime >= latest:
                continue
            if _is_removable(other):
                shutil.rmtree(other)
            elif other.is_file() and _OWN_LOCK.fullmatch(other.name):
                with lock_folder(folder, name=other.name):
                    pass  # whoever holds a lock removes its file


def unnamed_file() -> IO[bytes]:
    """Return a temporary file that the system removes however the process ends.

    It is on the disk of the cache, if that can be written: a folder such as ``/tmp`` may be small,
    or in memory.
    """
    if is_enabled():
        folder = cache_folder(KINDS[1])
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryFile(dir=folder)
    return tempfile.TemporaryFile()
