"""Work done ahead by a thread: the next batches are tokenised and packed while a model computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

POLL = 0.1
"""Seconds after which a thread that waits looks whether it is still wanted."""

PATIENCE = 0.5
"""Seconds to wait for the thread at the end: it may be reading from a pipe that stays open."""


def ahead(items: Iterable[T], most: int = 2) -> Iterator[T]:
    """The same items in the same order, up to ``most`` of them computed before they are asked for.

    An exception of the iterable is raised where its item would come. Closing the iterator ends the
    thread; the iterable must not draw random numbers that others draw, too.
    """
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(most)
    closed = threading.Event()

    def put(what: str, value: Any = None) -> bool:
        while not closed.is_set():
            try:
                ready.put((what, value), timeout=POLL)
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
        thread.join(PATIENCE)
