"""Padded rows, in groups of near-equal length, for models that cannot run on a packed row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from finetune.models.packing import group_by_length
from finetune.runtime.device import to_device
from finetune.types import Batch

_MAX_WASTE = 0.15
"""Padding in a group as a fraction of its tokens, on the CPU."""
_MAX_WASTE_ON_DEVICE = 1.0
"""The same on a GPU, where starting a forward pass costs more than computing padding."""


class LengthGroup(NamedTuple):
    """A part of a batch, without targets, and the indices of its sequences and tokens in it."""

    batch: Batch
    sequences: Tensor
    tokens: Tensor


def length_groups(batch: Batch, max_waste: float | None = None) -> Iterator[LengthGroup]:
    """Yield the sequences of a batch in groups of near-equal length.

    ``max_waste`` is the most padding in a group, as a fraction of its tokens: 0 makes groups of
    equal length. By default it depends on the device.
    """
    device = batch.input_ids.device
    if max_waste is None:
        max_waste = _MAX_WASTE if device.type == "cpu" else _MAX_WASTE_ON_DEVICE
    groups = list(group_by_length(batch.lengths, max_waste))
    if len(groups) == 1:
        sizes = len(batch.lengths), len(batch.input_ids)
        yield LengthGroup(batch, *(torch.arange(size, device=device) for size in sizes))
        return
    for members in groups:
        part, tokens = take_sequences(batch, members)
        yield LengthGroup(part, to_device(torch.tensor(members), device), tokens)


def take_sequences(batch: Batch, members: Sequence[int]) -> tuple[Batch, Tensor]:
    """Take some sequences of a batch, without words and targets, and the rows of their tokens."""
    device, token_type_ids = batch.input_ids.device, batch.token_type_ids
    starts = [0, *accumulate(batch.lengths)]
    rows = torch.cat([torch.arange(starts[m], starts[m + 1]) for m in members])
    tokens = to_device(rows, device)
    lengths = tuple(batch.lengths[member] for member in members)
    part = replace(
        batch,
        input_ids=batch.input_ids[tokens],
        position_ids=batch.position_ids[tokens],
        token_type_ids=None if token_type_ids is None else token_type_ids[tokens],
        cu_seqlens=to_device(torch.tensor([0, *lengths]).cumsum(0).int(), device),
        lengths=lengths,
        example=tuple(batch.example[member] for member in members),
        window=tuple(batch.window[member] for member in members),
        targets={},
    )
    return part, tokens


def restore_order(parts: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    """Join rows of all groups in the order of the whole batch, given their indices in it."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(list(parts)).index_select(0, torch.cat(list(indices)).argsort())


def padded_index(batch: Batch) -> Tensor:
    """The index of each token among N padded rows laid end to end: [T]."""
    rows = torch.arange(len(batch.lengths), device=batch.input_ids.device) * batch.max_seqlen
    lengths, size = batch.cu_seqlens.diff(), len(batch.input_ids)
    return torch.repeat_interleave(rows, lengths, output_size=size) + batch.position_ids


def unpad(padded: Tensor, batch: Batch) -> Tensor:
    """Select the rows of real tokens: [N, longest, X] -> [T, X]."""
    return padded.flatten(0, 1).index_select(0, padded_index(batch))


def pad_rows(values: Tensor, index: Tensor, shape: tuple[int, int], fill: float) -> Tensor:
    """Put flat values [T, ...] into padded rows of ``shape`` [N, longest], filled with ``fill``."""
    padded = values.new_full((shape[0] * shape[1], *values.shape[1:]), fill)
    return padded.index_copy(0, index, values).view(*shape, *values.shape[1:])
