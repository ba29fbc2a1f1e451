"""Work in the background, in one thread and in order, such as waiting for the disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path


class Background:
    """Carries out functions in a thread, one after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._pending: dict[Path, Future[None]] = {}

    def run(self, subject: Path, function: Callable[[], None]) -> None:
        """Carry out a function that writes a file or folder; ``wait`` raises its error."""
        self._pending[subject] = self._thread.submit(function)

    def runs(self, subject: Path) -> bool:
        """Return whether a function of this file or folder waits or runs."""
        return subject in self._pending and not self._pending[subject].done()

    def wait(self, subject: Path | None = None) -> None:
        """Wait for the function of a file or folder, or for all of them, and raise its error."""
        for each in [subject] if subject else list(self._pending):
            if (pending := self._pending.pop(each, None)) is not None:
                pending.result()

    def close(self) -> None:
        """Wait for all functions, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
