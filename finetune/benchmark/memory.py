"""Peak memory of a call.

On a GPU it is what torch has allocated at its highest. On the CPU it is what the resident set grows
by; that needs Linux with glibc, whose allocator is told to give freed tensors back at once
meanwhile, which slows: no times are taken then.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Numbers of two settings of glibc's ``mallopt``."""

CLEAR = Path("/proc/self/clear_refs")


def peak(run: Callable[[], object], device: torch.device) -> int | None:
    """Bytes that a call needs, at their highest, beyond what was there before; None where that
    cannot be taken."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or not shows_memory():
        run()
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5", encoding="ascii")  # the peak starts anew
    before = _resident("VmRSS")
    run()
    return max(0, _resident("VmHWM") - before)


@contextlib.contextmanager
def modules_kept() -> Iterator[None]:
    """Spare what is there now, mostly modules, from collections: each takes most of a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _resident(name: str) -> int:
    """A size of this process in bytes, by its name in /proc/self/status, which counts KiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def shows_memory() -> bool:
    """Whether the system tells the peak of the resident set (Linux, not in all containers)."""
    return CLEAR.exists() and platform.libc_ver()[0] == "glibc"


@contextlib.contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Have freed blocks of 64 KiB and more go back to the system at once, where that can be had.

    Else glibc learns to keep blocks of up to 32 MiB, which hides what is needed again; it is left
    that way, as what it had learned cannot be asked for.
    """
    if not shows_memory():
        yield
        return
    glibc = ctypes.CDLL(None)
    glibc.mallopt(MMAP_THRESHOLD, 64 * 2**10)
    glibc.mallopt(TRIM_THRESHOLD, 128 * 2**10)
    glibc.malloc_trim(0)
    try:
        yield
    finally:
        glibc.mallopt(MMAP_THRESHOLD, 32 * 2**20)
        glibc.mallopt(TRIM_THRESHOLD, 64 * 2**20)
