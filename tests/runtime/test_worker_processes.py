"""Processes that end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


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
