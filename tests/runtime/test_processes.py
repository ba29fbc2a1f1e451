"""Processes that end with their parent or stop after the same step; a thread that works ahead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from finetune.runtime.signals import InterruptHandler
from finetune.runtime.workers import ahead


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_workers_end_with_a_killed_parent() -> None:
    program = """
import os, time
from finetune.runtime.workers import forked_map

def work(item):
    os.write(1, b"%d\\n" % os.getpid())  # at once: print may write the line in two parts
    time.sleep(60)

list(forked_map(work, range(8), 2))
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    parent.send_signal(signal.SIGTERM)
    parent.wait(30)
    deadline = time.monotonic() + 30
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


def test_ahead_keeps_order_and_raises_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise ValueError("the sixth")

    found = []
    with pytest.raises(ValueError, match="the sixth"):
        found += [found.append(item) for item in ahead(items())]
    assert found == list(range(5))
    assert list(ahead([])) == []


def test_ahead_is_ahead_and_ends_when_closed() -> None:
    made: list[int] = []
    third = threading.Event()

    def items() -> Iterator[int]:
        for item in range(100):
            made.append(item)
            if item == 3:
                third.set()
            yield item

    before = threading.active_count()
    stream = ahead(items(), most=2)
    assert next(stream) == 0
    assert third.wait(5), "two are ready and one more is in hand while nobody asks"
    assert made[-1] == 3
    stream.close()
    assert threading.active_count() == before
    assert len(made) < 6


def interrupt(device: str, num_processes: int) -> InterruptHandler:
    accelerator = SimpleNamespace(device=torch.device(device), num_processes=num_processes)
    return InterruptHandler(accelerator)


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", [False, False, True, True]), ("cuda", [False, False, False, True])],
)
def test_a_request_counts_in_its_step_or_the_next(device: str, expected: list[bool]) -> None:
    stop, found = interrupt(device, 2), []
    for number in (0.0, 0.0, 1.0, 1.0):
        message = torch.tensor([3.0, number])
        stop.receive(message[1])
        message.zero_()  # its memory may be used again
        found.append(stop.should_stop())
    assert found == expected
