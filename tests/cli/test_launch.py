"""Commands in two processes, as by accelerate launch or torchrun: one prints and writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from finetune.config.tasks import TrainConfig
from finetune.runtime.launch import make_accelerator
from finetune.runtime.processes import LAUNCH_VARIABLES
from finetune.types import UserError
from tests import small_data as data
from tests.command import in_two_processes, run
from tests.forks import in_two_forks
from tests.tiny import save_tiny_checkpoint


def both(
    *words: str | Path, folders: tuple[Path | None, Path | None] = (None, None)
) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of both processes."""
    processes = in_two_processes([sys.executable, "-m", "finetune", *map(str, words)], folders)
    outputs = [process.communicate(timeout=120) for process in processes]
    return [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]


def both_forks(*words: str | Path) -> list[tuple[int | None, str, str]]:
    """Return the same of a command whose processes need not be fresh."""
    forks = in_two_forks([sys.executable, "-m", "finetune", *map(str, words)])
    return [(fork.wait(120), *fork.communicate()) for fork in forks]


def torchrun(options: str, command: list[str | Path], **streams: Any) -> subprocess.Popen:
    """Start a command with torchrun; its output goes where its errors go."""
    launcher = [sys.executable, "-m", "torch.distributed.run", *options.split()]
    words = [*launcher, "-m", "finetune", *map(str, command)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, stdout=streams["stderr"], env=environment, **streams)


def wait_for_checkpoint(run: Path, *launchers: subprocess.Popen) -> Path:
    """Wait until a run has saved its state, and return the file."""
    state, deadline = run / "last" / "trainer_state.json", time.monotonic() + 120
    while not state.exists() and time.monotonic() < deadline:
        assert not any(launcher.poll() for launcher in launchers), "ended too early"
        time.sleep(0.05)
    return state


def children_of(launcher: subprocess.Popen) -> list[int]:
    path = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    return [int(child) for child in path.read_text().split()]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    save_tiny_checkpoint(folder / "bert", "bert", dropout=0.0)
    data.sentiment(folder / "data")
    settings = ("--steps", "2", "--max-length", "40", "--precision", "fp32")
    flags = ("--model", folder / "bert", "--data", folder / "data", "--out", folder / "run")
    assert run("classify", *flags, *settings).code == 0
    return folder


@pytest.mark.slow
def test_a_warm_start_in_two_processes(workdir: Path):
    """Each process reads the model to start from, with its head."""
    start = ("--model", workdir / "bert", "--init-from", workdir / "run")
    settings = ("--steps", "1", "--max-length", "40", "--out", workdir / "next")
    outcomes = both_forks("classify", *start, "--data", workdir / "data", *settings)
    assert [code for code, *_ in outcomes] == [0, 0], outcomes
    assert f"encoder and head from {workdir / 'run'}" in outcomes[0][2]


def test_predict_divides_the_texts(workdir: Path):
    """The same lines as from one process, also when one process has a text more than the other."""
    table = workdir / "texts.jsonl"
    texts = ["What a film.", "Dull and slow.", "What a film.", "word " * 60, "It rained."]
    table.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    expected = run("predict", workdir / "run", "--file", table)
    flags = ("--file", table, "--out", workdir / "out")
    first, second = both_forks("predict", workdir / "run", *flags)
    assert (first[:2], second) == ((0, ""), (0, "", ""))
    assert "1 text cut" in first[2] and "1 text cut" in expected.err
    rows, others = (
        [json.loads(line) for line in text.splitlines()]
        for text in ((workdir / "out").read_text(), expected.out)
    )
    assert [(row["id"], row["label"]) for row in rows] == [(r["id"], r["label"]) for r in others]
    for row, other in zip(rows, others, strict=True):
        assert row["scores"] == pytest.approx(other["scores"], abs=1e-5)


def test_other_commands_run_once(workdir: Path):
    first, second = both_forks("check", workdir / "data")
    assert (first[0], second) == (0, (0, "", ""))
    assert first[1] == run("check", workdir / "data").out


def test_errors_are_printed_once():
    first, second = both_forks("chek", "x")
    assert (first[0], second) == (2, (2, "", ""))
    assert first[2].startswith("error: unknown command 'chek'")


