"""Memory that a process keeps while it trains on a CPU, and reference cycles.

By default glibc returns the large blocks of each step, and gets them again page by page, zeroed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Settings in glibc's malloc.h: free bytes at the end of the heap before they are returned, and the
least size and the number of blocks that may come directly from the operating system."""
MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep Python from searching millions of new values for reference cycles, as they have none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def memory_kept() -> contextlib.AbstractContextManager[None]:
    """Context in which freed memory is kept, and returned at the end; no effect without glibc."""
    return malloc_options(
        {TRIM_THRESHOLD: 2**31 - 1, MMAP_MAX: 0}, {TRIM_THRESHOLD: 2**26, MMAP_MAX: 2**16}
    )


@contextlib.contextmanager
def malloc_options(during: Mapping[int, int], usual: Mapping[int, int]) -> Iterator[None]:
    """Context in which glibc allocates by other options (``mallopt``); ``usual`` end it."""
    if (library := _glibc()) is None:
        yield
        return
    for name, value in during.items():
        library.mallopt(name, value)
    try:
        yield
    finally:
        for name, value in usual.items():
            library.mallopt(name, value)
        library.malloc_trim(0)


def _glibc() -> Any:
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    tuned = tuned or any(name in os.environ for name in MALLOC_VARIABLES)
    return None if tuned or platform.libc_ver()[0] != "glibc" else ctypes.CDLL(None)
