"""Saving whole or not at all, and continuing as if nothing had happened.

A checkpoint folder is written under another name and moved into place when it is complete and on
disk, so that a crash, a full disk or `kill -9` at any moment leaves the earlier one. Everything is
safetensors and JSON; nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from finetune.types import UserError

OPTIMIZER = "optimizer.safetensors"
STATE = "trainer_state.json"


class SaveError(UserError):
    """A folder could not be written; what stood there before still does."""


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A fresh folder to write into that takes ``folder``'s place when the block ends well.

    Raises SaveError where the disk is full or refuses.
    """
    fresh, old = _beside(folder)
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        yield fresh
        _sync(fresh)
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if is_disk_error(error):
            reason = getattr(error, "strerror", None) or str(error)
            raise SaveError(
                f"{folder}: could not be saved ({reason}). Nothing half-written is left, and the "
                "version before stands. Make room and continue with --resume."
            ) from error
        raise
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def is_disk_error(error: BaseException) -> bool:
    """Whether an error says that the disk is full or refuses to be written."""
    if isinstance(error, OSError):
        return True
    # safetensors raises its own error type with the system's text in it
    return type(error).__name__ == "SafetensorError" and "os error" in str(error).lower()


def recover(folder: Path) -> None:
    """Finish or undo a move that a crash interrupted."""
    fresh, old = _beside(folder)
    if not folder.exists():
        for candidate in (fresh, old):  # `fresh` is complete once `folder` has been moved away
            if old.exists() and candidate.exists():
                candidate.rename(folder)
                break
    shutil.rmtree(fresh, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")


def _sync(folder: Path) -> None:
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise SaveError(f"{path}: could not be written ({error.strerror}). Make room.") from error


def save_training(folder: Path, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write the optimizer and the trainer's own state."""
    moments = optimizer.state_dict()["state"]
    tensors = {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in moments.items()
        for name, value in values.items()
    }
    save_file(tensors, str(folder / OPTIMIZER))
    (folder / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")


def load_training(folder: Path, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore the optimizer in place; return the trainer's own state."""
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_file(str(folder / OPTIMIZER)).items():
        index, _, name = key.partition(".")
        moments.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return json.loads((folder / STATE).read_text(encoding="utf-8"))


def save_random(folder: Path, rank: int) -> None:
    """Write a process's random state."""
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    save_file(tensors, str(folder / f"random-{rank}.safetensors"))


def load_random(folder: Path, rank: int) -> None:
    """Restore a process's random state; ValueError if the run had fewer processes."""
    path = folder / f"random-{rank}.safetensors"
    if not path.is_file():
        raise UserError(
            f"{folder}: holds no random state for process {rank}: continue with the number of "
            "processes that the run was started with."
        )
    tensors = load_file(str(path))
    torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
