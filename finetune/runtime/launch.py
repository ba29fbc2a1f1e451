"""How a run starts: device and processes through accelerate, and the folder it writes to."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list

from finetune.config.tasks import TrainConfig
from finetune.types import UserError

RUNS = Path("runs")
"""Where runs without --out go."""


def make_accelerator(config: TrainConfig | None = None) -> Accelerator:
    """The device, the processes and the trackers of this launch."""
    track = config.track if config else "none"
    _require_tracker(track)
    folder = config.out if config else None
    return Accelerator(
        cpu=_on_cpu(),
        mixed_precision="no",
        log_with=None if track == "none" else track,
        project_dir=folder,
    )


def _require_tracker(name: str) -> None:
    """Refuse a tracker that is not installed: accelerate would leave it out without a word."""
    if name == "none" or importlib.util.find_spec(name):
        return
    package = "'finetune[track]'" if name == "tensorboard" else name
    raise UserError(f"--track {name}: {name} is not installed: pip install {package}.")


def _on_cpu() -> bool:
    """Whether accelerate must be told to stay on the CPU.

    Asked for (`accelerate launch --cpu`), or several processes without an accelerator: unasked,
    each of them would take itself for the only one.
    """
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return asked or (several and not torch.accelerator.is_available())


def with_run_folder(config: TrainConfig, task: str, name: str | None = None) -> TrainConfig:
    """The configuration with its run folder decided, the same on every process.

    ``name`` is that of a run without --out. Raises ValueError where the folder named holds a run
    already and --resume was not said, or where there is none to resume.
    """
    return replace(config, out=str(on_main_process(lambda: _folder(config, task, name))))


def on_main_process(decide: Callable[[], Any]) -> Any:
    """What the main process decides, or the ValueError it raises, on every process."""
    processes = PartialState(cpu=_on_cpu())
    if processes.num_processes == 1:
        return decide()
    chosen: list[Any] = [None]
    if processes.is_main_process:
        try:
            chosen = [(True, decide())]
        except ValueError as error:
            chosen = [(False, str(error))]
    broadcast_object_list(chosen)
    decided, value = chosen[0]
    if not decided:
        raise UserError(value)
    return value


def is_main_process() -> bool:
    """Whether this process is the one that writes."""
    return PartialState(cpu=_on_cpu()).is_main_process


def destroy_process_group() -> None:
    """Leave the group of processes, whose threads could otherwise end the interpreter with an
    error ("terminate called without an active exception")."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def run_name(config: TrainConfig, task: str) -> str:
    """The name of runs that differ in their seed alone."""
    parts = (task, config.init_from or config.model, config.data)
    return "-".join(_short(part) for part in parts)


def _folder(config: TrainConfig, task: str, name: str | None) -> Path:
    if config.out is not None:
        folder = Path(config.out)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder} is a file, not a folder: choose another.")
        require_writable(folder)
        if _holds_weights(folder) and not config.resume:
            raise UserError(
                f"--out {folder} holds a run already: write --resume to continue it, or choose "
                "another folder."
            )
        if config.resume and not is_run(folder):
            raise UserError(f"--resume: there is no run in {folder} to continue.")
        return folder
    base = RUNS / (name or f"{run_name(config, task)}-seed{config.seed}")
    taken = [path for path in (base, *_numbered(base)) if is_run(path)]
    if config.resume:
        if not taken:
            raise UserError(f"--resume: there is no run {base} to continue; name it with --out.")
        return taken[-1]
    return next(path for path in (base, *_numbered(base, 10_000)) if not path.exists())


def require_writable(folder: Path) -> None:
    """Refuse a run folder that cannot be made or written, before anything is computed."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise UserError(f"--out {folder}: {place} is a file, not a folder: choose another.")
    if not os.access(place, os.W_OK):
        raise UserError(f"--out {folder}: {place} cannot be written to: choose another folder.")


def _numbered(base: Path, most: int = 100) -> list[Path]:
    return [base.with_name(f"{base.name}-{number}") for number in range(2, most)]


def _holds_weights(folder: Path) -> bool:
    """Whether a folder holds anything of a run that would be lost by starting anew."""
    return any((folder / name).exists() for name in ("best", "last", "best.old", "last.old"))


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return (folder / "config.json").is_file()


def _short(text: str) -> str:
    """The last part of a name or path, with plain characters only."""
    last = text.rstrip("/").split("=")[-1].split("/")[-1]
    return re.sub(r"[^\w.-]+", "_", last) or "data"
