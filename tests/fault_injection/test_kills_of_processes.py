"""Runs that are killed at random moments and continued by one or two processes, in turn."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import fixtures as fx
from tests.command import in_two_processes
from tests.training.same_weights import same_weights
from tests.training.test_trajectory import settings_of

KILLS = int(os.environ.get("FINETUNE_KILLS", "40"))

pytestmark = pytest.mark.slow


def test_killed_in_one_or_two_processes_with_the_same_weights(tmp_path: Path) -> None:
    """The weights differ by rounding alone: two processes add gradients in another order.

    There is no dropout, whose masks follow the number of processes.
    """
    settings = settings_of(lr=1e-3, epochs=20.0)
    fx.fit(fx.config("tag windows", out=tmp_path / "whole", **settings))
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "finetune", *fx.words("tag windows", folder, **settings)]
    words += ["--save-every", "5", "--resume", "auto"]
    drawn, killed, continued = random.Random(1), 0, set[int]()
    while killed < KILLS or not (folder / "metrics.json").exists():
        if (folder / "metrics.json").exists():
            shutil.rmtree(folder)
        number = drawn.choice((1, 2))
        processes = in_two_processes(words) if number == 2 else [in_one_process(words)]
        if killed < KILLS:
            wait_for(folder, drawn.uniform(0, 60), processes)
            for process in processes:
                killed += process.poll() is None
                process.send_signal(signal.SIGKILL)
        outputs = [process.communicate(timeout=300) for process in processes]
        codes = {process.returncode for process in processes}
        assert codes <= {0, -signal.SIGKILL}, outputs
        if "continuing from step" in outputs[0][1]:
            continued.add(number)
        if (folder / "metrics.json").exists() and codes == {0}:
            same_weights(tmp_path / "whole" / "last", folder / "last")
    assert continued == {1, 2}


def in_one_process(words: list[str]) -> subprocess.Popen:
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(words, **pipes, text=True)


def wait_for(folder: Path, steps: float, processes: list[subprocess.Popen]) -> None:
    """Wait until a run has made some more steps, or a time that is short before its start."""
    state, begin = folder / "last" / "trainer_state.json", time.monotonic()
    first = step_of(state)
    while any(each.poll() is None for each in processes) and time.monotonic() - begin < 60:
        if step_of(state) - first >= steps:
            break
        time.sleep(0.01)
    time.sleep(steps / 1000)


def step_of(state: Path) -> int:
    try:
        return int(json.loads(state.read_text())["step"])
    except (OSError, ValueError):
        return 0
