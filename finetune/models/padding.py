"""Padded rows for models that cannot run on a packed row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from finetune.runtime.device import to_device
from finetune.types import Batch


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
