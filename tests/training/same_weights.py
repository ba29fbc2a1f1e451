"""What runs leave: the same bytes, or weights that differ by rounding alone."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

import finetune
from finetune.config.tasks import TrainConfig
from tests import fixtures as fx
from tests.command import in_two_processes
from tests.forks import in_two_forks

FILES = (
    "last/model.safetensors",
    "last/optimizer.safetensors",
    "best/model.safetensors",
    "metrics.json",
    "predictions.test.jsonl",
)
"""What differs if two runs differ anywhere."""


def train_in_two_processes(*words: str | Path, fresh: bool = True) -> str:
    """Carry out a command as an accelerate launcher does; return what the first process says."""
    start = in_two_processes if fresh else in_two_forks
    processes = start([sys.executable, "-m", "finetune", *map(str, words)])
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return outputs[0][1]


def same_files(one: Path, other: Path) -> None:
    """Two runs have ended with the same bytes."""
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def same_weights(
    one: Path, other: Path, atol: float = 2e-4, free: tuple[str, ...] = ("key.bias",)
) -> None:
    """Two folders have files of the same names and of weights that differ by rounding alone.

    Weights that are ``free`` have no gradient but rounding, which AdamW blows up.
    """
    files = [sorted(path.name for path in each.glob("*.safetensors")) for each in (one, other)]
    assert files[0] == files[1] != []
    for file in files[0]:
        if file == "optimizer.safetensors":
            continue
        first, second = load_file(one / file), load_file(other / file)
        for name, value in first.items():
            if not name.endswith(free):
                torch.testing.assert_close(second[name], value, rtol=0, atol=atol, msg=name)


def weights_after(config: TrainConfig) -> dict[str, torch.Tensor]:
    """Train in double precision (differences are then rounding alone) and return the weights."""
    task, dataset = fx.load(config)
    torch.manual_seed(7)
    head = task.model()
    finetune.fit(task, dataset, config, model=head.double())
    return {name: value.detach().clone() for name, value in head.named_parameters()}
