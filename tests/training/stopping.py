"""A run that is interrupted at a known step."""

from __future__ import annotations

import os
import signal

import pytest

from finetune.training.step import Step


def interrupt_in_step(number: int, patch: pytest.MonkeyPatch) -> None:
    """Send this process SIGINT while it computes its ``number``-th step from now on."""
    step, calls = Step.__call__, 0

    def interrupted(self, batches, **settings):
        nonlocal calls
        calls += 1
        result = step(self, batches, **settings)
        if calls == number:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    patch.setattr(Step, "__call__", interrupted)
