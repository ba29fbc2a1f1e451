"""Time, and the fastest that a device multiplies matrices."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

TRIES = 5
"""Products of which the fastest counts as the peak."""


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def now(device: torch.device) -> float:
    """Seconds, once the device is done."""
    synchronise(device)
    return time.perf_counter()


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """How long a call takes."""
    begin = now(device)
    run()
    return now(device) - begin


def matmul_peak(precision: str, device: torch.device, size: int) -> float:
    """Floating point operations per second of a product of two ``size`` x ``size`` matrices, the
    fastest of a few."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(size, size, dtype=kind, device=device) for _ in range(2))
    times = [seconds(lambda: left @ right, device) for _ in range(TRIES + 1)]
    return 2 * size**3 / min(times[1:])
