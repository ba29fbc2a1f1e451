"""Devices: their numeric precision, and models, tensors and batches moved to them.

Precision is bfloat16 where the hardware supports it, else float32 or float16. The CPU does not wait
for copies of tensors to a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from finetune.config.tasks import TrainConfig
from finetune.types import TENSORS, Batch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""The type of matrix products for each precision."""
_ALIGNMENT = 16
"""Bytes to which tensors in one buffer are aligned."""


@functools.cache
def supports_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 matrices natively."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return "avx512_bf16" in flags or "amx_bf16" in flags
    return False


def resolve_precision(config: TrainConfig, device: torch.device) -> str:
    """Resolve the precision ``auto`` to bf16 or fp32, whichever suits the device."""
    if config.precision != "auto":
        return config.precision
    return "bf16" if supports_bf16(device) else "fp32"


def autocast(precision: str, device: torch.device) -> Any:
    """Run matrix products within a context in a precision; weights stay float32."""
    if DTYPES[precision] == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


def loss_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Make the loss scaler (Micikevicius et al., 2018), which is enabled for fp16 only.

    Gradients below 6e-8 are 0 in float16, so the loss is multiplied by a scale. A step in which
    gradients overflow is skipped and halves the scale. The scale starts at 1,024 and not at torch's
    65,536, because our losses are sums over a batch and not means.
    """
    enabled = precision == "fp16"
    return torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=enabled)


def model_to_device(model: Any, device: torch.device) -> Any:
    """Move a model to a device; no weight stays memory-mapped."""
    if device.type == "cpu":
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()  # a mapped file that changes would crash it
    return model.to(device)


def pinned_buffer(size: int) -> Tensor:
    """Allocate ``size`` bytes of page-locked memory, which a GPU copies without the CPU."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, without waiting for a copy from the CPU to a GPU."""
    return all_to_device([value], device)[0]


def all_to_device(values: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors to a device; tensors on the CPU go to a GPU in one copy of one buffer."""
    if device.type != "cuda" or not any(value.is_cpu for value in values):
        return [value.to(device) for value in values]
    on_cpu = [value for value in values if value.is_cpu]
    lengths = [value.numel() * value.element_size() for value in on_cpu]
    sizes = [-(-length // _ALIGNMENT) * _ALIGNMENT for length in lengths]

    def parts(buffer: Tensor) -> list[Tensor]:
        chosen = zip(on_cpu, lengths, buffer.split(sizes), strict=True)
        return [
            part.narrow(0, 0, n).view(value.dtype).view(value.shape) for value, n, part in chosen
        ]

    buffer = pinned_buffer(sum(sizes))
    for part, value in zip(parts(buffer), on_cpu, strict=True):
        part.copy_(value)
    copies = parts(buffer.to(device, non_blocking=True))
    moved = {id(value): copy for value, copy in zip(on_cpu, copies, strict=True)}
    return [moved[id(value)] if value.is_cpu else value.to(device) for value in values]


def batch_to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy the tensors of a batch to a device, without waiting for the copy to a GPU."""
    if device.type == "cpu" or not batch.word_lengths.is_cpu:
        return batch.to(device)
    values = [value for name in TENSORS if (value := getattr(batch, name)) is not None]
    moved = iter(all_to_device([*values, *batch.targets.values()], device))
    num_subwords = batch.num_subwords
    if num_subwords is None:
        num_subwords = int(batch.word_lengths.sum())
    there = batch.each(lambda value: next(moved))
    return dataclasses.replace(there, num_subwords=num_subwords, host=batch)


def batches_to_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on a device; the copy of a batch starts before its predecessor is used."""
    before: list[Batch] = []
    for batch in batches:
        moved = batch_to_device(batch, device)
        yield from before
        before = [moved]
    yield from before
