"""Ctrl-C and SIGTERM: end after the step in progress, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from typing import Any

import torch


class Stopped(Exception):
    """Training was interrupted and its checkpoint written."""


class Interruption:
    """Ctrl-C and SIGTERM end training after the step in progress; a second Ctrl-C at once."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.caught = 0
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: Any) -> None:
        if self.caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = number

    def asked(self) -> bool:
        """Whether any process was asked to stop; the same answer on all of them."""
        if self.accelerator.num_processes == 1:
            return bool(self.caught)
        flag = torch.tensor([float(self.caught > 0)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum").item())
