"""The queue of a model: order, batches, errors, gone clients, the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from finetune.deployment.batcher import Batcher, QueueFull


class Model:
    """Doubles numbers once it may; fails on negative ones."""

    def __init__(self) -> None:
        self.may, self.started = threading.Event(), threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.started.set()
        assert self.may.wait(10)
        if min(items) < 0:
            raise ValueError(f"negative: {min(items)}")
        return [2 * item for item in items]


def start(size: int = 4, total: int = 100, waiting: int = 10) -> tuple[Model, Batcher]:
    """A batcher whose first batch, of one request, is under way."""
    model = Model()
    made = Batcher(model, batch_size=size, batch_total=total, max_waiting=waiting)
    made.start()
    made.submit([0], [1])
    assert model.started.wait(10)
    return model, made


def test_requests_take_turns_and_get_their_own_answers():
    model, batcher = start()
    long, short = batcher.submit([1, 2, 3, 4, 5], [1] * 5), batcher.submit([10], [1])
    model.may.set()
    assert (long.result(10), short.result(10)) == ([2, 4, 6, 8, 10], [20])
    assert model.batches == [[0], [1, 10, 2, 3], [4, 5]]
    batcher.close()


def test_a_batch_is_bounded_by_the_sum_of_sizes():
    model, batcher = start(total=10)
    futures = [batcher.submit([number], [size]) for number, size in enumerate((6, 4, 1, 50, 1))]
    model.may.set()
    assert [future.result(10) for future in futures] == [[0], [2], [4], [6], [8]]
    assert model.batches[1:] == [[0, 1], [2], [3], [4]]
    batcher.close()


def test_an_error_is_that_of_its_own_request():
    model, batcher = start()
    futures = [batcher.submit(items, [1] * len(items)) for items in ([1], [-2, 5], [3])]
    model.may.set()
    assert futures[0].result(10) == [2] and futures[2].result(10) == [6]
    with pytest.raises(ValueError, match="negative: -2"):
        futures[1].result(10)
    assert batcher.submit([7], [1]).result(10) == [14]
    batcher.close()


def test_the_queue_is_bounded_and_a_gone_client_is_dropped():
    model, batcher = start(waiting=2)
    gone, stays = batcher.submit([1], [1]), batcher.submit([2], [1])
    with pytest.raises(QueueFull):
        batcher.submit([3], [1])
    assert gone.cancel()
    model.may.set()
    assert stays.result(10) == [4]
    assert model.batches == [[0], [2]]
    batcher.close()


def test_the_end_answers_what_waits():
    model, batcher = start()
    future = batcher.submit([1], [1])
    model.may.set()
    batcher.close()
    assert future.result(0) == [2] and not batcher.alive
    with pytest.raises(QueueFull):
        batcher.submit([1], [1])
