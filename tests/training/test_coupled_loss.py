"""Losses that couple all sequences of an optimizer batch: one gradient, however it is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from finetune.config.tasks import TrainConfig
from finetune.models.dropout import fast_dropout
from finetune.training.data import training_data
from finetune.training.step import begin_step
from tests import laboratory as lab

OBJECTIVES = ("mirror", "simcse", "prompt", "ranking", "softmax", "cosine")


SETTINGS = {"lr": 1e-2, "epochs": 3.0, "steps": None}


def gradients(config: TrainConfig) -> tuple[dict, torch.Tensor]:
    """The gradients that one step of SGD applies, in float64, and the loss."""
    task, dataset = lab.load(config)
    torch.manual_seed(3)
    head = task.head().double()
    accelerator = Accelerator(cpu=True)
    data = training_data(task, dataset, replace(config, validation="none"), accelerator, print)
    optimizer = torch.optim.SGD(head.parameters(), lr=1.0)
    for group in optimizer.param_groups:
        group["peak"] = 1.0
    before = {name: value.detach().clone() for name, value in head.named_parameters()}
    batch = data.batch(0)
    with fast_dropout(head):
        step = begin_step(task, head, optimizer, replace(config, clip=0.0), accelerator, "fp32")
        loss, _ = step(batch.micro_batches, weight=1.0, lr_factor=1.0)
    found = {name: before[name] - value.detach() for name, value in head.named_parameters()}
    return found, loss


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gradient_is_that_of_one_large_batch(objective: str) -> None:
    config = lab.config(objective, **SETTINGS, max_tokens=10_000)
    expected, loss = gradients(config)
    assert float(loss) > 0 and max(float(g.abs().max()) for g in expected.values()) > 1e-3
    for max_tokens in (40, 90):
        found, same = gradients(replace(config, max_tokens=max_tokens))
        torch.testing.assert_close(same, loss, rtol=0, atol=1e-12)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "mpnet"])
def test_dropout_of_torch_is_replayed(family: str) -> None:
    """Without a seed torch's generator draws masks: both passes must draw the same.

    Of two equal passes over two micro-batches, the second finds the generator as the first did.
    """
    config = lab.config("simcse", **SETTINGS, model=lab.checkpoint(family), max_tokens=40)
    torch.manual_seed(1)
    task, dataset = lab.load(config)
    head = task.head().double()
    data = training_data(
        task, dataset, replace(config, validation="none"), Accelerator(cpu=True), print
    )
    batches = [replace(batch, seed=None) for batch in data.batch(0).micro_batches]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.0)
    optimizer.param_groups[0]["peak"] = 0.0
    step = begin_step(task, head, optimizer, config, Accelerator(cpu=True), "fp32")
    seen: list[torch.Tensor] = []
    forward = type(head).forward

    def recorded(self: Any, batch: Any) -> Any:
        output = forward(self, batch)
        seen.append(output.vectors.detach().clone())
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(head), "forward", recorded)
        step(batches, weight=1.0, lr_factor=1.0)
    first, second = seen[: len(batches)], seen[len(batches) :]
    assert len(second) == len(batches) > 1
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first[0], forward(head, batches[0]).vectors)