def test_a_stream_cannot_be_divided(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    for name in LAUNCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    run("predict", workdir / "run", "--file", "-").refused("processes cannot share a stream")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "again"),
    [
        ("torch.distributed.run --standalone --nproc-per-node 2", "torchrun --nproc_per_node 2 "),
        ("accelerate.commands.launch --cpu --num_processes 2", "python "),
    ],
    ids=["torchrun", "accelerate"],
)
def test_the_launchers(launcher: str, again: str, workdir: Path, tmp_path: Path) -> None:
    """They start as many processes as the documentation says, and train the weights of one."""
    settings = ("--steps", "2", "--max-length", "40", "--precision", "fp32")
    flags = ("--model", workdir / "bert", "--data", workdir / "data", "--out", tmp_path / "run")
    words = ["-m", *launcher.split(), "-m", "finetune", "classify", *flags, *settings]
    command = [sys.executable, *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Everything is in") == 1
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["command"].startswith(f"{again}-m finetune classify ")
    expected, found = (
        load_file(run / "last" / "model.safetensors") for run in (workdir / "run", tmp_path / "run")
    )
    for name, value in expected.items():
        assert (found[name] - value).abs().max() < 2e-4, name


@pytest.mark.slow
def test_machines_with_other_data_or_another_run_folder_are_refused(workdir: Path, tmp_path: Path):
    """Each process in a folder of its own, as on machines that share no files."""
    folders = tmp_path / "first", tmp_path / "second"
    for folder, size in zip(folders, (12, 12), strict=True):
        data.sentiment(folder / "data", (size, 4, 4))
    settings = ("--steps", "2", "--max-length", "40", "--precision", "fp32")
    flags = ("--model", workdir / "bert", "--data", "data", "--out", "run")
    outcomes = both("classify", *flags, *settings, folders=folders)
    assert [code for code, _, _ in outcomes] == [2, 2]
    assert all("run: process 1 does not see the files" in errors for _, _, errors in outcomes)
    data.sentiment(folders[1] / "data", (20, 4, 4))
    outcomes = both("classify", *flags[:-1], "other", *settings, folders=folders)
    assert [code for code, _, _ in outcomes] == [2, 2]
    assert all("process 1 has another fingerprint of the data" in e for _, _, e in outcomes)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ACCELERATE_USE_FSDP", "true", "FSDP .* as in DDP; to save memory lower --max-tokens"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "DeepSpeed .* lower --max-tokens"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "--batch-size counts examples"),
        ("ACCELERATE_DYNAMO_BACKEND", "inductor", "the compiler"),
        ("ACCELERATE_MIXED_PRECISION", "bf16", "not the precision of the run, fp32: set --prec"),
    ],
)
def test_settings_of_accelerate_without_effect_are_refused(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
):
    config = TrainConfig(precision="fp32")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=message):
        make_accelerator(config)
    off = {"ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_MIXED_PRECISION": "no"}
    monkeypatch.setenv(variable, off.get(variable, "1" if value.isdecimal() else "false"))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    make_accelerator(config)


def test_the_device_that_accelerate_names_is_the_current_one(monkeypatch: pytest.MonkeyPatch):
    """Recordings of passes would be on another device, and compute nothing."""
    current, gpu = list[torch.device](), torch.device("cuda", 1)
    named = SimpleNamespace(device=gpu)
    monkeypatch.setattr("finetune.runtime.launch.Accelerator", lambda **options: named)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    make_accelerator()
    assert current == [gpu]


def test_predict_refuses_another_mixed_precision(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    run("predict", workdir / "run", "--text", "a").refused("not the precision of the run, fp32")


@pytest.mark.slow
def test_two_machines_end_with_the_process_that_is_killed_and_resume(workdir: Path, tmp_path: Path):
    """Two launchers that meet over TCP; the weights are those of a launch that was not killed."""

    def launch(out: str, port: int, *more: str) -> list[subprocess.Popen]:
        train = ["classify", "--model", workdir / "bert", "--data", workdir / "data", "--out"]
        train += [tmp_path / out, "--max-length", "40", "--precision", "fp32", "--batch-size", "8"]
        train += ["--steps", "600", "--eval-every", "300", "--save-every", "20", *more]
        nodes = f"--nnodes=2 --nproc-per-node=1 --master-addr=127.0.0.1 --master-port={port}"
        return [
            torchrun(f"{nodes} --node-rank={rank}", train, stderr=subprocess.PIPE, text=True)
            for rank in range(2)
        ]

    port = 20_000 + (os.getpid() + 7_000) % 20_000
    outputs = [machine.communicate(timeout=300) for machine in launch("whole", port)]
    assert (tmp_path / "whole" / "metrics.json").exists(), outputs
    machines = launch("killed", port + 1)
    wait_for_checkpoint(tmp_path / "killed", *machines)
    os.kill(children_of(machines[1])[0], signal.SIGKILL)  # the process that does not write
    outputs = [machine.communicate(timeout=60) for machine in machines]
    assert all(machine.returncode for machine in machines)
    assert "error: another process of the launch ended" in outputs[0][1], outputs[0]
    assert not (tmp_path / "killed" / "metrics.json").exists()
    outputs = [each.communicate(timeout=300) for each in launch("killed", port + 2, "--resume")]
    assert "continuing from step" in outputs[0][1], outputs
    for name in ("last/model.safetensors", "last/optimizer.safetensors", "metrics.json"):
        whole, killed = ((tmp_path / out / name).read_bytes() for out in ("whole", "killed"))
        assert whole == killed, name


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the signal")
def test_processes_end_with_a_checkpoint_when_their_launcher_is_killed(
    workdir: Path, tmp_path: Path
):
    train = ["classify", "--model", workdir / "bert", "--data", workdir / "data", "--out"]
    train += [tmp_path / "run", "--steps", "100000", "--max-length", "40", "--precision", "fp32"]
    train += ["--eval-every", "100000", "--save-every", "20"]
    with (tmp_path / "messages").open("w") as messages:
        port = 20_000 + (os.getpid() + 9_000) % 20_000
        launcher = torchrun(f"--nproc-per-node=2 --master-port={port}", train, stderr=messages)
    state = wait_for_checkpoint(tmp_path / "run", launcher)
    children, deadline = children_of(launcher), time.monotonic() + 60
    launcher.kill()
    launcher.wait()
    while (left := [pid for pid in children if Path(f"/proc/{pid}").exists()]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    said = (tmp_path / "messages").read_text()
    assert len(children) == 2 and not left, said
    step = json.loads(state.read_text())["step"]
    assert f"stopped at step {step} of 100000" in said
