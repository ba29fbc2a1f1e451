"""Freed memory stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from finetune.memory import keep_freed_memory
if {kept}:
    keep_freed_memory()
def turn():
    for _ in range(5):
        torch.zeros(4_000_000).add_(1)
turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_the_next_tensor_takes_the_memory_of_the_last() -> None:
    """16 MB are 4,000 pages, each a page fault where the memory is new."""
    faults = {
        kept: int(
            subprocess.run(
                [sys.executable, "-c", FAULTS.format(kept=kept)],
                check=True, capture_output=True, text=True,
            ).stdout
        )
        for kept in (True, False)
    }  # fmt: skip
    assert faults[True] < 1_000 < faults[False]
