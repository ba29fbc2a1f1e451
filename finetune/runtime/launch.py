"""Device and processes of a run, through accelerate."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list

from finetune.config.tasks import TrainConfig
from finetune.runtime.processes import num_processes
from finetune.types import UserError


def make_accelerator(config: TrainConfig | None = None) -> Accelerator:
    """Return accelerate's view of the device, the processes and the experiment trackers.

    Args:
        config: ``track`` names the tracker, ``out`` its folder; None tracks nothing.
    """
    track = config.track if config else "none"
    if track != "none" and not importlib.util.find_spec(track):  # accelerate would skip it silently
        package = "'finetune[track]'" if track == "tensorboard" else track
        raise UserError(f"--track {track}: {track} is not installed: pip install {package}.")
    return Accelerator(
        cpu=_on_cpu(),
        mixed_precision="no",
        log_with=None if track == "none" else track,
        project_dir=config.out if config else None,
    )


def _on_cpu() -> bool:
    """Return whether accelerate needs ``cpu=True``.

    It does after `accelerate launch --cpu`, and for several processes without an accelerator, each
    of which would otherwise run as if it were alone.
    """
    cpu_requested = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    return cpu_requested or (num_processes() > 1 and not torch.accelerator.is_available())


def on_main_process(function: Callable[[], Any]) -> Any:
    """Call a function on the main process; return its result, or raise its UserError, on all."""
    processes = PartialState(cpu=_on_cpu())
    if processes.num_processes == 1:
        return function()
    outcome: list[Any] = [None]
    if processes.is_main_process:
        try:
            outcome = [(True, function())]
        except UserError as error:
            outcome = [(False, str(error))]
    broadcast_object_list(outcome)
    succeeded, result = outcome[0]
    if not succeeded:
        raise UserError(result)
    return result


def is_main_process() -> bool:
    """Return whether this is the process that prints and writes files."""
    return bool(PartialState(cpu=_on_cpu()).is_main_process)


def destroy_process_group() -> None:
    """End communication with the other processes, whose threads could end Python with an error."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
