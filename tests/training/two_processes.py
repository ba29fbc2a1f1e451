"""Training in two processes, and the weights that it leaves."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.command import in_two_processes


def train_in_two_processes(*words: str | Path) -> None:
    """Carry out a command as an accelerate launcher does; both processes end well."""
    processes = in_two_processes([sys.executable, "-m", "finetune", *map(str, words)])
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs


def same_weights(one: Path, other: Path, atol: float = 2e-4) -> None:
    """Two folders have files of the same names and of weights that differ by rounding alone."""
    files = [sorted(path.name for path in each.glob("*.safetensors")) for each in (one, other)]
    assert files[0] == files[1] != []
    for file in files[0]:
        if file == "optimizer.safetensors":
            continue
        first, second = load_file(one / file), load_file(other / file)
        for name, value in first.items():
            if not name.endswith("key.bias"):  # no gradient but rounding, which AdamW blows up
                torch.testing.assert_close(second[name], value, rtol=0, atol=atol, msg=name)
