"""Files and folders that appear whole or not at all, and locks of folders.

Temporary files have random names, are created exclusively, and are next to their target. The
target is replaced once they are on disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from finetune.types import UserError

LOCK = ".lock"
"""File in a folder that a process uses: the number of the process and its host."""
OTHER_FILES = 128
"""Number of files that a command may open besides its data: models, libraries, outputs."""
_LOCKS = os.name == "posix"
"""Whether a lock tells that a process still writes a temporary file or folder."""
_TEMPORARY = re.compile(r"\.(.+)-[0-9a-f]{16}\.(new|old)")
"""Name of a temporary file or folder: the name of its target, and the version it holds."""


class SaveError(UserError):
    """A file or folder could not be written; its previous version is intact."""


class FolderInUse(UserError):
    """Another process holds a folder."""


def write_text(path: Path, text: str, *, follow: bool = False) -> None:
    """Write a file as ``replace_file`` does, and create its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _save_error(path, error) from error
    with replace_file(path, follow=follow) as file:
        file.write(text)


@contextlib.contextmanager
def replace_file(path: Path, *, follow: bool = False, binary: bool = False) -> Iterator[Any]:
    """Yield a file that replaces ``path`` if the block ends without an error.

    Args:
        path: The file. Pipes and devices are written directly.
        follow: Write the target of a symbolic link and keep the link, for paths that users name.
        binary: Yield a binary file, not a text file.

    Raises:
        SaveError: The file cannot be written.
    """
    mode = "b" if binary else ""
    text: dict[str, Any] = {} if binary else {"encoding": "utf-8", "newline": "\n"}
    if path.exists() and not path.is_file():
        with path.open("w" + mode, **text) as file:
            yield file
        return
    path = path.resolve() if follow else path
    _remove_leftovers(path)
    fresh, _ = _temporary_paths(path)
    try:
        with contextlib.ExitStack() as held:
            with fresh.open("x" + mode, **text) as file:
                held.enter_context(_held(os.dup(file.fileno())))
                yield file
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        own = (None, str(fresh), str(path.parent))  # and not the files that the block reads
        if isinstance(error, OSError) and (error.filename and str(error.filename)) in own:
            raise _save_error(path, error) from error
        raise


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
    _remove_leftovers(folder)
    fresh, old = _temporary_paths(folder)
    with contextlib.ExitStack() as held:
        held.enter_context(_undone(folder, fresh, old))
        fresh.mkdir(parents=True)
        if _LOCKS:
            held.enter_context(_held(os.open(fresh, os.O_RDONLY)))
        yield fresh
        kept = held.pop_all()

    def replace() -> None:
        with kept:
            _sync(fresh)
            if folder.exists():
                folder.rename(old)
            fresh.rename(folder)
            _sync_folder(folder.parent)
        _remove(old)

    (later or (lambda function: function()))(replace)


