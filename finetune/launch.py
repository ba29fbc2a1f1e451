"""How a run starts: device and processes through accelerate, and the folder it writes to."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list

from finetune.config import TrainConfig

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
    raise ValueError(f"--track {name}: {name} is not installed: pip install {package}.")


def _on_cpu() -> bool:
    """Whether accelerate must be told to stay on the CPU.

    Asked for (`accelerate launch --cpu`), or several processes without an accelerator: unasked,
    each of them would take itself for the only one.
    """
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return asked or (several and not torch.accelerator.is_available())


def with_folder(config: TrainConfig, task: str) -> TrainConfig:
    """The configuration with its run folder decided, the same on every process.

    Raises ValueError where the folder named holds a run already and --resume was not said, or
    where there is none to resume.
    """
    processes = PartialState(cpu=_on_cpu())
    if processes.num_processes == 1:
        return replace(config, out=str(_folder(config, task)))
    chosen: list[str | None] = [None]
    if processes.is_main_process:
        try:
            chosen = [str(_folder(config, task))]
        except ValueError as error:
            chosen = ["!" + str(error)]
    broadcast_object_list(chosen)
    if str(chosen[0]).startswith("!"):
        raise ValueError(str(chosen[0])[1:])
    return replace(config, out=chosen[0])


def _folder(config: TrainConfig, task: str) -> Path:
    if config.out is not None:
        folder = Path(config.out)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"--out {folder} is a file, not a folder: choose another.")
        _require_writable(folder)
        if _holds_weights(folder) and not config.resume:
            raise ValueError(
                f"--out {folder} holds a run already: write --resume to continue it, or choose "
                "another folder."
            )
        if config.resume and not is_run(folder):
            raise ValueError(f"--resume: there is no run in {folder} to continue.")
        return folder
    parts = (task, config.model, config.data, f"seed{config.seed}")
    base = RUNS / "-".join(_short(part) for part in parts)
    taken = [path for path in (base, *_numbered(base)) if is_run(path)]
    if config.resume:
        if not taken:
            raise ValueError(f"--resume: there is no run {base} to continue; name it with --out.")
        return taken[-1]
    return next(path for path in (base, *_numbered(base, 10_000)) if not path.exists())


def _require_writable(folder: Path) -> None:
    """Refuse a run folder that cannot be made or written, before anything is computed."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise ValueError(f"--out {folder}: {place} is a file, not a folder: choose another.")
    if not os.access(place, os.W_OK):
        raise ValueError(f"--out {folder}: {place} cannot be written to: choose another folder.")


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
