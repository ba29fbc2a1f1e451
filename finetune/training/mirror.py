"""A copy of a run folder at a URL, from which the run continues on another machine.

The URL is any that fsspec reads: ``s3://bucket/run``, ``gs://…``, ``file:///shared/run``. Files are
objects named by their content. ``manifest.json`` names the files of the run and is written last,
so an interrupted copy leaves the one before.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

from finetune.data.json_files import parse_json
from finetune.evaluation.runs import RunFolder
from finetune.runtime.files import entries, replace_files, temporary_folder
from finetune.training.checkpoint import STATE, checksum, link_file, load_state
from finetune.types import UserError

MANIFEST = "manifest.json"
OBJECTS = "objects"
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
            self.files, self.step, self.identity = self._manifest()
        except Exception as error:  # each file system raises errors of its own
            raise UserError(f"--mirror {url}: cannot be read ({_reason(error)}).") from error

    def _manifest(self) -> tuple[dict[str, str], int, dict[str, Any]]:
        """Return the checksum of each file of the copy, the step, and the identity of the run.

        There are no files without a copy.
        """
        path = f"{self.root}/{MANIFEST}"
        if not self.system.exists(path):
            return {}, 0, {}
        content = parse_json(self.system.cat_file(path).decode(), f"{self.url}/{MANIFEST}")
        return dict(content["files"]), int(content["step"]), dict(content["run"])

    def is_newer(self, run: RunFolder) -> bool:
        """Return whether the copy has a later checkpoint of a run; UserError for another run."""
        if self.identity != identity_of(run):
            raise UserError(
                f"--mirror {self.url} holds another run than {run.path} (their data, task or "
                "seed differ): name another URL."
            )
        return self.step > _step(run.path)

    def copy(self, folder: Path, run: RunFolder) -> None:
        """Copy the files of a run: upload what has changed, then the manifest; remove the others.

        ``folder`` has the files, which do not change meanwhile.
        """
        try:
            files = {name: self._upload(path) for name, path in _files(folder)}
            content = {"run": identity_of(run), "step": _step(folder), "files": files}
            text = json.dumps(content, indent=2) + "\n"
            self.system.pipe_file(f"{self.root}/{MANIFEST}", text.encode())
            self.files = files
            self.system.invalidate_cache()
            for path in self.system.find(f"{self.root}/{OBJECTS}"):  # also of a killed copy
                if Path(path).name not in files.values():
                    with contextlib.suppress(FileNotFoundError):
                        self.system.rm_file(path)
        except Exception as error:
            raise UserError(
                f"--mirror {self.url}: could not be written ({_reason(error)}). The files in "
                f"{run.path} are complete: the same command with --resume copies them."
            ) from error

    def _upload(self, path: Path) -> str:
        """Upload a file unless the copy has its content; return its checksum."""
        found = checksum(path)
        if found not in self.files.values():
            if not OBJECT_STORES & {*_protocols(self.system)}:
                self.system.makedirs(f"{self.root}/{OBJECTS}", exist_ok=True)
            self.system.put_file(str(path), f"{self.root}/{OBJECTS}/{found}")
        return found

    def restore(self, folder: Path) -> None:
        """Replace the files of a folder by the files of the copy.

        After a kill, the folder has no checkpoint or an earlier one, and the next start restores
        the files again.
        """
        with replace_files(folder, first="config.json", last="last") as fresh:
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


def identity_of(run: RunFolder) -> dict[str, Any]:
    """Return what tells a run from others."""
    return {name: run.config.get(name) for name in ("task", "seed", "training_fingerprint")}


@contextlib.contextmanager
def snapshot(folder: Path) -> Iterator[Path]:
    """Yield a folder in a run folder with its files as they are now, linked where the disk can."""
    with temporary_folder(folder / "mirror") as fresh:
        for name, path in _files(folder):
            (target := fresh / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copy2 if name == "log.jsonl" else link_file  # a log grows in place
            copy(str(path), str(target))
        yield fresh


def _step(folder: Path) -> int:
    """Return the step of the checkpoint in a run folder, 0 without one."""
    last = folder / "last"
    return load_state(last).step if (last / STATE).is_file() else 0


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
