"""Runs that are stopped at a known step."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from finetune.runtime.signals import Interrupted
from finetune.training.step import Step


class Killed(BaseException):
    """Stands for a kill: nothing catches it, and nothing writes a checkpoint."""


def at_step(number: int, action: Callable[[], Any], patch: pytest.MonkeyPatch) -> None:
    """Do something when this process begins its ``number``-th step from now on."""
    step, calls = Step.__call__, 0

    def counted(self: Step, batches: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            action()
        return step(self, batches, **settings)

    patch.setattr(Step, "__call__", counted)


def interrupt_in_step(number: int, patch: pytest.MonkeyPatch) -> None:
    """Send this process SIGINT while it computes its ``number``-th step from now on."""
    at_step(number, lambda: os.kill(os.getpid(), signal.SIGINT), patch)


@contextlib.contextmanager
def interrupted(number: int) -> Iterator[None]:
    """Interrupt a run in this step; the run must say so."""
    with pytest.MonkeyPatch.context() as patch:
        interrupt_in_step(number, patch)
        with pytest.raises(Interrupted, match=f"stopped at step {number}"):
            yield
