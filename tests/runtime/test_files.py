"""A file or folder is the old one or the new one, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from finetune.runtime import files
from finetune.runtime.files import (
    LOCK,
    SaveError,
    is_free,
    lock_folder,
    recover,
    replace_file,
    replace_folder,
    write_text,
)
from finetune.types import UserError
from tests.command import folder_in_use


def fill(folder: Path, content: str) -> None:
    """A complete folder: two files, one of them in a subfolder."""
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text(content)
    (folder / "inner" / "b.txt").write_text(content)


def content(folder: Path) -> str:
    """What a complete folder holds."""
    first, second = ((folder / name).read_text() for name in ("a.txt", "inner/b.txt"))
    assert first == second
    return first


def write(folder: Path, text: str) -> None:
    with replace_folder(folder) as fresh:
        assert list(fresh.iterdir()) == []
        shutil.rmtree(fresh)
        fill(fresh, text)


def test_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "best"
    write(folder, "one")
    assert content(folder) == "one"
    (folder / "extra").touch()
    write(folder, "two")
    assert content(folder) == "two"
    assert not (folder / "extra").exists(), "replaced, not merged"
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("error", [RuntimeError("ours"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("before", [True, False])
def test_an_error_inside_changes_nothing(error, before: bool, tmp_path: Path) -> None:
    folder = tmp_path / "last"
    if before:
        fill(folder, "old")
    with pytest.raises(type(error)) as caught, replace_folder(folder) as fresh:
        (fresh / "a.txt").write_text("half")
        raise error
    assert caught.value is error
    assert list(tmp_path.iterdir()) == ([folder] if before else [])
    assert not before or content(folder) == "old"


@pytest.mark.parametrize("library", ["python", "safetensors"])
def test_a_full_disk_is_said_and_harmless(library: str, tmp_path: Path) -> None:
    folder = tmp_path / "last"
    fill(folder, "old")
    with pytest.raises(SaveError) as caught, replace_folder(folder) as fresh:
        if library == "python":
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file({"x": torch.zeros(2)}, str(fresh / "absent" / "file"))
    reason = "No space left on device" if library == "python" else ".*os error 2.*"
    assert re.match(
        rf"{folder}: could not be written \({reason}\)\. .*\(training: with --resume\)",
        str(caught.value),
    )
    assert content(folder) == "old"
    assert list(tmp_path.iterdir()) == [folder]


class Crash(BaseException):
    """The process is gone: no handler may run, so cleaning up is switched off too."""


def test_a_crash_at_any_step_leaves_a_whole_folder(tmp_path: Path, monkeypatch) -> None:
    """Every call that changes the disk is once the last one before the crash."""
    outcomes, number = [], 0
    while not outcomes or outcomes[-1] != "done":
        number += 1
        workdir = tmp_path / str(number)
        fill(workdir / "last", "old")
        with monkeypatch.context() as patched:
            _crash_after(patched, number)
            try:
                write(workdir / "last", "new")
                outcomes.append("done")
            except Crash:
                outcomes.append("crash")
        recover(workdir / "last")
        assert content(workdir / "last") in ("old", "new")
        assert list(workdir.iterdir()) == [workdir / "last"]
    assert len(outcomes) >= 8
    assert content(tmp_path / str(number) / "last") == "new"


def _crash_after(patched, number: int) -> None:
    """After so many operations, nothing more reaches the disk."""
    count = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count > number - 1:
                raise Crash
            return function(*arguments, **options)

        return call

    patched.setattr(files.shutil, "rmtree", counted(shutil.rmtree))
    for name in ("mkdir", "rename"):
        patched.setattr(Path, name, counted(getattr(Path, name)))
    patched.setattr(files.os, "fsync", counted(files.os.fsync))


def test_write_text(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "metrics.json"
    write_text(path, "one — é\n")
    assert path.read_text(encoding="utf-8") == "one — é\n"
    with path.open(encoding="utf-8") as reader:
        write_text(path, "two")
        assert reader.read() == "one — é\n", "moved into place: nobody reads half a file"
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]

    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(SaveError, match=r"metrics\.json: could not be written \(No space"):
        write_text(path, "three")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_files_have_the_permissions_of_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "text")
        with replace_folder(tmp_path / "folder") as fresh:
            save_file({"x": torch.zeros(2)}, str(fresh / "weights"))
            (fresh / "weights").chmod(0o600)
    finally:
        os.umask(before)
    for path in (tmp_path / "file", tmp_path / "folder" / "weights"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_links_are_replaced_or_followed(tmp_path: Path) -> None:
    (target := tmp_path / "target").write_text("old")
    (link := tmp_path / "link").symlink_to(target)
    write_text(link, "by the user", follow=True)
    assert link.is_symlink() and target.read_text() == "by the user"
    write_text(link, "by the run")
    assert not link.is_symlink() and target.read_text() == "by the user"
    assert link.read_text() == "by the run"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
def test_pipes_and_devices_stay(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join(timeout=10)
    assert found == ["text"] and pipe.is_fifo()
    write_text(Path("/dev/null"), "text", follow=True)
    assert Path("/dev/null").is_char_device()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_errors_of_the_block_are_not_those_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replace_file(tmp_path / "file"):
        (tmp_path / "absent").read_text()
    assert not list(tmp_path.iterdir())


def test_a_folder_is_held_until_its_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    with folder_in_use(folder) as holder:
        with pytest.raises(UserError, match=f"is in use by process {holder.pid} on "):
            with lock_folder(folder):
                pass
        holder.kill()
    assert (folder / LOCK).is_file() and is_free(folder), "stale"
    with lock_folder(folder):
        with lock_folder(folder):
            assert (folder / LOCK).read_text().startswith(f" process {os.getpid()} on ")
        assert (folder / LOCK).is_file()
    assert list(folder.iterdir()) == []


def test_locking_leaves_no_folder_behind(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "runs" / "one"):
        assert (tmp_path / "runs" / "one").is_dir()
    with lock_folder(tmp_path / "two"):
        (tmp_path / "two" / "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["two"]
    (tmp_path / "file").touch()
    for context in (lock_folder(tmp_path / "file"), replace_folder(tmp_path / "file" / "last")):
        with pytest.raises(SaveError, match="could not be written"), context:
            pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_nothing_is_held_on_a_file_system_without_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    for _ in range(2):
        with lock_folder(tmp_path / "run"), lock_folder(tmp_path / "run"):
            assert (tmp_path / "run").is_dir()
        assert not (tmp_path / "run").exists()
