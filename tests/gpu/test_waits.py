"""Plain steps of packed models wait for nothing on a GPU, and prediction only for the answers that
it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.training.optimizer import make_optimizer
from finetune.training.step import Step
from tests import small_data as data
from tests.tiny import save_tiny_checkpoint
from tests.training.test_step import TINY, batches_of, config_of, task_of

pytestmark = pytest.mark.gpu

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("single", "bert", {}),
    ("single", "deberta-v2", {}),
    ("tag", "roberta", {}),
    ("tag", "bert", {"label_subwords": "all"}),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("waits")
    for family in ("bert", "roberta", "deberta-v2"):
        save_tiny_checkpoint(folder / family, family, **TINY)
    data.sentiment(folder / "single", (60, 12, 12))
    data.entities(folder / "tag")
    return folder


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
def test_a_plain_step_waits_for_nothing(
    kind: str, family: str, changes: dict[str, Any], place: Path
) -> None:
    task, dataset = task_of(config_of(kind, place, family, **changes))
    accelerator = Accelerator()
    head = task.head().to(accelerator.device)
    optimizer = make_optimizer(head, task.record.config)
    step = Step(task, head, optimizer, task.record.config, accelerator, "bf16")
    batches = batches_of(task, dataset)
    for batch in batches:  # kernels are loaded, which may wait
        step([batch], weight=1.0, lr_factor=1.0)
    with no_waits():
        results = [step([batch], weight=1.0, lr_factor=1.0) for batch in batches]
    assert all(float(loss) > 0 and float(norm) > 0 for loss, norm in results)
