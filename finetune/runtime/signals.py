"""Ctrl-C, SIGTERM and SIGHUP: training ends after the current step, with a checkpoint.

A single process also ends an evaluation, which the resumed run does again.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
"""Ctrl-C, a batch system that ends a job, and a terminal that closes."""


class Interrupted(Exception):
    """Training stopped after a signal and wrote its checkpoint; ``signal`` is its number."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = number


class _Stopped(BaseException):
    """Ends the function of ``InterruptHandler.finishes``."""


class InterruptHandler:
    """Context in which SIGNALS request a stop; a second Ctrl-C raises at once.

    Several processes exchange their requests together with the gradients of each step. All of them
    stop after the same step: on CPUs the step of the request, on GPUs the next step.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.caught = 0
        """Number of the signal that this process caught, or 0."""
        self.ends_function = False
        self.received: deque[tuple[Tensor, Any]] = deque(maxlen=2)
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> InterruptHandler:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                    self.previous[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: Any) -> None:
        if self.caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = number
        if self.ends_function:
            self.ends_function = False
            raise _Stopped

    def finishes(self, function: Callable[[], None]) -> bool:
        """Call a function; return whether it finished, as a request of a single process ends it."""
        with contextlib.suppress(_Stopped):
            try:
                self.ends_function = self.accelerator.num_processes == 1
                if not (self.ends_function and self.caught):
                    function()
                    return True
            finally:
                self.ends_function = False
        return False

    def interrupted(self, message: str) -> Interrupted:
        """Make the exception of a stop. A process that caught no signal counts as terminated."""
        return Interrupted(message, self.caught or signal.SIGTERM)

    def receive(self, number: Tensor) -> None:
        """Store the number of processes that requested a stop, a tensor [], without waiting."""
        copied = None
        if number.is_cuda:
            stream = torch.cuda.current_stream(number.device)
            number = number.to("cpu", non_blocking=True)
            copied = stream.record_event()
        self.received.append((number.clone() if copied is None else number, copied))

    def should_stop(self) -> bool:
        """Agree with all processes whether one requested a stop. Call once in each step."""
        if self.accelerator.num_processes == 1:
            return bool(self.caught)
        # a GPU is still computing this step: read the request of the step before
        if len(self.received) == (1 if self.accelerator.device.type == "cuda" else 0):
            return False
        number, copied = self.received.popleft()
        if copied is not None:
            copied.synchronize()
        return bool(number)

    def signals_received(self) -> bool:
        """Agree with all processes, which this waits for, whether one has caught a signal."""
        return any(gather_object([self.caught > 0]))
