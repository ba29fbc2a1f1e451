"""The cache of the toolkit: its folder, and the entries in it.

Entries are in the folder ``finetune-cache-1`` of ``$FINETUNE_CACHE`` (by default
``~/.cache/finetune``; ``off`` disables the cache). An entry is a folder, which appears whole or not
at all. One process makes it, and others wait for a lock of the system, which has no time limit. The
folder may be deleted whenever no run is started.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import xxhash

from finetune.runtime.files import LOCK, FolderInUse, SaveError, lock_folder

VARIABLE = "FINETUNE_CACHE"
_OFF = "off"
"""Value of the variable that disables the cache."""
FOLDER = "finetune-cache-1"
"""The folder of the cache in the folder that the variable names."""
TEMPORARY = "examples"
"""The folder of the cache with its temporary files."""
ABOUT = "about.json"
"""File of an entry with the hashes of its other files, written last."""


def is_enabled() -> bool:
    """Whether the cache may be used."""
    return os.environ.get(VARIABLE) != _OFF


def cache_folder(name: str) -> Path:
    """The folder of the cache entries of one type."""
    named = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named or Path(base) / "finetune").expanduser() / FOLDER / name


def write_about(folder: Path) -> None:
    """Write the hashes of the files of an entry into its folder."""
    hashes = {path.name: file_hash(path) for path in sorted(folder.iterdir())}
    (folder / ABOUT).write_text(json.dumps(hashes), encoding="utf-8")


def check_entry(folder: Path) -> None:
    """Compare the files of an entry with their hashes.

    Raises:
        OSError, ValueError: The entry is missing or damaged.
    """
    hashes = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    paths = sorted(path for path in folder.iterdir() if path.name != ABOUT)
    if hashes != {path.name: file_hash(path) for path in paths}:
        raise ValueError(f"{folder} is damaged")


def file_hash(path: Path) -> str:
    """Compute the 128-bit hash of the bytes of a file: a second for a few gigabytes."""
    make: Any = xxhash.xxh3_128
    with path.open("rb") as file:
        return hashlib.file_digest(file, make).hexdigest()


@contextlib.contextmanager
def making(name: str, key: str) -> Iterator[bool]:
    """Hold an entry while this process makes it.

    Yields:
        False; or True if another process held the entry before, and has made it if it could. No
        process waits if the folder cannot be written, or has no locks.
    """
    from finetune.runtime.progress import progress_task

    folder, lock, waited = cache_folder(name), f"{LOCK}-{key}", False
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock_folder(folder, name=lock))
        except FolderInUse:
            waited = True
            with progress_task("waiting for another process, which reads or tokenizes the data"):
                held.enter_context(lock_folder(folder, wait=True, name=lock))
        except SaveError:
            pass  # nothing is kept
        yield waited


def unnamed_file() -> IO[bytes]:
    """Open a temporary file that the system removes when the process ends.

    It is on the disk of the cache, if that can be written: a folder such as ``/tmp`` may be small,
    or in memory.
    """
    if is_enabled():
        folder = cache_folder(TEMPORARY)
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryFile(dir=folder)
    return tempfile.TemporaryFile()
