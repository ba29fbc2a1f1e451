"""Freed memory is kept during training and returned afterwards."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from finetune.runtime import memory as heap

FREED = """
import resource
import torch
from finetune.runtime.memory import memory_kept

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20

def used():
    blocks = [torch.ones(2**21) for _ in range(16)]  # of 8 MiB

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

used()
before = resident()
with memory_kept():
    for _ in range(6):
        used()
    first = faults()
    used()
    again = faults() - first
print(again, resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(heap._glibc() is None, reason="needs glibc")
def test_kept_and_given_back() -> None:
    """128 MiB are 32,768 pages of 4 KiB; none is asked for again."""
    outcome = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True)
    again, more = (float(number) for number in outcome.stdout.split())
    assert again < 2000
    assert more < 64


@pytest.mark.parametrize("name", [*heap.MALLOC_VARIABLES, "GLIBC_TUNABLES", ""])
def test_what_the_user_has_set_and_other_systems_stay(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name:
        monkeypatch.setenv(name, "glibc.malloc.mmap_max=9")
    else:
        monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    with heap.memory_kept():
        assert heap._glibc() is None
