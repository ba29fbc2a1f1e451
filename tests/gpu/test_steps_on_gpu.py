"""Steps on a GPU: packed models wait for nothing, and float16 trains with loss scaling."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.models.master_weights import MasterWeights
from finetune.models.recording import Recording
from finetune.training.optimizer import adamw, parameter_groups
from finetune.training.step import Step
from tests import fixtures as fx
from tests.small_data import read_jsonl
from tests.training.stopping import interrupted
from tests.training.test_step import batches_of, config_of

pytestmark = pytest.mark.gpu

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("single", "bert", {}),
    ("single", "deberta-v2", {}),
    ("tag", "roberta", {}),
    ("tag", "bert", {"label_subwords": "all"}),
]


@contextmanager
def no_waits() -> Iterator[None]:
    """Within, to wait for the device is an error."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize(("setup", "family", "changes"), CASES)
def test_a_plain_step_waits_for_nothing(setup: str, family: str, changes: dict[str, Any]) -> None:
    task, dataset = fx.load(config_of(setup, family, **changes))
    accelerator = Accelerator()
    head = task.model().to(accelerator.device)
    config = task.state.config
    masters = MasterWeights(head, parameter_groups(head, config), "bf16")
    step = Step(task, head, masters, adamw(masters.groups, config), config, accelerator)
    batches = batches_of(task, dataset)
    for batch in batches:  # kernels are loaded, which may wait
        step([batch], weight=1.0, lr_factor=1.0)
    with no_waits():
        results = [step([batch], weight=1.0, lr_factor=1.0) for batch in batches]
    assert all(float(loss) > 0 and float(norm) > 0 for loss, norm in results)


def test_float16_learns_and_resumes_bit_equal(tmp_path: Path) -> None:
    settings = {"precision": "fp16", "steps": 40, "eval_every": 10, "lr": 2e-3}
    whole = config_of("single", **settings, out=str(tmp_path / "whole"))
    fx.fit(whole)
    losses = [row["loss"] for row in read_jsonl(tmp_path / "whole/log.jsonl") if "loss" in row]
    assert statistics.mean(losses[-10:]) < statistics.mean(losses[:10])
    parts = replace(whole, out=str(tmp_path / "parts"))
    with interrupted(17):
        fx.fit(parts)
    fx.fit(replace(parts, resume=True))
    for name in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
        first, second = (
            (tmp_path / run / "last" / name).read_bytes() for run in ("whole", "parts")
        )
        assert first == second, name
    state = json.loads((tmp_path / "whole" / "last" / "trainer_state.json").read_text())
    assert state["loss_scale"]["scale"] >= 1


@pytest.mark.parametrize("fault", ["waits for the device", "has no memory"])
def test_after_a_failed_recording_steps_run_plainly(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a later run in the same process is replayed."""
    settings = {"precision": "bf16", "steps": 120, "max_tokens": 200}
    with monkeypatch.context() as patch:
        forward = Recording.forward

        def failing(self: Recording) -> list[torch.Tensor]:
            states = forward(self)
            if torch.cuda.is_current_stream_capturing() and fault == "has no memory":
                torch.empty(2**50, device="cuda")
            elif torch.cuda.is_current_stream_capturing():
                states[0].sum().item()
            return states

        patch.setattr(Recording, "forward", failing)
        result = fx.fit(fx.config("classify", **settings, out=str(tmp_path / "first")))
    assert result.cuda_graphs.startswith("not used: CUDA")
    torch.cuda.empty_cache()
    pools = {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}
    assert pools == {(0, 0)}, "the pool of the recordings is free"
    result = fx.fit(fx.config("classify", **settings, out=str(tmp_path / "second")))
    assert result.cuda_graphs.startswith("used for")


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_runs_from_graphs_equal_plain_runs(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within rounding, as gradients of attention add up in any order; resumed runs, too."""
    losses: dict[str, list[list[float]]] = {"1": [], "0": []}
    for setting, seed in product(losses, (1, 2, 3)):
        monkeypatch.setenv("FINETUNE_CUDA_GRAPHS", setting)
        out = str(tmp_path / f"{setting}-{seed}")
        settings = {"precision": "bf16", "steps": 300, "eval_every": 100, "max_tokens": 200}
        config = fx.config(task, **settings, lr=1e-3, seed=seed, out=out)
        if seed == 3:
            with interrupted(150):
                fx.fit(config)
        result = fx.fit(replace(config, resume=seed == 3))
        assert result.cuda_graphs.startswith("used for" if setting == "1" else "not used")
        rows = [row for row in read_jsonl(Path(out) / "log.jsonl") if "loss" in row]
        losses[setting].append([row["loss"] for row in rows])
    for replayed, plain in zip(*losses.values(), strict=True):
        assert replayed[:5] == pytest.approx(plain[:5], rel=0.02)
    last = [statistics.mean(chain(*(run[-20:] for run in runs))) for runs in losses.values()]
    assert last[0] == pytest.approx(last[1], rel=0.2)
