"""Numeric precision of a run: bfloat16 where the hardware supports it, else float32 or float16."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import torch

from finetune.config.tasks import TrainConfig
from finetune.types import UserError

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""The type of matrix products for each precision."""


@functools.cache
def supports_bf16(device: torch.device) -> bool:
    """Return whether the hardware multiplies bfloat16 matrices natively."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return "avx512_bf16" in flags or "amx_bf16" in flags
    return False


def resolve_precision(config: TrainConfig, device: torch.device) -> str:
    """Return the configured precision, or with ``auto`` bf16 or fp32 as suits the device."""
    if config.precision != "auto":
        return config.precision
    return "bf16" if supports_bf16(device) else "fp32"


def autocast(precision: str, device: torch.device) -> Any:
    """Return a context in which matrix products run in a precision; weights stay float32."""
    if precision not in TYPES:
        raise UserError(f"precision {precision!r}: legal are {', '.join(TYPES)}.")
    if TYPES[precision] == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=TYPES[precision])


def loss_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return the scaler of the loss (Micikevicius et al., 2018), which acts with fp16 only.

    Gradients below 6e-8 are 0 in float16, so the loss is multiplied by a scale. A step in which
    gradients overflow is skipped and halves the scale. The scale starts at 1,024 and not at torch's
    65,536, because our losses are sums over a batch and not means.
    """
    enabled = precision == "fp16"
    return torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=enabled)
