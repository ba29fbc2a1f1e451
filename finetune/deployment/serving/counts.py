"""Counts that each worker of the server keeps for itself, and that every worker can sum."""

from __future__ import annotations

import mmap

import numpy as np

COUNT = np.dtype(np.float64)


class SharedCounts:
    """A row of counts for each worker, in memory that processes share after a fork.

    Make it before the fork. A worker writes its own row only, so there is no lock: each count is
    one aligned number of 8 bytes, which is never read half written. A worker that takes the place
    of another one continues its row, so that no sum becomes smaller.
    """

    def __init__(self, columns: int, workers: int = 1) -> None:
        memory = mmap.mmap(-1, COUNT.itemsize * columns * workers)  # zeros
        self._rows = np.frombuffer(memory, COUNT).reshape(workers, columns)
        self.own = self._rows[0]
        """The counts of this process, [columns]."""

    @property
    def workers(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def use_row(self, worker: int) -> None:
        """Let this process write the row of a worker."""
        self.own = self._rows[worker]

    def of_worker(self, worker: int) -> np.ndarray:
        """Return the counts of a worker, [columns]."""
        row: np.ndarray = self._rows[worker]
        return row

    def total(self) -> np.ndarray:
        """Return the sums over all workers, [columns]."""
        return np.asarray(self._rows.sum(axis=0))
