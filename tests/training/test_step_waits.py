"""No step of any task and objective waits for a GPU; the meta device stands for one.

Families that cannot run packed do wait: transformers reads the mask of padded rows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.models.dropout import fast_dropout
from finetune.training.data import training_data
from finetune.training.step import begin_step
from tests import laboratory as lab
from tests.operators import DEVICE, finding_waits
from tests.small_data import write_splits
from tests.tasks.cases import CASES, SLOW

SENTENCES = ("mirror", "simcse", "prompt", "cosine", "cmlm", "softmax", "ranking")
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{each: (each, {}) for each in (*SENTENCES, "spans", "nsp")},
    "few-shot": ("classify", {"few_shot": True}),
    "bilstm": ("classify", {"bilstm": True}),
    "class weights": ("classify", {"class_weights": "auto"}),
    "focal": ("classify", {"loss": "focal"}),
    "logit-adjusted": ("classify", {"loss": "logit-adjusted"}),
    "several labels of spans": ("ner", {"multi_label": True}),
    "deberta": ("classify", {"model": "deberta-v2"}),
    "pretrain on lines": ("pretrain", {}),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in (*CASES, *OTHERS)],
)
def test_a_step_waits_for_nothing(name: str, tmp_path: Path) -> None:
    if name in CASES:
        kind, settings = CASES[name].task, CASES[name].settings
        rows = write_splits(tmp_path / "data", train=CASES[name].rows, validation=CASES[name].rows)
        settings = {**settings, "data": rows}
    else:
        kind, settings = OTHERS[name]
    settings = {"max_length": 48, **settings}
    family = settings.pop("model", "bert")
    config = lab.config(kind, **settings, model=lab.checkpoint(family, num_hidden_layers=2))
    task, dataset = lab.load(config)
    plain = replace(config, max_tokens=100)
    batches = training_data(task, dataset, plain, Accelerator(cpu=True), print).batch(0)
    head = task.head().to(DEVICE)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, foreach=True)
    for group in optimizer.param_groups:
        group["peak"] = 0.1
    accelerator: Any = SimpleNamespace(
        device=DEVICE, num_processes=1, process_index=0, is_main_process=True
    )
    step = begin_step(task, head, optimizer, config, accelerator, "fp32")
    with fast_dropout(head), finding_waits() as waits:
        step(batches.micro_batches, weight=1.0, lr_factor=1.0)
    assert not waits, "\n".join(waits)
