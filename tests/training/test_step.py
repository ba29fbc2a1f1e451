"""One optimizer step; tests/gpu uses the same tasks and batches."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from finetune.config.tasks import ClassifyConfig, TagConfig, TrainConfig
from finetune.data import Dataset
from finetune.preprocessing.batching import pack
from finetune.runtime.device import loss_scaler
from finetune.tasks import load_task
from finetune.training.optimizer import make_optimizer
from finetune.training.step import begin_step
from finetune.types import Batch
from tests import laboratory as lab

TINY: dict[str, Any] = {"dropout": 0.0, "max_position_embeddings": 512}


def config_of(kind: str, family: str = "bert", **changes: Any) -> TrainConfig:
    """A configuration to classify (``single``) or to tag (``tag``)."""
    config = TagConfig if kind == "tag" else ClassifyConfig
    model = str(lab.checkpoint(family, **TINY))
    data = lab.data("tag") if kind == "tag" else lab.data("sentiment", (60, 12, 12))
    common = {"model": model, "data": str(data), "precision": "fp32", "batch_size": 7, "lr": 1e-2}
    return config(**{**common, **changes})


def task_of(config: TrainConfig) -> tuple[Any, Dataset]:
    return load_task(config, "tag" if isinstance(config, TagConfig) else "classify")


def batches_of(
    task: Any, dataset: Dataset, sizes: tuple[int, ...] = (7, 7, 3, 7, 1)
) -> list[Batch]:
    """Batches of the first training examples."""
    encoded, batches, start = task.encode(dataset.splits["train"]), [], 0
    for size in sizes:
        members = [e for windows in encoded[start : start + size] for e in windows]
        batches.append(pack(members, task.collate(members)))
        start += size
    return batches


def test_a_step_puts_every_module_in_training_mode() -> None:
    config = config_of("single")
    task, dataset = task_of(config)
    head = task.head()
    step = begin_step(
        task, head, make_optimizer(head, config), config, Accelerator(cpu=True), "fp32"
    )
    assert all(module.training for module in head.modules()), "from_pretrained leaves eval mode"
    head.eval()  # as prediction leaves it
    step(batches_of(task, dataset, (7,)), weight=1.0, lr_factor=1.0)
    assert all(module.training for module in head.modules())


def test_loss_scaling_changes_no_gradient_and_skips_steps_that_overflow() -> None:
    config = config_of("single")
    task, dataset = task_of(config)
    batches, weights, norms = batches_of(task, dataset), {}, {}
    for precision in ("fp32", "fp16"):
        torch.manual_seed(0)
        head = task.head()
        step = begin_step(
            task, head, make_optimizer(head, config), config, Accelerator(cpu=True), "fp32"
        )
        step.scaler = loss_scaler(precision, torch.device("cpu"))
        norms[precision] = [step([b], weight=1.0, lr_factor=0.1)[1] for b in batches]
        weights[precision] = [w.detach().clone() for w in head.parameters()]
    assert norms["fp16"] == norms["fp32"], "powers of two round nothing"
    assert all(map(torch.equal, weights["fp16"], weights["fp32"]))

    scaler = step.scaler
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**127})
    _, norm = step(batches[:1], weight=1.0, lr_factor=0.1)
    assert norm == 0 and scaler.get_scale() == 2.0**126
    assert all(map(torch.equal, weights["fp16"], head.parameters())), "the step is skipped"
    scaler.load_state_dict({**scaler.state_dict(), "scale": 0.25})
    next(iter(head.parameters())).data[:] = float("inf")
    assert not step(batches[:1], weight=1.0, lr_factor=0.1)[1].isfinite(), "no scale helps"
