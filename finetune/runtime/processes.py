"""The processes of a launch by torchrun or accelerate, read from the environment without torch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from finetune.types import UserError

_OFF = ("", "0", "no", "none", "false")
"""Values of a variable of accelerate that leave its setting off."""
_WHOLE = (
    "each process has the whole model, and gradients are summed as in DDP; to save memory lower "
    "--max-tokens, or use --precision bf16 or --tuning lora"
)
UNSUPPORTED: dict[str, tuple[str, str]] = {
    "ACCELERATE_USE_FSDP": ("FSDP", _WHOLE),
    "ACCELERATE_USE_DEEPSPEED": ("DeepSpeed", _WHOLE),
    "ACCELERATE_USE_MEGATRON_LM": ("Megatron-LM", _WHOLE),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("tensor, context or sequence parallelism", _WHOLE),
    "ACCELERATE_DYNAMO_BACKEND": ("the compiler (dynamo_backend)", "it has no effect"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (
        "gradient_accumulation_steps",
        "--batch-size counts examples per optimizer step, and --max-tokens divides it into passes",
    ),
}
"""Unsupported settings of accelerate, by variable: a name and the reason."""
LAUNCH_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class ReportedError(UserError):
    """An error that another process of the launch reports."""


def num_processes() -> int:
    """The number of processes of the launch, over all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def require_one_process(name: str) -> None:
    """Raise UserError if the launch has several processes."""
    if num_processes() > 1:
        raise UserError(f"{name} runs in one process: start it without accelerate or torchrun.")


def process_index() -> int:
    """The index of this process; process 0 prints and writes files."""
    return int(os.environ.get("RANK", "0"))


def end_with_launcher() -> None:
    """Ask Linux for SIGTERM when torchrun, which started this process, is killed.

    Training then ends with a checkpoint, as after any SIGTERM.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent(signal.SIGTERM)


def end_with_parent(number: int, parent: int | None = None) -> bool:
    """Ask Linux for a signal when the parent of this process ends.

    Return False if the process with the number ``parent`` is no longer the parent.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, number)
    return parent in (None, os.getppid())


def require_honored_settings() -> None:
    """Raise UserError for a setting of accelerate that would have no effect."""
    for variable, (name, reason) in UNSUPPORTED.items():
        value = os.environ.get(variable, "")
        if value.lower() not in (*_OFF, *(["1"] if variable.endswith("_STEPS") else [])):
            raise UserError(
                f"accelerate's {name} ({variable}={value}) is not supported: {reason}. Turn it off "
                "in the accelerate configuration, or start with torchrun."
            )


def require_precision(precision: str) -> None:
    """Raise UserError if accelerate's mixed precision is not the precision of the run."""
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower()
    if asked not in (*_OFF, precision):
        raise UserError(
            f"accelerate's mixed_precision {asked} is not the precision of the run, {precision}: "
            "set --precision, and mixed_precision: no in the accelerate configuration."
        )
