"""Progress and messages of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from finetune.runtime.terminal import printable

LINE_EVERY = 10.0
"""Seconds between plain progress lines."""
MIN_UNITS = 5
"""Units, such as steps, before the time left is shown: the first ones take much longer."""


def terminal(**options: Any) -> Console:
    """Make a console without highlights; with NO_COLOR in the environment, without any style."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(highlight=False, color_system=None if plain else "auto", **options)


class _LossyStream:
    """A stream that ignores errors of writing, such as a closed pipe or a full disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def output_may_be_lost() -> Iterator[None]:
    """Context in which a lost standard output or error does not end the program."""
    streams = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        out, err = (_LossyStream(stream or nothing) for stream in streams)  # None: it is closed
        sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
            for stream in filter(None, streams):
                try:
                    stream.flush()
                except OSError:  # Python would end with an error
                    os.dup2(nothing.fileno(), stream.fileno())


class Reporter:
    """Shows the progress and messages of one run.

    Tasks, such as training or the validation within it, may be nested: ``start`` begins one,
    ``stop`` ends the innermost.

    Args:
        quiet: Show nothing.
        stream: The stream to write to; by default standard error.
        console: The console of another reporter, in place of a stream.
        prefix: The beginning of each message.
    """

    def __init__(
        self,
        quiet: bool = False,
        stream: TextIO | None = None,
        *,
        console: Console | None = None,
        prefix: str = "",
    ) -> None:
        self.quiet, self.prefix = quiet, prefix
        file = cast("TextIO", _LossyStream(stream or sys.stderr))
        self.console = console or terminal(file=file, soft_wrap=True)
        self._logged: set[str] = set()
        self._progress: Progress | None = None  # of the tasks that have begun
        self._last_line = 0.0

    def log(self, text: str, *, once: bool = False) -> None:
        """Print a message; ``once`` leaves out one that was printed before."""
        if not self.quiet and not (once and text in self._logged):
            self._logged.add(text)
            self.console.print(printable(self.prefix + text), markup=False)

    def start(self, title: str, total: int | None, done: int = 0, unit: str = "step") -> None:
        """Begin a task of ``total`` units (None: unknown); ``done`` units are done already."""
        if self.quiet:
            return
        if self._progress is None:
            self._last_line = time.monotonic()
            widgets = self.console.is_jupyter and find_spec("ipywidgets") is not None
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}", markup=False),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
                disable=not (self.console.is_terminal or widgets),
            )
            self._progress.start()
        fields = dict[str, Any](text="", unit=unit, first=done, begin=time.monotonic())
        self._progress.add_task(title, total=total, completed=done, **fields)

    def update(self, done: int, text: str = "") -> None:
        """Show that ``done`` units of the innermost task are done."""
        if self._progress is None:
            return
        task = self._progress.tasks[-1]
        first, unit = task.fields["first"], task.fields["unit"]
        rate = (done - first) / max(1e-9, time.monotonic() - task.fields["begin"])
        units = unit + ("es" if unit.endswith("ch") else "s")
        text = f"{text} {rate:,.1f} {units}/s".strip()
        if not self._progress.disable:
            self._progress.update(task.id, completed=done, text=text)
        elif time.monotonic() - self._last_line >= LINE_EVERY:
            self._last_line = time.monotonic()
            if task.total is not None and done - first >= MIN_UNITS:
                text += f" {clock((task.total - done) / rate)} left"
            position = f"{done:,}" if task.total is None else f"{done}/{task.total}"
            self.log(f"{task.description}: {unit} {position} {text}")

    def stop(self) -> None:
        """End the innermost task."""
        if self._progress is None:
            return
        *outer, task = self._progress.tasks
        if outer:
            self._progress.remove_task(task.id)
        else:
            if not self._progress.disable:  # rich 13 would end it with an empty line
                self._progress.stop()
            self._progress = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: Any) -> None:
        while self._progress is not None:
            self.stop()


_shown_by: ContextVar[Reporter | None] = ContextVar("shown_by", default=None)


@contextlib.contextmanager
def shown_by(reporter: Reporter) -> Iterator[None]:
    """Context in which a reporter shows the progress of reading and tokenizing."""
    token = _shown_by.set(reporter)
    try:
        yield
    finally:
        _shown_by.reset(token)


@contextlib.contextmanager
def progress_task(
    title: str, total: int | None = None, unit: str = "row"
) -> Iterator[Callable[[int], None]]:
    """Show a task of ``total`` units (None: unknown); yield a function that shows its progress."""
    reporter = _shown_by.get() or Reporter(quiet=True)
    reporter.start(title, total, unit=unit)
    try:
        yield reporter.update
    finally:
        reporter.stop()


def clock(seconds: float) -> str:
    """Format seconds as 1:23:45 or 2:03."""
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"
