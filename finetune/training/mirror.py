"""A copy of a run folder at a URL, from which the run continues on another machine.

The URL is any that fsspec reads: ``s3://bucket/run``, ``gs://…``, ``file:///shared/run``. Files are
objects named by their content. ``manifest.json`` names the files of the run and is written last,
so an interrupted copy leaves the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import xxhash

from finetune.data.json_files import parse_json
from finetune.runtime.files import entries, replace_folder
from finetune.training.checkpoint import checksum
from finetune.types import UserError

MANIFEST = "manifest.json"
OBJECTS = "objects"
LARGE = 2**24
"""Bytes from which a file is uploaded in parts. Files of this size never change once written."""
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci"}
"""Protocols without folders, where making one would make a bucket of a misspelled name."""
NOT_COPIED = ("teacher",)
"""Files that are made again where they are missing: the outputs of a teacher."""


class Mirror:
    """The copy of a run folder."""

    def __init__(self, url: str) -> None:
        """Open a URL; UserError if it cannot be read."""
        self.url = url
        try:
            self.system, root = fsspec.core.url_to_fs(url)
            self.root = root.rstrip("/")
            self.files = self._manifest()
        except Exception as error:  # each file system raises errors of its own
            raise UserError(f"--mirror {url}: cannot be read ({_reason(error)}).") from error

    def _manifest(self) -> dict[str, str]:
        """Return the checksum of each file of the copy; empty without a copy."""
        path = f"{self.root}/{MANIFEST}"
        if not self.system.exists(path):
            return {}
        content = parse_json(self.system.cat_file(path).decode(), f"{self.url}/{MANIFEST}")
        return dict(content["files"])

    def copy(self, folder: Path) -> None:
        """Copy a run folder: upload what has changed, then the manifest; remove what is old."""
        try:
            files = {name: self._upload(path) for name, path in _files(folder)}
            text = json.dumps({"files": files}, indent=2) + "\n"
            self.system.pipe_file(f"{self.root}/{MANIFEST}", text.encode())
            for old in {*self.files.values()} - {*files.values()}:
                self.system.rm_file(f"{self.root}/{OBJECTS}/{old}")
            self.files = files
        except Exception as error:
            raise UserError(
                f"--mirror {self.url}: could not be written ({_reason(error)}). The files in "
                f"{folder} are complete: the same command with --resume copies them."
            ) from error

    def _upload(self, path: Path) -> str:
        """Upload a file unless the copy has its content; return its checksum."""
        small = path.read_bytes() if path.stat().st_size < LARGE else None  # a log may grow
        found = checksum(path) if small is None else xxhash.xxh3_128(small).hexdigest()
        if found not in self.files.values():
            if not OBJECT_STORES & {*_protocols(self.system)}:
                self.system.makedirs(f"{self.root}/{OBJECTS}", exist_ok=True)
            target = f"{self.root}/{OBJECTS}/{found}"
            if small is None:
                self.system.put_file(str(path), target)
            else:
                self.system.pipe_file(target, small)
        return found

    def restore(self, folder: Path) -> None:
        """Write the files of the copy to a folder, which appears whole or not at all."""
        with replace_folder(folder) as fresh:
            for name, expected in self.files.items():
                (path := fresh / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    self.system.get_file(f"{self.root}/{OBJECTS}/{expected}", str(path))
                except Exception as error:
                    raise UserError(
                        f"--mirror {self.url}: {name} cannot be read ({_reason(error)})."
                    ) from error
                if checksum(path) != expected:
                    raise UserError(
                        f"--mirror {self.url}: {name} has changed since it was copied: restore it, "
                        "or train again without --resume and with another --mirror."
                    )


def _files(folder: Path, start: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder that belong to a run, by their names in it."""
    for name in entries(folder):
        path = folder / name
        if path.is_dir() and name not in NOT_COPIED:
            yield from _files(path, f"{start}{name}/")
        elif path.is_file():
            yield start + name, path


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def _reason(error: Any) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
