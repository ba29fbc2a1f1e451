"""Continuous batching: a thread per model predicts the waiting items, without waiting for more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Any

from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a request and of the queue."""

    max_bytes: int = 1_000_000
    """Largest body of a request, in bytes."""
    max_examples: int = 256
    """Largest number of examples in a request."""
    max_characters: int = 20_000
    """Largest number of characters of an example; a batch holds that many, or one example."""
    max_waiting: int = 512
    """Largest number of waiting requests of a model; further ones get status 503."""
    batch_size: int = 64
    """Largest number of examples to predict together."""

    def __post_init__(self) -> None:
        for each in fields(Limits):
            if (value := getattr(self, each.name)) < 1:
                raise UserError(f"--{each.name.replace('_', '-')} {value}: must be at least 1.")


class QueueFull(Exception):
    """Too many requests wait already."""


@dataclass(eq=False)
class Request:
    """The items of a request, the answers to some of them, and the future of all answers."""

    items: Sequence[Any]
    sizes: Sequence[int]
    future: Future[list[Any]]
    answers: list[Any] = field(default_factory=list)
    taken: int = 0


class Batcher:
    """A queue of requests and a thread that answers them in batches.

    A batch takes items from the waiting requests in turn, one of each, so that a short request does
    not wait for all of a long one. Requests of clients that have gone are dropped. If a batch
    fails, the thread repeats it request by request, and only those that fail again get the error.
    """

    def __init__(
        self,
        predict: Callable[[Sequence[Any]], Sequence[Any]],
        *,
        batch_size: int,
        batch_total: int,
        max_waiting: int,
        name: str = "",
    ) -> None:
        """Make the queue; ``start`` starts the thread.

        Args:
            predict: Returns the answer to each item.
            batch_size: Largest number of items in a batch.
            batch_total: Largest sum of the sizes of a batch with more than one item.
            max_waiting: Largest number of waiting requests.
            name: Name of the thread.
        """
        self.predict, self.batch_size, self.batch_total = predict, batch_size, batch_total
        self.max_waiting = max_waiting
        self.count: Callable[[int], None] = lambda number: None
        """Called with the number of items of each batch."""
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name or None, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of requests with items that are not in a batch yet."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """True while requests are answered."""
        return self._thread.is_alive() and not self._closed

    def submit(self, items: Sequence[Any], sizes: Sequence[int]) -> Future[list[Any]]:
        """Add a request; its future gets the answers in the order of the items, or the error.

        Raises:
            QueueFull: If ``max_waiting`` requests wait.
        """
        request = Request(items, sizes, Future())
        with self._changed:
            if self._closed or len(self._waiting) >= self.max_waiting:
                raise QueueFull
            self._waiting.append(request)
            self._changed.notify()
        return request.future

    def close(self) -> None:
        """Answer the waiting requests, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._take():
            self.count(len(batch))
            try:
                answers = self.predict([request.items[index] for request, index in batch])
            except Exception as error:
                self._repeat(batch, error)
                continue
            for (request, _), answer in zip(batch, answers, strict=True):
                _answer(request, [answer])

    def _take(self) -> list[tuple[Request, int]]:
        with self._changed:
            batch: list[tuple[Request, int]] = []
            total = 0
            while not batch:
                while not self._waiting:
                    if self._closed:
                        return []
                    self._changed.wait()
                while self._waiting and len(batch) < self.batch_size:
                    request = self._waiting[0]
                    if request.future.done():  # the client has gone, or an item failed
                        self._waiting.popleft()
                        continue
                    total += request.sizes[request.taken]
                    if batch and total > self.batch_total:
                        break
                    batch.append((request, request.taken))
                    request.taken += 1
                    self._waiting.popleft()
                    if request.taken < len(request.items):
                        self._waiting.append(request)
            return batch

    def _repeat(self, batch: Sequence[tuple[Request, int]], error: Exception) -> None:
        indices: dict[Request, list[int]] = {}
        for request, index in batch:
            indices.setdefault(request, []).append(index)
        for request, own in indices.items():
            failed: Exception | None = error if len(indices) == 1 else None
            if failed is None:
                try:
                    _answer(request, self.predict([request.items[index] for index in own]))
                except Exception as again:
                    failed = again
            if failed is not None and request.future.set_running_or_notify_cancel():
                request.future.set_exception(failed)


def _answer(request: Request, answers: Sequence[Any]) -> None:
    request.answers += answers
    complete = len(request.answers) == len(request.items)
    if complete and request.future.set_running_or_notify_cancel():
        request.future.set_result(request.answers)
