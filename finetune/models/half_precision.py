"""Weights in half precision that are kept between predictions.

Autocast casts every weight again in each of its contexts. For a single text that costs more than
the products of the text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from finetune.runtime.precision import TYPES


class _CastOnce:
    """The forward pass of a linear layer under autocast, with weights that were cast before.

    Results are those of autocast. The layer keeps its weights; if they change, they are cast again.
    """

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        self.layer, self.dtype = layer, dtype
        self.cast: tuple[Any, Tensor, Tensor | None] | None = None

    def __call__(self, vectors: Tensor) -> Tensor:
        layer, device = self.layer, vectors.device.type
        if torch.is_grad_enabled() or not (
            torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == self.dtype
        ):
            return nn.Linear.forward(layer, vectors)
        weight, bias = layer.weight, layer.bias
        versions = [(id(each), each._version) for each in (weight, bias) if each is not None]
        if self.cast is None or self.cast[0] != versions:
            no_bias = None if bias is None else bias.to(self.dtype)
            self.cast = versions, weight.to(self.dtype), no_bias
        return functional.linear(vectors, *self.cast[1:])


def keep_cast_weights(model: nn.Module, precision: str) -> None:
    """Make linear layers keep their weights in the half precision of predictions, if it is one.

    The model takes up to half as much memory again. Training it works as before.
    """
    if TYPES[precision] == torch.float32:
        return
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.forward = _CastOnce(layer, TYPES[precision])  # type: ignore[assignment,method-assign]
