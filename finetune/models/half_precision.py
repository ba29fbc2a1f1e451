"""Copies of weights in half precision, which linear layers multiply with in place of autocast's.

Autocast casts every weight again in each of its contexts. For a single text that costs more than
the products of the text. In a training step on a GPU it is a third of the operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from finetune.runtime.device import TYPES


def _state_of(weights: Iterable[Tensor]) -> list[tuple[int, int, int]]:
    """Return what changes with weights: their identity, the number of changes, and their data.

    Code that changes numbers in place through ``weight.data`` hides it from torch, and from this.
    """
    return [(id(each), each._version, each.data_ptr()) for each in weights]


class _CastOnce:
    """The forward pass of a linear layer under autocast, with weights that were cast before.

    Results equal the results of autocast. If the layer's weights change, they are cast again.
    """

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        self.layer, self.dtype = layer, dtype
        self.cast: tuple[Any, Tensor, Tensor | None] | None = None
        self.seen: list[tuple[Tensor, Tensor]] = []
        """The weights that were cast, and their data: no others get their addresses."""

    def __call__(self, vectors: Tensor) -> Tensor:
        layer, device = self.layer, vectors.device.type
        if torch.is_grad_enabled() or not (
            torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == self.dtype
        ):
            return nn.Linear.forward(layer, vectors)
        weight, bias = layer.weight, layer.bias
        weights = (weight,) if bias is None else (weight, bias)
        state = _state_of(weights)
        if self.cast is None or self.cast[0] != state:
            self.seen = [(each, each.detach()) for each in weights]
            self.cast = state, weight.to(self.dtype), None if bias is None else bias.to(self.dtype)
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


class WeightCopies:
    """Context of a training step in which linear layers multiply with copies of their weights.

    On entry one operator copies all trained weights to half precision. The backward pass leaves
    gradients at the copies, and ``add_gradients`` adds them to the gradients of the weights. All
    numbers equal the numbers of autocast to the bit. Weights in single precision stay in place,
    for the optimizer and for saving.

    Autocast still casts a weight that other operations read too, such as an output matrix that is
    the table of embeddings. In fp32 nothing is copied.
    """

    def __init__(
        self, model: nn.Module, precision: str, others: WeightCopies | None = None
    ) -> None:
        """Make the copies; weights that ``others`` copies too share their memory with it."""
        self.dtype = TYPES[precision]
        self.layers: list[tuple[nn.Linear, _HalfPrecision]] = []
        self.trained: list[tuple[nn.Parameter, Tensor]] = []
        self.frozen: list[tuple[nn.Parameter, Tensor]] = []
        self.copies: dict[int, Tensor] = {} if others is None else others.copies
        self.buffers: dict[int, Tensor] = {} if others is None else others.buffers
        self.frozen_state: list[tuple[int, int, int]] = []
        if self.dtype == torch.float32:
            return
        linear: list[nn.Linear] = []
        read_otherwise: set[int] = set()
        for module in model.modules():
            if type(module) is nn.Linear and "forward" not in vars(module):
                linear.append(module)
            else:
                read_otherwise.update(map(id, module.parameters(recurse=False)))
        seen: set[int] = set()
        for layer in linear:
            weights = list(layer.parameters(recurse=False))
            if any(id(w) in read_otherwise or w.dtype != torch.float32 for w in weights):
                continue
            for weight in weights:
                if id(weight) in seen:
                    continue
                seen.add(id(weight))
                if id(weight) not in self.copies:
                    copy = torch.empty_like(weight, dtype=self.dtype, requires_grad=False)
                    self.copies[id(weight)] = copy.requires_grad_(weight.requires_grad)
                pairs = self.trained if weight.requires_grad else self.frozen
                pairs.append((weight, self.copies[id(weight)]))
            bias = None if layer.bias is None else self.copies[id(layer.bias)]
            forward = _HalfPrecision(layer, self.copies[id(layer.weight)], bias)
            self.layers.append((layer, forward))

    def __enter__(self) -> WeightCopies:
        stale = list(self.trained)
        if (state := _state_of(weight for weight, _ in self.frozen)) != self.frozen_state:
            stale, self.frozen_state = stale + self.frozen, state
        if stale:
            with torch.no_grad():
                torch._foreach_copy_([copy for _, copy in stale], [weight for weight, _ in stale])
        for layer, forward in self.layers:
            vars(layer)["forward"] = forward
        return self

    def __exit__(self, *error: object) -> None:
        for layer, _ in self.layers:
            vars(layer).pop("forward")
        for _, copy in self.trained:
            copy.grad = None

    def add_gradients(self) -> None:
        """Add the gradients of the copies to the weights' own; call after each backward pass.

        The sum is in single precision, as autocast's.
        """
        new: list[tuple[Tensor, Tensor]] = []
        old: list[tuple[Tensor, Tensor]] = []
        for weight, copy in self.trained:
            if (gradient := copy.grad) is None:
                continue
            copy.grad = None
            if weight.grad is not None:
                old.append((weight.grad, gradient))
                continue
            if id(weight) not in self.buffers:
                self.buffers[id(weight)] = torch.empty_like(weight)
            weight.grad = self.buffers[id(weight)]
            new.append((weight.grad, gradient))
        if new:
            torch._foreach_copy_([own for own, _ in new], [other for _, other in new])
        if old:
            torch._foreach_add_([own for own, _ in old], [other for _, other in old])


class _HalfPrecision:
    """The forward pass of a linear layer with copies of its weights, where autocast is on."""

    def __init__(self, layer: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
        self.layer, self.weight, self.bias = layer, weight, bias

    def __call__(self, vectors: Tensor) -> Tensor:
        device, dtype = vectors.device.type, self.weight.dtype
        if vectors.dtype == torch.float64 or not (
            torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == dtype
        ):
            return nn.Linear.forward(self.layer, vectors)
        return functional.linear(vectors.to(dtype), self.weight, self.bias)