@contextlib.contextmanager
def _undone(folder: Path, fresh: Path, old: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            _finish(folder, fresh, old)
        if is_disk_error(error):
            raise _save_error(folder, error) from error
        raise


def recover(parent: Path) -> None:
    """Complete or undo the replacements that a crash interrupted in a folder of one process."""
    for path in sorted(parent.glob(".*-*")):
        if match := _TEMPORARY.fullmatch(path.name):
            _finish(parent / match[1], path.with_suffix(".new"), path.with_suffix(".old"))


def _remove_leftovers(target: Path) -> None:
    if not _LOCKS:
        return
    try:
        found = [path for path in target.parent.iterdir() if path.name.startswith(".")]
    except OSError:
        return  # it will be created, or the caller reports it
    for path in found:
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or match[1] != target.name:
            continue
        if match[2] == "old" and path.with_suffix(".new").exists():
            continue  # the lock is on the new version
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if _try_lock(descriptor):
                    _finish(target, path.with_suffix(".new"), path.with_suffix(".old"))
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[None]:
    try:
        if _LOCKS:
            _try_lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether a running process writes this temporary file or folder."""
    if not _LOCKS or not _TEMPORARY.fullmatch(path.name):
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def temporary_target(path: Path) -> str | None:
    """Return the name of the target of a temporary file or folder; None for other paths."""
    match = _TEMPORARY.fullmatch(path.name)
    return match and match[1]


def _try_lock(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _finish(target: Path, fresh: Path, old: Path) -> None:
    if old.exists() and not target.exists():  # `fresh` is complete
        (fresh if fresh.exists() else old).rename(target)
    _remove(fresh)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def require_replaceable(path: Path, start: str, option: str = "--out") -> None:
    """Raise UserError if a file exists that the command did not write.

    Args:
        path: The file to write.
        start: The beginning of every file that the command writes, in lower case.
        option: The option that names the file.
    """
    if path.is_file():
        with path.open("rb") as file:
            found = file.read(len(start)).lower()
        if found not in (b"", start.encode()):
            raise UserError(f"{option} {path} exists, with other content: name another file.")


def is_disk_error(error: BaseException) -> bool:
    """Return whether an error says that the disk is full or cannot be written."""
    # safetensors and tokenizers pass on errors of the system as text
    in_library = type(error) is Exception or type(error).__name__ == "SafetensorError"
    return isinstance(error, OSError) or (in_library and "os error" in str(error).lower())


def is_free(folder: Path) -> bool:
    """Return whether a folder is absent, or holds nothing but a lock and temporary files."""
    return not folder.exists() or not entries(folder)


def entries(folder: Path) -> list[str]:
    """Return the names in a folder, without lock and temporary files."""
    names = sorted(path.name for path in folder.iterdir())
    return [n for n in names if not n.startswith(LOCK) and not _TEMPORARY.fullmatch(n)]


def allow_open_files(number: int) -> None:
    """Raise the limit of open files to hold ``number`` files of data.

    Raises UserError if the limit of the system is lower.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = number + OTHER_FILES + len(os.listdir("/dev/fd"))  # besides the open files
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return
    if hard != unlimited and hard < needed:
        raise UserError(
            f"the data are {number:,} files, and the system lets a process open {hard:,}: raise "
            f"its limit (ulimit -Hn {needed}), or write fewer files."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def clear_folder(folder: Path, last: str | None = None) -> None:
    """Remove all files of a folder except its lock; the file ``last`` comes last."""
    for name in sorted(entries(folder), key=lambda name: name == last):
        _remove(folder / name)


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
    created = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.resolve() / name
        lock = FileLock(path, thread_local=False, is_singleton=True, on_acquired=_write_holder)
        outermost = not lock.is_locked
        lock.acquire(-1 if wait else 0)
        while outermost and _holder(path) != _this_process():
            lock.release()  # its holder removed the file meanwhile
            lock.acquire(-1 if wait else 0)
    except Timeout as error:
        raise FolderInUse(
            f"{folder} is in use by {_holder(path) or 'another process'}: wait until it ends, or "
            "choose another --out."
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP):
            raise _save_error(folder, error) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if outermost and _LOCKS:  # elsewhere no file is removed while it is open
                path.unlink()
        lock.release()
        if outermost:
            with contextlib.suppress(OSError):
                if not _LOCKS:
                    path.unlink()
                for each in created:
                    each.rmdir()  # fails unless it is empty


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _write_holder(descriptor: int) -> None:
    os.truncate(descriptor, 0)
    os.write(descriptor, f" {_this_process()}".encode())


def _holder(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(1)
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _save_error(path: Path, error: BaseException) -> SaveError:
    reason = getattr(error, "strerror", None) or str(error)
    return SaveError(
        f"{path}: could not be written ({reason}). The previous version is intact. Make room, then "
        "run the command again (training: with --resume)."
    )


def _temporary_paths(path: Path) -> tuple[Path, Path]:
    base = f".{path.name}-{secrets.token_hex(8)}"
    return path.with_name(f"{base}.new"), path.with_name(f"{base}.old")


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
