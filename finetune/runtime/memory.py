"""Exhausted memory, and reference cycles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is exhausted."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's on a GPU; on a CPU it has no class
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
