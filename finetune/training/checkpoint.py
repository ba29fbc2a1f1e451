"""Checkpoints: folders that are replaced as a whole, and the state that training resumes from.

A folder is written under another name and renamed once it is complete and on disk, so that a crash
at any moment leaves the previous one intact. All files are safetensors and JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from finetune.config.recipes import changed
from finetune.config.tasks import TrainConfig, current_settings, settings
from finetune.types import UserError

OPTIMIZER = "optimizer.safetensors"
STATE = "trainer_state.json"


class SaveError(UserError):
    """A file or folder could not be written; its previous version is intact."""


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces ``folder`` if the block ends without an error."""
    fresh, old = _temporary_names(folder)
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
                f"{folder}: could not be saved ({reason}). The previous version is intact. Free "
                "disk space and continue with --resume."
            ) from error
        raise
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def is_disk_error(error: BaseException) -> bool:
    """Return whether an error says that the disk is full or cannot be written."""
    # safetensors passes on errors of the system as text
    in_safetensors = isinstance(error, SafetensorError) and "os error" in str(error).lower()
    return isinstance(error, OSError) or in_safetensors


def recover_folder(folder: Path) -> None:
    """Complete or undo a replacement that a crash interrupted."""
    fresh, old = _temporary_names(folder)
    if not folder.exists():
        for candidate in (fresh, old):  # `fresh` is complete once `folder` has been moved away
            if old.exists() and candidate.exists():
                candidate.rename(folder)
                break
    shutil.rmtree(fresh, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)


def _temporary_names(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")


def _sync(folder: Path) -> None:
    """Wait until all files of a folder are on disk."""
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a small file, or leave its previous version intact and raise SaveError."""
    fresh = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        reason = f"{path}: could not be written ({error.strerror}). Free disk space."
        raise SaveError(reason) from error


@dataclass
class TrainerState:
    """Progress of a run, and its settings and data."""

    step: int = 0
    best_score: float | None = None
    best_step: int = 0
    bad_evaluations: int = 0
    finished: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    num_processes: int = 1
    num_threads: int | None = None
    """Threads of an operation on a CPU; None on other devices."""

    def check_resumable(self, last: Path, config: TrainConfig) -> None:
        """Raise UserError if settings, data or number of processes differ from a checkpoint's."""
        saved = json.loads((last / STATE).read_text(encoding="utf-8"))
        require_same_settings(last.parent, saved["settings"], config)
        for name, now in (
            ("fingerprint", self.fingerprint),
            ("num_processes", self.num_processes),
        ):
            if saved[name] != now:
                raise UserError(
                    f"{last.parent}: was started with {name} {saved[name]!r}, now {now!r}: use the "
                    "same data and number of processes, or another --out."
                )


def require_same_settings(folder: Path, saved: Mapping[str, Any], config: TrainConfig) -> None:
    """Raise UserError if results of the saved settings of a run differ from those of ``config``."""
    before = settings(type(config)()) | current_settings(saved)
    now = current_settings(settings(config))
    for name in changed(saved, config):
        raise UserError(
            f"{folder}: was started with {name} = {before[name]!r}, now {now[name]!r}: continue "
            "with the same settings, or use another --out."
        )


def save_training_state(folder: Path, optimizer: Optimizer, state: TrainerState) -> None:
    """Write the state of the optimizer and of the trainer."""
    moments = optimizer.state_dict()["state"]
    tensors = {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in moments.items()
        for name, value in values.items()
    }
    save_file(tensors, str(folder / OPTIMIZER))
    text = json.dumps(dataclasses.asdict(state), indent=2) + "\n"
    (folder / STATE).write_text(text, encoding="utf-8")


def load_training_state(folder: Path, optimizer: Optimizer) -> TrainerState:
    """Restore the optimizer in place and return the state of the trainer."""
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_file(str(folder / OPTIMIZER)).items():
        index, _, name = key.partition(".")
        moments.setdefault(int(index), {})[name] = value
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    if any(moments[i]["exp_avg"].shape != weights[i].shape for i in moments):
        raise UserError(f"{folder.parent}: was started with another --sparse-embeddings: keep it.")
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return TrainerState(**json.loads((folder / STATE).read_text(encoding="utf-8")))


def save_random_state(folder: Path, rank: int) -> None:
    """Write the random state of one process."""
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    save_file(tensors, str(folder / f"random-{rank}.safetensors"))


def load_random_state(folder: Path, rank: int) -> None:
    """Restore the random state of one process; UserError if the run had fewer processes."""
    path = folder / f"random-{rank}.safetensors"
    if not path.is_file():
        raise UserError(
            f"{folder}: has no random state for process {rank}: continue with as many processes "
            "as the run was started with."
        )
    tensors = load_file(str(path))
    torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
