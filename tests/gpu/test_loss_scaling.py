"""Training in float16 with loss scaling on a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from finetune.runtime.signals import Interrupted
from finetune.tasks import load_task
from finetune.training.trainer import fit
from tests.training.stopping import interrupt_in_step
from tests.training.test_step import config_of

pytestmark = pytest.mark.gpu


def test_float16_learns_and_resumes_bit_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"precision": "fp16", "steps": 40, "eval_every": 10, "lr": 2e-3}
    whole = config_of("single", **settings, out=str(tmp_path / "whole"))
    fit(*load_task(whole, "classify"), whole)
    losses = [
        row["loss"]
        for row in map(json.loads, (tmp_path / "whole" / "log.jsonl").open())
        if "loss" in row
    ]
    assert losses[-1] < losses[0]
    parts = replace(whole, out=str(tmp_path / "parts"))
    interrupt_in_step(17, monkeypatch)
    with pytest.raises(Interrupted):
        fit(*load_task(parts, "classify"), parts)
    monkeypatch.undo()
    parts = replace(parts, resume=True)
    fit(*load_task(parts, "classify"), parts)
    for name in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
        first, second = (
            (tmp_path / run / "last" / name).read_bytes() for run in ("whole", "parts")
        )
        assert first == second, name
    state = json.loads((tmp_path / "whole" / "last" / "trainer_state.json").read_text())
    assert state["loss_scale"]["scale"] >= 1
