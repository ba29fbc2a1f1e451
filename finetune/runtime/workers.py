"""Work on several processors: in processes that share the memory of this one, or in a thread."""

from __future__ import annotations

import collections
import gc
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from finetune.runtime.processes import end_with_parent
from finetune.types import UserError

R = TypeVar("R")
T = TypeVar("T")

_work: Callable[[Any], Any] | None = None
"""The function of the workers, which they get with the memory of their parent."""


def num_workers(alone: bool = False) -> int:
    """Compute this process's share of the processors of its machine.

    ``alone`` tells that the other processes of the launch wait for this one.
    """
    if sys.platform != "linux":
        return 1  # others cannot fork a process with threads
    local = 1 if alone else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // local)


def forked_map(function: Callable[[Any], R], items: Iterable[Any], workers: int) -> Iterator[R]:
    """Yield the results in order, computed in forked processes.

    The function and all that it refers to need not be pickled. It must not use threads of this
    process, such as torch's, or its devices.
    """
    global _work
    if workers == 1:
        yield from map(function, items)
        return
    _work, before = function, _work
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(workers, context, _start, (os.getpid(),)) as pool:
            waiting: collections.deque[Future[R]] = collections.deque()
            try:
                for item in items:
                    waiting.append(pool.submit(_call, item))
                    if len(waiting) == 2 * workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            except BrokenProcessPool as error:
                raise UserError(
                    "a process that prepares data ended, probably for lack of memory: start again "
                    "on a machine with more memory, or with fewer processors (taskset -c 0)."
                ) from error
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        _work = before


def _start(parent: int) -> None:
    if not end_with_parent(signal.SIGKILL, parent):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # what the parent made is not searched for reference cycles, nor copied by that
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the threads of the parent are not here


def _call(item: Any) -> Any:
    assert _work is not None
    return _work(item)


def ahead(items: Iterable[T], most: int = 2) -> Generator[T]:
    """Yield the same items in the same order, computing up to ``most`` of them in advance.

    An exception of the iterable is raised in place of its item. Closing the iterator ends the
    thread. The iterable must not use the global random state.
    """
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(most)
    closed = threading.Event()

    def put(what: str, value: Any = None) -> bool:
        while not closed.is_set():
            try:
                ready.put((what, value), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end")
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=work, daemon=True, name="ahead")
    thread.start()
    try:
        while (message := ready.get())[0] == "item":
            yield message[1]
        if message[0] == "error":
            raise message[1]
    finally:
        closed.set()
        thread.join(0.5)  # no longer: it may be reading from an open pipe
