"""Notices that other programs use the processor while training on a CPU.

Threads of one operation wait for each other, so one of them that gets no processor stops all.
"""

from __future__ import annotations

import time
from typing import Any

SKIPPED = 2
"""First steps that are not measured: they load kernels and allocate memory."""
SECONDS = 3.0
"""Time of steps to measure."""
BUSY = 0.7
"""Lowest fraction of the time in which the main thread computes if the processor is free."""


class ContentionCheck:
    """Context for each step that compares processor time with wall time over the first steps."""

    def __init__(self, num_threads: int) -> None:
        """One thread has none to wait for, and is not measured."""
        self.num_threads, self.num_steps = num_threads, 0
        self.measuring = num_threads > 1
        self._begin = self._sum = (0.0, 0.0, 0.0)

    def __enter__(self) -> ContentionCheck:
        if self.measuring:
            self._begin = _clocks()
        return self

    def __exit__(self, *_: Any) -> None:
        if not self.measuring:
            return
        self.num_steps += 1
        if self.num_steps > SKIPPED:
            ends = zip(self._sum, _clocks(), self._begin, strict=True)
            wall, thread, process = (total + end - begin for total, end, begin in ends)
            self._sum = wall, thread, process

    def advice(self) -> str | None:
        """Return a line for the user, once, if the processor is shared."""
        wall, thread, process = self._sum
        if not self.measuring or wall < SECONDS:
            return None
        self.measuring = False
        if thread >= BUSY * wall:
            return None
        fewer = min(self.num_threads - 1, max(1, round(process / wall)))
        return (
            f"other programs use this CPU: training gets {process / wall:.1f} of the "
            f"{self.num_threads} cores that its threads expect, and they wait for each other. "
            f"OMP_NUM_THREADS={fewer} is probably faster (in a new run: with another number of "
            "threads, results differ by rounding)"
        )


def _clocks() -> tuple[float, float, float]:
    """Return wall time, and processor time of this thread and of all threads, in seconds."""
    return time.perf_counter(), time.thread_time(), time.process_time()
