"""Files and folders that appear whole or not at all, and locks of folders.

The new version of ``NAME`` is written as ``.NAME.new`` beside it, and replaces it once it is on
disk. A crash leaves this file, which the next writer of ``NAME`` replaces.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from finetune.types import UserError

LOCK = ".lock"
"""File in a folder that a process uses: the number of the process and its host."""
_TEMPORARY = re.compile(r"\.(.+)\.(new|old)")
"""Name of a temporary file or folder: the name of its target, and the version it holds."""


class SaveError(UserError):
    """A file or folder could not be written; its previous version is intact."""

    @classmethod
    def of(cls, path: Path, error: BaseException) -> SaveError:
        """Make the message for an error of the system."""
        reason = getattr(error, "strerror", None) or str(error)
        return cls(
            f"{path}: could not be written ({reason}). The previous version is intact. Make room, "
            "then run the command again (training: with --resume)."
        )


class FolderInUse(UserError):
    """Another process holds a folder."""


def write_text(path: Path, text: str, *, follow: bool = False) -> None:
    """Write a file as ``replace_file`` does, and create its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError.of(path, error) from error
    with replace_file(path, follow=follow) as file:
        file.write(text)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON value as ``write_text`` writes text, with indentation."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def replace_file(
    path: Path, *, follow: bool = False, binary: bool = False, append: bool = False
) -> Iterator[Any]:
    """Yield a file that replaces ``path`` if the block ends without an error.

    Args:
        path: The file. Pipes and devices are written directly.
        follow: Write the target of a symbolic link and keep the link, for paths that users name.
        binary: Yield a binary file, not a text file.
        append: Append to ``unfinished_file(path)`` if there is one, and keep it after Ctrl-C.

    Raises:
        SaveError: The file cannot be written.
    """
    mode = "b" if binary else ""
    text: dict[str, Any] = {} if binary else {"encoding": "utf-8", "newline": "\n"}
    if path.exists() and not path.is_file():
        with path.open("w" + mode, **text) as file:
            yield file
        return
    with contextlib.ExitStack() as held:
        if follow:  # files of a run are under its lock
            path = path.resolve()
            held.enter_context(lock_file(path))
        fresh = unfinished_file(path)
        try:
            if not append:
                fresh.unlink(missing_ok=True)
            with fresh.open(("a" if append else "x") + mode, **text) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            _sync_folder(path.parent)
        except BaseException as error:
            with contextlib.suppress(OSError):
                # a refused input needs another one, anything else the lines that are written
                if not append or isinstance(error, UserError):
                    fresh.unlink(missing_ok=True)
            written = (None, str(fresh), str(path.parent))  # and not the files that the block reads
            if isinstance(error, OSError) and (error.filename and str(error.filename)) in written:
                raise SaveError.of(path, error) from error
            raise


def unfinished_file(path: Path) -> Path:
    """The file that ``replace_file`` writes until ``path`` is complete."""
    path = path.resolve()
    return path.with_name(f".{path.name}.new")


@contextlib.contextmanager
def replace_folder(
    folder: Path, later: Callable[[Callable[[], None]], object] | None = None
) -> Iterator[Path]:
    """Yield an empty folder that replaces ``folder`` if the block ends without an error.

    All its files get the permissions of new files. Raises SaveError.

    Args:
        folder: The folder to replace.
        later: Gets the function that waits for the disk and replaces the folder, to call it once,
            perhaps in another thread. By default it is called at the end of the block.
    """
    fresh, old = _temporary_folders(folder)

    @contextlib.contextmanager
    def undone() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(OSError):
                recover(folder)
            # safetensors and tokenizers pass on errors of the system as text
            in_library = type(error) is Exception or type(error).__name__ == "SafetensorError"
            is_text = in_library and "os error" in str(error).lower()
            if is_text or isinstance(error, OSError):
                raise SaveError.of(folder, error) from error
            raise

    def replace() -> None:
        with undone():
            _sync(fresh)
            if folder.exists():
                folder.rename(old)
            fresh.rename(folder)
            _sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)

    with undone():
        recover(folder)
        fresh.mkdir(parents=True)
        yield fresh
    if later is None:
        replace()
    else:
        later(replace)


def recover(*folders: Path) -> None:
    """Complete or undo the replacements of folders that a crash interrupted."""
    for folder in folders:
        fresh, old = _temporary_folders(folder)
        if old.exists() and not folder.exists():  # `fresh` is complete
            (fresh if fresh.exists() else old).rename(folder)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _temporary_folders(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


def _sync(folder: Path) -> None:
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_dir():
            _sync_folder(path)
            continue
        path.chmod(mode)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
            raise
    finally:
        os.close(descriptor)


def require_replaceable(path: Path, start: str, option: str = "--out") -> None:
    """Raise UserError if a file exists that the command did not write.

    Args:
        path: The file to write.
        start: The beginning of every file that the command writes, in lower case.
        option: The option that names the file.
    """
    if path.is_file():
        with path.open("rb") as file:
            beginning = file.read(len(start)).lower()
        if beginning not in (b"", start.encode()):
            raise UserError(f"{option} {path} exists, with other content: name another file.")


def is_free(folder: Path) -> bool:
    """Whether a folder is absent, or contains only a lock and temporary files."""
    return not folder.exists() or (folder.is_dir() and not entries(folder))


def entries(folder: Path) -> list[str]:
    """List the names in a folder, without lock and temporary files."""
    names = sorted(path.name for path in folder.iterdir())
    return [n for n in names if not n.startswith(LOCK) and not _TEMPORARY.fullmatch(n)]


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold a file that is written; FolderInUse if another process holds it."""
    path = path.resolve()
    with _locked(path.with_name(f".{path.name}{LOCK}"), path):
        yield


@contextlib.contextmanager
def lock_folder(folder: Path, *, wait: bool = False, name: str = LOCK) -> Iterator[None]:
    """Create a folder if needed, and hold it for this process, which may hold it several times.

    The system releases the lock however the process ends. On a file system without
    locks nothing is held.

    Args:
        folder: The folder.
        wait: Wait for the process that holds the folder.
        name: File of the lock; a share of the work in a folder can have its own. It begins as
            ``LOCK`` does.

    Raises:
        FolderInUse: Another process holds the folder.
        SaveError: The folder or the lock cannot be written.
    """
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError.of(folder, error) from error
        with _locked(folder.resolve() / name, folder, wait=wait):
            yield
    finally:
        with contextlib.suppress(OSError):
            for parent in created:
                parent.rmdir()  # fails unless it is empty


@contextlib.contextmanager
def _locked(path: Path, target: Path, *, wait: bool = False) -> Iterator[None]:
    lock = FileLock(path, thread_local=False, is_singleton=True, on_acquired=_write_holder)
    outermost = not lock.is_locked
    try:
        lock.acquire(-1 if wait else 0)
    except Timeout as error:
        raise FolderInUse(
            f"{target} is in use by {_holder(path) or 'another process'}: wait until it ends, or "
            "choose another --out."
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP):
            raise SaveError.of(target, error) from error
    try:
        yield
    finally:
        if outermost:
            with contextlib.suppress(OSError):  # some systems remove no file that is open
                path.unlink()
        lock.release()


def _write_holder(descriptor: int) -> None:
    os.truncate(descriptor, 0)
    os.write(descriptor, f" process {os.getpid()} on {socket.gethostname()}".encode())


def _holder(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(1)
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
