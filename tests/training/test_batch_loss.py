"""Losses that couple all sequences of an optimizer batch: one gradient, however it is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.config.tasks import TrainConfig
from finetune.models.dropout import fast_dropout
from finetune.models.master_weights import MasterWeights
from finetune.training.data import TrainingData
from finetune.training.step import Step
from finetune.types import Batch
from tests import fixtures as fx

OBJECTIVES = ("mirror", "simcse", "prompt", "ranking", "softmax", "cosine")


SETTINGS = {"lr": 1e-2, "epochs": 3.0, "steps": None}


def prepared(config: TrainConfig) -> tuple[Any, Any, list[Batch]]:
    """A task, its head in float64, and the micro-batches of the first step."""
    task, dataset = fx.load(config)
    head, accelerator = task.model().double(), Accelerator(cpu=True)
    data = TrainingData(task, dataset, replace(config, validation="none"), accelerator, print)
    return task, head, data.batch(0).micro_batches


def first_step(config: TrainConfig, task: Any, head: Any, batches: list[Batch], lr: float) -> Any:
    """The loss of a step of SGD."""
    names, params = zip(*head.named_parameters(), strict=True)
    masters = MasterWeights(head, [{"names": names, "params": params, "peak": lr}], "fp32")
    optimizer = torch.optim.SGD(masters.groups, lr=lr)
    step = Step(task, head, masters, optimizer, config, Accelerator(cpu=True))
    return step(batches, weight=1.0, lr_factor=1.0)[0]


def gradients(config: TrainConfig) -> tuple[dict, torch.Tensor]:
    """The gradients that one step of SGD applies, and the loss."""
    torch.manual_seed(3)
    task, head, batches = prepared(config)
    before = {name: value.detach().clone() for name, value in head.named_parameters()}
    with fast_dropout(head):
        loss = first_step(replace(config, clip=0.0), task, head, batches, 1.0)
    found = {name: before[name] - value.detach() for name, value in head.named_parameters()}
    return found, loss


@pytest.mark.parametrize("objective", [*OBJECTIVES, "cmlm"])
def test_the_gradient_is_that_of_one_large_batch(objective: str) -> None:
    model = fx.checkpoint(dropout=0.0)
    config = fx.config(objective, **SETTINGS, model=model, max_tokens=10_000)
    expected, loss = gradients(config)
    assert float(loss) > 0 and max(float(g.abs().max()) for g in expected.values()) > 1e-3
    for max_tokens in (40, 90):
        found, same = gradients(replace(config, max_tokens=max_tokens))
        torch.testing.assert_close(same, loss, rtol=0, atol=1e-12)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "squeezebert"])
def test_dropout_is_the_same_in_both_passes(family: str) -> None:
    config = fx.config("simcse", **SETTINGS, model=fx.checkpoint(family), max_tokens=40)
    torch.manual_seed(1)
    task, head, batches = prepared(config)
    seen: list[torch.Tensor] = []
    forward = type(head).forward

    def recorded(self: Any, batch: Any) -> Any:
        output = forward(self, batch)
        seen.append(output.vectors.detach().clone())
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(head), "forward", recorded)
        first_step(config, task, head, batches, 0.0)
    first, second = seen[: len(batches)], seen[len(batches) :]
    assert len(second) == len(batches) > 1
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first[0], forward(head, batches[0]).vectors)
