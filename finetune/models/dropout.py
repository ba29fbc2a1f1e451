"""Dropout that is fast on a CPU: each number of torch's generator decides about four elements.

torch's own dropout takes six times as long there. The probability is rounded to a multiple of
1 / 65,536, and the remaining elements are scaled by the rounded probability, so that the
expectation is exact. Other devices use torch's own dropout.
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
    """``nn.Dropout`` (Srivastava et al., 2014) that calls ``dropout``."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero elements with probability ``p`` and scale the others by 1 / (1 - p)."""
        return dropout(input, self.p) if self.training else input


@contextlib.contextmanager
def fast_dropout(model: nn.Module) -> Iterator[None]:
    """Let a model's layers of class ``nn.Dropout`` be ``FastDropout`` within a ``with`` block."""
    layers = [module for module in model.modules() if type(module) is nn.Dropout]
    for layer in layers:
        layer.__class__ = FastDropout
    try:
        yield
    finally:
        for layer in layers:
            layer.__class__ = nn.Dropout


def dropout(input: Tensor, p: float) -> Tensor:
    """Zero elements with probability ``p`` and scale the others by 1 / (1 - p)."""
    level = round(p * LEVELS)
    if input.device.type != "cpu" or level >= LEVELS:
        return F.dropout(input, p)
    mask = DropoutMask.draw(input, p)
    return _ApplyMask.apply(input, mask) if level else input  # type: ignore[no-untyped-call]


class DropoutMask(NamedTuple):
    """Integers as wide as the values, 0 or all ones (None: all stay), and the scale of the kept."""

    bits: Tensor | None
    scale: float

    @classmethod
    def draw(cls, values: Tensor, p: float) -> DropoutMask:
        """Draw a mask for values on the CPU, each of which is dropped with probability ``p``."""
        if not (level := round(p * LEVELS)):
            return cls(None, 1.0)
        numbers = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        lanes = numbers.view(torch.int16)[: values.numel()].view(values.shape)
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.dtype.itemsize]
        bits = lanes.ge_(level - LEVELS // 2).neg_().to(integers)
        return cls(bits, LEVELS / max(1, LEVELS - level))

    def __call__(self, values: Tensor) -> Tensor:
        """Scale the values, and clear the bits of dropped ones (faster than a fill)."""
        if self.bits is None:
            return values
        scaled = (values * self.scale).contiguous()
        scaled.view(self.bits.dtype).bitwise_and_(self.bits)
        return scaled


class _ApplyMask(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, input: Tensor, mask: DropoutMask) -> Tensor:
        context.save_for_backward(mask.bits)
        context.scale = mask.scale
        return mask(input)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (bits,) = context.saved_tensors
        return DropoutMask(bits, context.scale)(gradients[0]), None
