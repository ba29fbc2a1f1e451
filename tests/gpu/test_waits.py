"""Plain steps of packed models wait for nothing on a GPU, and prediction only for the answers that
it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.training.optimizer import make_optimizer
from finetune.training.step import begin_step
from tests.training.test_step import batches_of, config_of, task_of

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


@pytest.mark.parametrize(("kind", "family", "changes"), CASES)
def test_a_plain_step_waits_for_nothing(kind: str, family: str, changes: dict[str, Any]) -> None:
    task, dataset = task_of(config_of(kind, family, **changes))
    accelerator = Accelerator()
    head = task.head().to(accelerator.device)
    optimizer = make_optimizer(head, task.record.config)
    step = begin_step(task, head, optimizer, task.record.config, accelerator, "bf16")
    batches = batches_of(task, dataset)
    for batch in batches:  # kernels are loaded, which may wait
        step([batch], weight=1.0, lr_factor=1.0)
    with no_waits():
        results = [step([batch], weight=1.0, lr_factor=1.0) for batch in batches]
    assert all(float(loss) > 0 and float(norm) > 0 for loss, norm in results)
