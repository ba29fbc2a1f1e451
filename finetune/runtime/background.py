"""Work in the background, in one thread and in order, such as waiting for the disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path


class Background:
    """Carries out functions in a thread, one after the other, until one of them fails."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._pending: dict[Path, Future[None]] = {}
        self._error: BaseException | None = None

    def run(self, subject: Path, function: Callable[[], None]) -> None:
        """Carry out a function that writes a file or folder; ``wait`` raises its error.

        After an error, functions are not carried out, and ``wait`` raises the same error for them.
        """

        def work() -> None:
            if self._error is not None:
                raise self._error
            try:
                function()
            except BaseException as error:
                self._error = error
                raise

        self._pending[subject] = self._thread.submit(work)

    def wait(self, *subjects: Path) -> None:
        """Wait for the functions of some files or folders, and raise their errors."""
        for each in subjects:
            if (pending := self._pending.pop(each, None)) is not None:
                pending.result()

    def close(self) -> None:
        """Wait for all functions, and end the thread."""
        try:
            while self._pending:  # a function may add another
                self.wait(*self._pending)
        finally:
            self._thread.shutdown()
