"""Training in float16 with loss scaling on a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests import laboratory as lab
from tests.small_data import read_jsonl
from tests.training.stopping import interrupted
from tests.training.test_step import config_of

pytestmark = pytest.mark.gpu


def test_float16_learns_and_resumes_bit_equal(tmp_path: Path) -> None:
    settings = {"precision": "fp16", "steps": 40, "eval_every": 10, "lr": 2e-3}
    whole = config_of("single", **settings, out=str(tmp_path / "whole"))
    lab.fit(whole)
    losses = [row["loss"] for row in read_jsonl(tmp_path / "whole/log.jsonl") if "loss" in row]
    assert losses[-1] < losses[0]
    parts = replace(whole, out=str(tmp_path / "parts"))
    with interrupted(17):
        lab.fit(parts)
    lab.fit(replace(parts, resume=True))
    for name in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
        first, second = (
            (tmp_path / run / "last" / name).read_bytes() for run in ("whole", "parts")
        )
        assert first == second, name
    state = json.loads((tmp_path / "whole" / "last" / "trainer_state.json").read_text())
    assert state["loss_scale"]["scale"] >= 1
