"""Dropout that is fast on a CPU: each number of torch's generator decides about four elements.

torch's own dropout takes six times as long there. The probability is rounded to a multiple of
1 / 65,536, and the remaining elements are scaled by the rounded probability, so that the
expectation is exact. Other devices use torch's own dropout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

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
    if not level:
        return input
    if input.device.type != "cpu" or level >= LEVELS:
        return F.dropout(input, p)
    numbers = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    lanes = numbers.view(torch.int16)[: input.numel()].view(input.shape)
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[input.dtype.itemsize]
    bits = lanes.ge_(level - LEVELS // 2).neg_().to(integers)
    output: Tensor = _Mask.apply(input, bits, LEVELS / (LEVELS - level))  # type: ignore[no-untyped-call]
    return output


class _Mask(torch.autograd.Function):
    """Scales values, and clears the bits of dropped ones, which is faster than a fill.

    ``bits`` has integers as wide as the values: 0 for a dropped one, else all ones.
    """

    @staticmethod
    def forward(context: Any, values: Tensor, bits: Tensor, scale: float) -> Tensor:
        context.save_for_backward(bits)
        context.scale = scale
        return _masked(values, bits, scale)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (bits,) = context.saved_tensors
        return _masked(gradients[0], bits, context.scale), None, None


def _masked(values: Tensor, bits: Tensor, scale: float) -> Tensor:
    scaled = (values * scale).contiguous()
    scaled.view(bits.dtype).bitwise_and_(bits)
    return scaled
