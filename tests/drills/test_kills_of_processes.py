"""Runs that are killed at random moments and continued by one or two processes, in turn."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from finetune.tasks import load_task
from finetune.training.trainer import fit
from tests import small_data as data
from tests.command import in_two_processes
from tests.tiny import save_tiny_checkpoint
from tests.training.test_trajectory import command, config_of

KILLS = int(os.environ.get("FINETUNE_KILLS", "40"))

pytestmark = pytest.mark.slow


def test_killed_in_one_or_two_processes_with_the_same_weights(tmp_path: Path) -> None:
    """The weights differ by rounding alone: two processes add gradients in another order."""
    save_tiny_checkpoint(tmp_path / "dropout", "bert", dropout=0.1)
    data.entities(tmp_path / "entities", words=3)
    settings = {"model": "dropout", "lr": 1e-3, "epochs": 20.0}
    whole = config_of("tag", tmp_path, tmp_path / "whole", **settings)
    fit(*load_task(whole, "tag"), whole)
    expected = load_file(tmp_path / "whole" / "last" / "model.safetensors")
    words = command(
        replace(whole, out=str(tmp_path / "run")), "tag", "--save-every", "5", "--resume", "auto"
    )
    drawn, killed, continued = random.Random(1), 0, set[int]()
    folder = tmp_path / "run"
    while killed < KILLS or not (folder / "metrics.json").exists():
        if (folder / "metrics.json").exists():
            shutil.rmtree(folder)
        number = drawn.choice((1, 2))
        processes = (
            in_two_processes(words)
            if number == 2
            else [
                subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ]
        )
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
            found = load_file(folder / "last" / "model.safetensors")
            for name, value in expected.items():
                if not name.endswith("key.bias"):  # no gradient but rounding
                    torch.testing.assert_close(found[name], value, rtol=0, atol=2e-4, msg=name)
    assert continued == {1, 2}


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
