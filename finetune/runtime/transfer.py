"""Copies of tensors and batches to a device, from pinned memory so that no copy is waited for."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from finetune.types import Batch


def pinned(value: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor in memory that a GPU copies from by itself.

    That memory is fresh each time: torch gives it out again only after the copy is done.
    """
    return value.pin_memory() if device.type == "cuda" and value.numel() else value


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; nothing waits for its way from the CPU to a GPU."""
    if device.type != "cuda" or not value.is_cpu:
        return value.to(device)
    return pinned(value, device).to(device, non_blocking=True)


def batch_to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on a device; nothing waits for their way from the CPU to a GPU."""
    if device.type == "cuda" and batch.word_lengths.is_cpu:
        batch = dataclasses.replace(batch, num_pieces=int(batch.word_lengths.sum()))
    return batch.each(lambda value: to_device(value, device))
