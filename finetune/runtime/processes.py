"""The processes of a launch by torchrun or accelerate, read from the environment without torch."""

from __future__ import annotations

import os

from finetune.types import UserError

OFF = ("", "0", "1", "no", "false")
"""Values of a variable of accelerate that leave its setting off."""
WHOLE = (
    "each device holds the whole model; to save memory lower --max-tokens, or use --precision bf16 "
    "or --freeze"
)
UNSUPPORTED = {
    "ACCELERATE_USE_DEEPSPEED": ("DeepSpeed", WHOLE),
    "ACCELERATE_USE_FSDP": ("FSDP", WHOLE),
    "ACCELERATE_USE_MEGATRON_LM": ("Megatron-LM", WHOLE),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("tensor, context or sequence parallelism", WHOLE),
    "ACCELERATE_DYNAMO_BACKEND": ("the compiler (dynamo_backend)", "it has no effect"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (
        "gradient_accumulation_steps",
        "--batch-size counts examples per optimizer step, and --max-tokens divides it into passes",
    ),
}
"""Settings of an accelerate configuration that are not honored, by variable, and the reason."""
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def num_processes() -> int:
    """Return the number of processes of the launch, over all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """Return the index of this process; process 0 prints and writes files."""
    return int(os.environ.get("RANK", "0"))


def leave_launch() -> None:
    """Make this process run as if it had been started alone."""
    for name in VARIABLES:
        os.environ.pop(name, None)


def require_honored_settings() -> None:
    """Raise UserError for a setting of accelerate that would have no effect."""
    for variable, (name, reason) in UNSUPPORTED.items():
        value = os.environ.get(variable, "")
        if value.lower() not in OFF:
            raise UserError(
                f"accelerate's {name} ({variable}={value}) is not supported: {reason}. Turn it off "
                "in the accelerate configuration, or start with torchrun."
            )


def require_precision(precision: str) -> None:
    """Raise UserError if accelerate's mixed precision is not the precision of the run."""
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower()
    if asked not in (*OFF, precision):
        raise UserError(
            f"accelerate's mixed_precision {asked} is not the precision of the run, {precision}: "
            "set --precision, and mixed_precision: no in the accelerate configuration."
        )
