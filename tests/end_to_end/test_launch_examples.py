"""The examples for schedulers: their commands parse; the script for SLURM stops and continues."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune.cli.main import parse
from tests import fixtures as fx

LAUNCH = Path(__file__).parents[2] / "examples" / "launch"


def jobs() -> dict[str, Any]:
    """The containers of the Kubernetes jobs by name, and their specifications."""
    documents = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text("utf-8"))
    return {
        each["metadata"]["name"]: (each["spec"], each["spec"]["template"]["spec"])
        for each in documents
    }


def test_the_jobs_of_kubernetes() -> None:
    found = jobs()
    for _, pod in found.values():
        (container,) = pod["containers"]
        assert container["command"] == ["python", "-m", "finetune"]
        assert pod["restartPolicy"] == "OnFailure"
        volumes = {each["name"] for each in pod["volumes"]}
        assert {each["name"] for each in container["volumeMounts"]} == volumes
    (container,) = found["finetune-train"][1]["containers"]
    assert parse(container["args"]).config.resume == "auto"
    (container,) = found["finetune-predict"][1]["containers"]
    assert parse(container["args"]).resume is True


def test_the_task_of_skypilot() -> None:
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text("utf-8"))
    python, script = shlex.split(task["run"])
    assert python == "python"
    text = (LAUNCH.parents[1] / script).read_text("utf-8")
    assert all(f'os.environ.get("{name}"' in text for name in task["envs"])


@pytest.mark.slow
def test_the_script_of_slurm_stops_before_its_limit_and_continues(tmp_path: Path) -> None:
    (stubs := tmp_path / "stubs").mkdir()
    for name, text in (
        ("srun", 'exec "$@"'),
        ("scontrol", 'echo "$@" >> requeued; [ "$1" = requeue ] || echo 127.0.0.1'),
    ):
        (stubs / name).write_text(f"#!/bin/bash\n{text}\n")
        (stubs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{stubs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "host",
        "SLURM_NNODES": "1",
        "SLURM_GPUS_ON_NODE": "2",
        "MASTER_PORT": str(20_000 + os.getpid() % 20_000),
        "OMP_NUM_THREADS": "1",
    }
    settings = "--epochs 200 --save-every 100000 --eval-every 100000 --precision fp32".split()
    command = [str(LAUNCH / "slurm.sh"), "classify", "--model", str(fx.checkpoint())]
    command += ["--data", str(fx.data("sentiment")), "--out", str(tmp_path / "run"), *settings]
    job = subprocess.Popen(command, env=environment, cwd=tmp_path)
    log, deadline = tmp_path / "run" / "log.jsonl", time.monotonic() + 180
    while not (log.exists() and log.read_text()):
        assert job.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)  # to the batch shell, as --signal=B:TERM does
    assert job.wait(120) == 0
    assert (tmp_path / "requeued").read_text().splitlines()[-1] == "requeue 7"
    step = json.loads((tmp_path / "run" / "last" / "trainer_state.json").read_text())["step"]
    assert step > 0 and not (tmp_path / "run" / "metrics.json").exists()
    again = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert f"continuing from step {step} of" in again.stderr
    assert (tmp_path / "run" / "metrics.json").is_file()
    assert (tmp_path / "requeued").read_text().count("requeue 7") == 1
