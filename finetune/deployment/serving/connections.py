"""The HTTP server: time limits of connections, and quiet logs when there are too many."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import uvicorn
from starlette.datastructures import State
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 20.0
"""Seconds in which the headers of a request must arrive on an open connection."""
LOG_SECONDS = 60.0
"""Seconds between two messages about too many connections."""
_OUT_OF_HANDLES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger("finetune.serving")


class TimedConnection(H11Protocol):
    """A connection that ends if the headers of a request do not arrive in time.

    A client that still reads its answer has as much time again for each part of it.
    """

    waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        super().connection_lost(exc)
        self._stop_waiting()

    def handle_events(self) -> None:
        """Read the received data."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        self._stop_waiting()
        unread = self.transport.get_write_buffer_size()
        self.waiting = self.loop.call_later(HEADER_SECONDS, self._expire, unread)

    def _expire(self, before: int) -> None:
        """End the connection unless its client has read some of the ``before`` unread bytes."""
        unread = self.transport.get_write_buffer_size()
        if not unread:
            self.transport.close()
        elif unread < before:
            self._wait()
        else:
            self.transport.abort()  # to close would wait for the client to read

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None


class Server(uvicorn.Server):
    """A server that stops at SIGINT and SIGTERM, without raising the signal again.

    After the first SIGTERM it still answers for some seconds, but is not ready: load balancers
    that ask it send their requests elsewhere before connections are refused.
    """

    last_message = -LOG_SECONDS

    def __init__(self, config: uvicorn.Config, state: State, *, drain_seconds: float = 0.0) -> None:
        """Make a server.

        Args:
            config: Settings of uvicorn.
            state: The state of the application; ``draining`` is set before the stop.
            drain_seconds: Seconds to answer after the first SIGTERM.
        """
        super().__init__(config)
        self.state, self.drain_seconds = state, drain_seconds
        self.parent: int | None = None
        self.worker_started = np.zeros(1)
        self.end = math.inf
        """The time to stop, of ``time.monotonic``."""

    def join(self, parent: int, started: np.ndarray) -> None:
        """Serve as a worker, which stops after its parent.

        Args:
            parent: Id of the parent process.
            started: Gets 1 when the server accepts connections, [1].
        """
        self.parent, self.worker_started = parent, started

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: after ``drain_seconds`` at the first SIGTERM, else at once."""
        if sig == signal.SIGTERM and not self.state.draining:
            self.end = time.monotonic() + self.drain_seconds
        else:
            super().handle_exit(sig, frame)
        self.state.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; uvicorn asks ten times a second."""
        orphaned = self.parent is not None and os.getppid() != self.parent
        if orphaned or time.monotonic() >= self.end:
            self.should_exit = True
        return await super().on_tick(counter)

    async def startup(self, sockets: Any = None) -> None:
        """Begin to accept connections."""
        asyncio.get_running_loop().set_exception_handler(self._report)
        await super().startup(sockets)
        self.worker_started[0] = 1

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of the loop; say at most once a minute that no connection is accepted."""
        error = context.get("exception")
        # If no connection can be accepted, Python 3.11 sets a timer for each place of the backlog
        # to listen again. Timers that fire after the stop find a closed socket.
        if self.should_exit and isinstance(error, ValueError) and "serving" in context["message"]:
            return None
        if not (isinstance(error, OSError) and error.errno in _OUT_OF_HANDLES):
            return loop.default_exception_handler(context)
        now = time.monotonic()
        if now - self.last_message >= LOG_SECONDS:
            self.last_message = now
            count = len(self.server_state.connections)
            log.warning(
                "%d connections are open, and the system allows no more (%s): new ones wait. Raise "
                "the limit of open files (ulimit -n) before the start.",
                count,
                error.strerror,
            )
        return None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal within a ``with`` block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
