"""Weights in half precision that are kept between predictions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from finetune.models.half_precision import keep_cast_weights


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 8)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 5, bias=False))
        self.layers[2].weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.layers(self.embedding(ids))
        return output


def outputs(model: nn.Module, precision: torch.dtype | None) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", precision, enabled=precision is not None):
        found: Tensor = model(torch.arange(5))
    return found


@pytest.mark.parametrize("used", [torch.bfloat16, torch.float16, None])
def test_results_are_those_of_autocast(used: torch.dtype | None) -> None:
    plain = Model()
    model = copy.deepcopy(plain)
    keep_cast_weights(model, "bf16")
    for _ in range(3):
        assert torch.equal(outputs(model, used), outputs(plain, used))
        for each in (plain, model):  # as an optimizer does, and as loading does
            with torch.no_grad():
                each.layers[0].weight.mul_(2)  # type: ignore[union-attr,operator]
                each.layers[0].bias.add_(1)  # type: ignore[union-attr,operator]
    weight = torch.ones(8, 8)
    for each in (plain, model):
        each.layers[0].weight = nn.Parameter(weight.clone())
    assert torch.equal(outputs(model, used), outputs(plain, used))
    for number in range(3):  # other data of the same parameter, where the last data may have been
        for each in (plain, model):
            each.layers[0].weight.data = torch.full((8, 8), number / 8)  # type: ignore[union-attr]
        assert torch.equal(outputs(model, used), outputs(plain, used))
    assert all(value.dtype == torch.float32 for value in model.state_dict().values())


def test_weights_are_cast_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    keep_cast_weights(model, "bf16")
    outputs(model, torch.bfloat16)
    casts = []
    to = Tensor.to
    monkeypatch.setattr(Tensor, "to", lambda tensor, *args: casts.append(args) or to(tensor, *args))
    outputs(model, torch.bfloat16)
    assert not casts


def test_gradients_are_those_of_autocast() -> None:
    plain = Model()
    model = copy.deepcopy(plain)
    keep_cast_weights(model, "bf16")
    outputs(model, torch.bfloat16)
    for each in (plain, model):
        with torch.autocast("cpu", torch.bfloat16):
            each(torch.arange(5)).float().square().sum().backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    # a copy of the model has its own weights
    again = copy.deepcopy(model)
    with torch.no_grad():
        again.layers[0].weight.zero_()  # type: ignore[union-attr,operator]
    assert not torch.equal(outputs(again, torch.bfloat16), outputs(model, torch.bfloat16))
    assert torch.equal(outputs(model, torch.bfloat16), outputs(plain, torch.bfloat16))
