"""Prefetching: a thread tokenizes and packs the next batches while the model computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


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
        while (found := ready.get())[0] == "item":
            yield found[1]
        if found[0] == "error":
            raise found[1]
    finally:
        closed.set()
        thread.join(0.5)  # no longer: it may be reading from an open pipe
