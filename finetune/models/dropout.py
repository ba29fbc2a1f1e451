"""Dropout whose masks are cheap to draw on a CPU.

torch draws a double-precision number for each element there. Sixteen random bits decide as well,
so one 64-bit draw serves four elements. The probability is rounded to a multiple of 1 / 65,536, and
the remaining elements are scaled by the rounded probability, so that the expectation is exact. The
draws come from torch's default generator: seeds and saved random states work as usual.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = 2**16
"""Number of values of the sixteen bits that decide about an element."""


class FastDropout(nn.Dropout):
    """``nn.Dropout`` (Srivastava et al., 2014) with sixteen-bit draws on the CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero elements with probability ``p`` and scale the others by 1 / (1 - p)."""
        return dropout(input, self.p) if self.training else input


@contextlib.contextmanager
def fast_dropout(model: nn.Module) -> Iterator[None]:
    """Replace a model's plain dropout layers by ``FastDropout`` within a ``with`` block.

    Layers of a subclass of ``nn.Dropout`` stay.
    """
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Dropout
    ]
    for parent, name, layer in layers:
        setattr(parent, name, FastDropout(layer.p).train(layer.training))
    try:
        yield
    finally:
        for parent, name, layer in layers:
            layer.training = getattr(parent, name).training
            setattr(parent, name, layer)


def dropout(input: Tensor, p: float) -> Tensor:
    """Zero elements with probability ``p`` and scale the others by 1 / (1 - p)."""
    level = round(p * LEVELS)
    if input.device.type != "cpu" or level >= LEVELS:
        return F.dropout(input, p)
    if not level:
        return input
    mask = DropoutMask.draw(input, p)
    return _ApplyMask.apply(input, mask)  # type: ignore[no-any-return, no-untyped-call]


def draw_bits(shape: torch.Size | tuple[int, ...], level: int, dtype: torch.dtype) -> Tensor:
    """Draw integers as wide as ``dtype``: 0 with probability ``level`` / 65,536, else all ones."""
    size = torch.Size(shape).numel()
    draws = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[:size].ge_(level - LEVELS // 2).neg_()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return bits.to(integers[dtype.itemsize]).view(shape)


class DropoutMask(NamedTuple):
    """The ``draw_bits`` for some values (None if no value is dropped) and the scale of the rest."""

    bits: Tensor | None
    scale: float

    @classmethod
    def draw(cls, values: Tensor, p: float) -> DropoutMask:
        """Draw a mask for values on the CPU, each of which is dropped with probability ``p``."""
        level = round(p * LEVELS)
        bits = draw_bits(values.shape, level, values.dtype) if level else None
        return cls(bits, LEVELS / max(1, LEVELS - level))

    def __call__(self, values: Tensor) -> Tensor:
        """Return the scaled values with the bits of dropped ones cleared (faster than a fill)."""
        if self.bits is None:
            return values
        scaled = (values * self.scale).contiguous()
        scaled.view(self.bits.dtype).bitwise_and_(self.bits)
        return scaled


class _ApplyMask(torch.autograd.Function):
    """Apply one mask to the input and to its gradient."""

    @staticmethod
    def forward(context: Any, input: Tensor, mask: DropoutMask) -> Tensor:
        context.save_for_backward(mask.bits)
        context.scale = mask.scale
        return mask(input)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (bits,) = context.saved_tensors
        return DropoutMask(bits, context.scale)(gradients[0]), None
