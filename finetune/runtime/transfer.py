"""Copies of tensors and batches to a device that the CPU does not wait for."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from finetune.types import Batch


def pinned(value: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor in new page-locked memory, from which a GPU copies by itself."""
    return value.pin_memory() if device.type == "cuda" and value.numel() else value


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device, without waiting for a copy from the CPU to a GPU."""
    if device.type != "cuda" or not value.is_cpu:
        return value.to(device)
    return pinned(value, device).to(device, non_blocking=True)


def batch_to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on a device, without waiting for copies to a GPU."""
    if device.type == "cuda" and batch.word_lengths.is_cpu:
        batch = dataclasses.replace(batch, num_subwords=int(batch.word_lengths.sum()))
    return batch.each(lambda value: to_device(value, device))
