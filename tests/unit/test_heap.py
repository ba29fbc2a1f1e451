"""Freed memory is kept while a run trains, and given back behind it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from finetune import heap

FREED = """
import torch
from finetune.heap import memory_kept

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096 / 2**20

def rounds():
    for _ in range(3):
        blocks = [torch.ones(2**21) for _ in range(16)]  # of 8 MiB
        del blocks
    return resident()

before = rounds()
with memory_kept():
    inside = rounds()
print(inside - before, resident() - before)
"""


def difference(**environment: str) -> list[float]:
    """Mebibytes in and behind the context more than before it, after 128 MiB were freed."""
    outcome = subprocess.run(
        [sys.executable, "-c", FREED], capture_output=True, text=True, check=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return [float(number) for number in outcome.stdout.split()]


@pytest.mark.skipif(heap._glibc() is None, reason="needs glibc")
def test_kept_and_given_back() -> None:
    inside, behind = difference()
    assert inside > 100
    assert behind < 30


@pytest.mark.skipif(heap._glibc() is None, reason="needs glibc")
def test_what_the_user_has_set_stays() -> None:
    inside, _ = difference(MALLOC_MMAP_THRESHOLD_="65536")
    assert inside < 30


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with heap.memory_kept():
        assert heap._glibc() is None
