"""Several processes that serve the same models on one socket: `finetune serve --workers`.

The parent loads the models and forks. Workers share the pages of the weights with it, since nobody
writes them. The parent computes nothing, before or after: a fork keeps no threads, and the threads
of an operation of torch or onnxruntime would be missing in the workers.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from finetune.deployment.serving.connections import Server
from finetune.deployment.serving.counts import SharedCounts
from finetune.deployment.serving.models import ServedModel
from finetune.types import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals that stop the server."""

log = logging.getLogger("finetune.serving")


def require_forks(workers: int, with_torch: bool) -> int:
    """Let torch compute in one thread until the fork; return the threads of each worker.

    Raises:
        UserError: The number is below 1, or processes cannot share the models here.
    """
    if workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1.")
    if sys.platform != "linux":
        raise UserError(f"--workers {workers}: needs Linux, where processes share loaded weights.")
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    if with_torch:
        import torch

        from finetune.runtime.launch import make_accelerator

        device = make_accelerator().device
        if device.type != "cpu":
            raise UserError(
                f"--workers {workers}: processes cannot share a model on {device.type}. Leave it "
                "out: one process predicts the requests of all clients in batches. Or run on the "
                "CPU with ACCELERATE_USE_CPU=true."
            )
        if os.environ.get("OMP_NUM_THREADS"):
            threads = torch.get_num_threads()
        torch.set_num_threads(1)
    return threads


class Workers:
    """The parent of the workers: starts them, replaces those that die, and stops them."""

    def __init__(
        self,
        server: Server,
        models: Sequence[ServedModel],
        listener: socket.socket,
        number: int,
        threads: int,
        with_torch: bool,
    ) -> None:
        """Prepare the workers.

        Args:
            server: The server that each worker runs.
            models: The loaded models, whose threads have not started.
            listener: The socket on which all workers accept connections.
            number: Number of workers.
            threads: Threads of torch in each worker.
            with_torch: False if onnxruntime runs all models.
        """
        self.server, self.models, self.listener = server, models, listener
        self.threads, self.with_torch = threads, with_torch
        self.started = SharedCounts(1, number)
        """Is 1 for each worker that has begun to accept connections."""
        self.processes: list[BaseProcess] = []
        self.signals: list[int] = []
        self.failed = False

    def run(self, seconds: float) -> None:
        """Run the workers until SIGTERM or Ctrl-C.

        Args:
            seconds: Seconds for the workers to end after the signal; then they are killed.

        Raises:
            SystemExit: With 1, if a worker could not start, or had to be killed.
        """
        gc.collect()
        gc.freeze()  # so that a worker's collector does not write to the shared pages of objects
        previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        try:
            self.processes = [self._start(worker) for worker in range(self.started.workers)]
            while not self.signals and not self.failed:
                wait([process.sentinel for process in self.processes], timeout=0.2)
                self._replace_dead()
            self._stop(seconds)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self.failed:
            sys.exit(1)

    def _receive(self, number: int, _: Any) -> None:
        self.signals.append(number)

    def _start(self, worker: int) -> BaseProcess:
        self.started.of_worker(worker)[0] = 0
        context = multiprocessing.get_context("fork")
        process = context.Process(target=self._work, args=(worker, os.getpid()))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the worker handles them
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return process

    def _replace_dead(self) -> None:
        for worker, process in enumerate(self.processes):
            if process.is_alive() or self.signals:
                continue
            how = _ending(process)
            if not self.started.of_worker(worker)[0]:
                log.error("worker %s %s before it could answer: stopping.", process.pid, how)
                self.failed = True
                return
            self.processes[worker] = self._start(worker)
            log.error(
                "worker %s %s, and its requests are lost: %s takes its place.",
                process.pid,
                how,
                self.processes[worker].pid,
            )

    def _stop(self, seconds: float) -> None:
        """Forward signals to the workers until all have ended."""
        end = time.monotonic() + seconds
        self.listener.close()  # so that connections are refused when the workers close theirs
        self.signals = self.signals or [signal.SIGTERM]
        while alive := [process for process in self.processes if process.is_alive()]:
            while self.signals:
                number = self.signals.pop(0)
                for process in alive:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid or 0, number)
            if time.monotonic() > end:
                log.error("%d workers did not end in time: killed.", len(alive))
                for process in alive:
                    process.kill()
                end = math.inf
            wait([process.sentinel for process in alive], timeout=0.2)
        self.failed |= any(process.exitcode != 0 for process in self.processes)

    def _work(self, worker: int, parent: int) -> None:
        """Serve, in the process of a worker."""
        os.setpgid(0, 0)  # Ctrl-C on a terminal reaches the parent alone, which forwards it
        for number in SIGNALS:
            signal.signal(number, self.server.handle_exit)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.environ.setdefault("RAYON_NUM_THREADS", str(self.threads))  # of tokenizers
        if self.with_torch:
            import torch

            torch.set_num_threads(self.threads)
        self.server.state.metrics.use_row(worker)
        self.started.use_row(worker)
        self.server.join(parent, self.started.own)
        with contextlib.ExitStack() as stack:
            for model in self.models:
                stack.push(model.start(worker))
            self.server.run(sockets=[self.listener])


def _ending(process: BaseProcess) -> str:
    code = process.exitcode or 0
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
