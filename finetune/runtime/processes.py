"""The processes of a launch by torchrun or accelerate, read from the environment without torch."""

from __future__ import annotations

import os

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
