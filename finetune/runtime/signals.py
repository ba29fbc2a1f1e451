"""Ctrl-C and SIGTERM: end after the step in progress, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections import deque
from typing import Any

import torch
from torch import Tensor


class Interrupted(Exception):
    """Training was interrupted and its checkpoint written."""


class InterruptHandler:
    """Ctrl-C and SIGTERM end training after the step in progress; a second Ctrl-C at once.

    Several processes tell each other of theirs with the gradients of a step, and end after the same
    one: that step, or on GPUs the one behind it.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.caught = 0
        self.received: deque[tuple[Tensor, Any]] = deque(maxlen=2)
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> InterruptHandler:
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

    def receive(self, number: Tensor) -> None:
        """Take note of how many processes were asked to stop, a number [] on the device, which
        is not waited for."""
        copied = None
        if number.is_cuda:
            stream = torch.cuda.current_stream(number.device)
            number = number.to("cpu", non_blocking=True)
            copied = stream.record_event()
        self.received.append((number.clone() if copied is None else number, copied))

    def should_stop(self) -> bool:
        """Whether any process was asked to stop; the same answer on all of them. To be called once
        after each step."""
        if self.accelerator.num_processes == 1:
            return bool(self.caught)
        if len(self.received) == (1 if self.accelerator.device.type == "cuda" else 0):
            return False  # a GPU is still at this step: nobody waits for what is said in it
        number, copied = self.received.popleft()
        if copied is not None:
            copied.synchronize()
        return bool(number)
