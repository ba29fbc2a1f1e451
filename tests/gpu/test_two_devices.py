"""A launch under FSDP on two GPUs; tests/training/test_sharding.py has the tests for one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import small_data as data
from tests.tiny import save_tiny_checkpoint
from tests.training.test_step import TINY

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_a_launch_on_two_devices_learns_and_continues(tmp_path: Path) -> None:
    save_tiny_checkpoint(tmp_path / "bert", "bert", **TINY)
    data.sentiment(tmp_path / "single", (60, 12, 12))
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--use_fsdp"]
    launch += ["--fsdp_version", "2", "--num_processes", "2", "-m", "finetune", "classify"]
    words = [*launch, "--model", tmp_path / "bert", "--data", tmp_path / "single", "--steps", "40"]
    words += ["--eval-every", "10", "--lr", "2e-3", "--out", tmp_path / "run"]
    for more in ([], ["--resume"]):
        subprocess.run([*map(str, words), *more], check=True, timeout=300)
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0]
