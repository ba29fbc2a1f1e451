"""What a person sees while a run works: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY = 10.0
"""Seconds between plain progress lines."""


class Reporter:
    """Progress and messages of one run; a silent one for all but the main process."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.quiet = quiet
        self.console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._last = 0.0

    def say(self, text: str) -> None:
        """Print one message."""
        if not self.quiet:
            self.console.print(text, markup=False)

    def start(self, title: str, total: int, done: int = 0, unit: str = "step") -> None:
        """Begin a stretch of work of ``total`` units."""
        self.title, self.total, self.unit = title, total, unit
        self._begin, self._first, self._last = time.monotonic(), done, time.monotonic()
        if not self.quiet and self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._bar.start()
            self._task = self._bar.add_task(title, total=total, completed=done, text="")

    def update(self, done: int, text: str = "") -> None:
        """Show how far the work is."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=text)
        elif not self.quiet and time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            left = (self._last - self._begin) / max(1, done - self._first) * (self.total - done)
            self.say(f"{self.title}: {self.unit} {done}/{self.total} {text} {clock(left)} left")

    def stop(self) -> None:
        """End the stretch of work."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def clock(seconds: float) -> str:
    """Seconds as 1:23:45 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
