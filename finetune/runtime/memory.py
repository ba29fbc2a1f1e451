"""Freed memory stays with the process while it trains on a CPU.

Each step frees its gradients and activations and asks for as much again. glibc gives large blocks
back to the operating system in between, which then hands out the same memory page by page, zeroed:
with the weights of RoBERTa-base, bfloat16 and two cores that took a ninth of a training step, with
those of MiniLM little. The peak of memory is the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Names of settings in glibc's malloc.h: bytes at the end of the heap that are given back once they
are free, and how many blocks may come straight from the operating system."""
USUAL = {TRIM_THRESHOLD: 2**26, MMAP_MAX: 2**16}
"""What glibc comes to by itself where large blocks are freed."""
KEPT = {TRIM_THRESHOLD: 2**31 - 1, MMAP_MAX: 0}
VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")
"""Variables of the environment by which a user sets the same: then nothing is changed."""


@contextlib.contextmanager
def memory_kept() -> Iterator[None]:
    """Within, freed memory is kept; afterwards it is given back. Nothing happens without glibc."""
    library = _glibc()
    if library is None:
        yield
        return
    _set(library, KEPT)
    try:
        yield
    finally:
        _set(library, USUAL)
        library.malloc_trim(0)


def _set(library: Any, values: dict[int, int]) -> None:
    for name, value in values.items():
        library.mallopt(name, value)


def _glibc() -> Any:
    """The C library if it is glibc and the user has not set its memory; else None."""
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or tuned or any(name in os.environ for name in VARIABLES):
        return None
    library = ctypes.CDLL(None)
    known = all(hasattr(library, name) for name in ("mallopt", "malloc_trim"))
    return library if known else None
