"""Numeric precision of a run: bfloat16 where the hardware supports it, else float32."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from finetune.config.tasks import TrainConfig


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
    """Return ``bf16`` or ``fp32``: the configured one, or with ``auto`` what suits the device."""
    if config.precision != "auto":
        return config.precision
    return "bf16" if supports_bf16(device) else "fp32"


def autocast(precision: str, device: torch.device) -> Any:
    """Return a context in which matrix products run in a precision; weights stay float32."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
