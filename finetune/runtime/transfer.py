"""Models, tensors and batches on a device; the CPU does not wait for copies of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from finetune.types import Batch

ALIGNMENT = 16
"""Bytes to which tensors in one buffer are aligned."""


def place(head: Any, device: torch.device) -> Any:
    """Move a model to a device; no weight stays memory-mapped."""
    if device.type == "cpu":
        for tensor in (*head.parameters(), *head.buffers()):
            tensor.data = tensor.data.clone()  # a mapped file that changes would crash it
    return head.to(device)


def pinned_buffer(size: int) -> Tensor:
    """Return ``size`` bytes of new page-locked memory, which a GPU copies without the CPU."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device, without waiting for a copy from the CPU to a GPU."""
    return all_to_device([value], device)[0]


def all_to_device(values: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors on a device; tensors on the CPU go to a GPU in one copy of one buffer."""
    if device.type != "cuda":
        return [value.to(device) for value in values]
    own = [index for index, value in enumerate(values) if value.is_cpu]
    found = [value if value.is_cpu else value.to(device) for value in values]
    if not own:
        return found
    sizes = [value.numel() * value.element_size() if value.is_cpu else 0 for value in values]
    places = [0]
    for size in sizes:
        places.append(places[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    buffer = pinned_buffer(places[-1])

    def part(of: Tensor, index: int) -> Tensor:
        value, start = values[index], places[index]
        return of.narrow(0, start, sizes[index]).view(value.dtype).view(value.shape)

    for index in own:
        part(buffer, index).copy_(values[index])
    moved = buffer.to(device, non_blocking=True)
    for index in own:
        found[index] = part(moved, index)
    return found


def batch_to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on a device, without waiting for the copy to a GPU."""
    if device.type == "cpu" or not batch.word_lengths.is_cpu:
        return batch.to(device)
    values: list[Tensor] = []
    batch.each(lambda value: values.append(value) or value)  # type: ignore[func-returns-value]
    moved = iter(all_to_device(values, device))
    num_subwords = batch.num_subwords
    if num_subwords is None:
        num_subwords = int(batch.word_lengths.sum())
    there = batch.each(lambda value: next(moved))
    return dataclasses.replace(there, num_subwords=num_subwords, host=batch)


def batches_to_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on a device; the copy of a batch starts before its predecessor is used."""
    before: Batch | None = None
    for batch in batches:
        moved = batch_to_device(batch, device)
        if before is not None:
            yield before
        before = moved
    if before is not None:
        yield before
