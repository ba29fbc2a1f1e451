"""Device and processes of a run, through accelerate."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import is_initialized
from accelerate.utils import broadcast_object_list, gather_object
from torch.distributed import DistError

from finetune.config.tasks import TrainConfig
from finetune.registry import install_command
from finetune.runtime.device import resolve_precision
from finetune.runtime.processes import (
    ReportedError,
    num_processes,
    require_honored_settings,
    require_precision,
)
from finetune.types import UserError


def make_accelerator(config: TrainConfig | None = None) -> Accelerator:
    """Set up accelerate's view of the device, the processes and the experiment trackers.

    Args:
        config: ``track`` names the tracker, ``out`` its folder; None tracks nothing.
    """
    track = config.track if config else "none"
    if track != "none" and not importlib.util.find_spec(track):  # accelerate would skip it silently
        raise UserError(f"--track {track}: {track} is not installed: {install_command(track)}.")
    require_honored_settings()
    accelerator = Accelerator(
        cpu=_on_cpu(),
        # an accelerator of the caller decides for all; passes here have a precision of their own
        mixed_precision=None if is_initialized() else "no",
        log_with=None if track == "none" else track,
        project_dir=config.out if config else None,
    )
    if accelerator.device.type == "cuda" and accelerator.device.index is not None:
        torch.cuda.set_device(accelerator.device)  # accelerate leaves one of its own variable out
    if config:
        require_precision(resolve_precision(config, accelerator.device))
    return accelerator


@contextlib.contextmanager
def lost_processes() -> Iterator[None]:
    """Context that raises UserError in place of the error of a connection to another process."""
    try:
        yield
    except RuntimeError as error:
        # errors of gloo have no class of their own
        if num_processes() > 1 and (isinstance(error, DistError) or "/gloo/" in str(error)):
            reason = " ".join(str(error).split()).partition(". ")[0][-160:]
            raise UserError(
                f"another process of the launch ended or cannot be reached ({reason}): see its "
                "messages, and start all processes again; training continues from its last "
                "checkpoint with --resume."
            ) from error
        raise


def require_equal(name: str, value: Any, advice: str) -> None:
    """Raise UserError on all processes if a value is not the same on all of them."""
    if num_processes() == 1:
        return
    values = gather_object([value])
    for index, other in enumerate(values):
        if other != values[0]:
            raise UserError(
                f"process {index} has another {name} than process 0 ({other!r}, not "
                f"{values[0]!r}): {advice}."
            )


def _on_cpu() -> bool:
    # accelerate's processes without an accelerator would each run as if they were alone
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


def on_all_processes(function: Callable[[], Any]) -> Any:
    """Call a function on every process; a UserError on one of them is raised on all.

    If all processes have the same error, it is a ReportedError on all but the main process.
    """
    processes = PartialState(cpu=_on_cpu())
    if processes.num_processes == 1:
        return function()
    result = error = None
    try:
        result = function()
    except UserError as raised:
        error = raised
    messages = gather_object([error and str(error)])
    first = next((message for message in messages if message is not None), None)
    if first is None:
        return result
    index = processes.process_index
    if error is None or str(error) in messages[:index]:
        raise ReportedError(first) from error
    raise error


def gather_rows(rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Concatenate the rows [N_p, ...] of all processes p: [sum of N_p, ...].

    ``counts`` lists N_p by process.
    """
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in counts]
    torch.distributed.all_gather(gathered, padded)
    return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])


def is_main_process() -> bool:
    """Whether this is the process that prints and writes files."""
    return bool(PartialState(cpu=_on_cpu()).is_main_process)


def destroy_process_group() -> None:
    """Disconnect from the other processes; threads of a connection could crash Python's exit."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
