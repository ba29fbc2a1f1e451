"""Padded rows, for models that cannot take a packed one: in groups of near-equal length.

A batch of random lengths padded to its longest sequence computes mostly padding where lengths
differ; cut into groups by length it computes at most a sixth more than it has, and gives the same
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from finetune.models.packing import near_equal
from finetune.runtime.transfer import to_device
from finetune.types import Batch

MAX_WASTE = 0.15
"""Padding that a group may add to its sequences, as a share of their tokens."""
MAX_WASTE_ON_DEVICE = 1.0
"""Padding of a group as a share of its tokens where starting a forward pass costs more than
computing padding: on a GPU."""


class LengthGroup(NamedTuple):
    """Some sequences of a batch, as a batch of their own (without words and targets), and where
    they are in the whole: ``sequences`` [N of the group], ``tokens`` [T of the group]."""

    batch: Batch
    sequences: Tensor
    tokens: Tensor


def length_groups(batch: Batch) -> Iterator[LengthGroup]:
    """The sequences of a batch in groups of near-equal length."""
    device = batch.input_ids.device
    waste = MAX_WASTE if device.type == "cpu" else MAX_WASTE_ON_DEVICE
    groups = list(near_equal(batch.lengths, waste))
    if len(groups) == 1:
        sizes = len(batch.lengths), len(batch.input_ids)
        yield LengthGroup(batch, *(torch.arange(size, device=device) for size in sizes))
        return
    starts = [0]
    for length in batch.lengths:
        starts.append(starts[-1] + length)
    for members in groups:
        lengths = tuple(batch.lengths[member] for member in members)
        rows = torch.cat([torch.arange(starts[m], starts[m] + batch.lengths[m]) for m in members])
        places = to_device(rows, device)
        segments = batch.segment_ids
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        part = replace(
            batch,
            input_ids=batch.input_ids[places],
            position_ids=batch.position_ids[places],
            segment_ids=None if segments is None else segments[places],
            cu_seqlens=to_device(bounds.int(), device),
            lengths=lengths,
            targets={},
        )
        yield LengthGroup(part, to_device(torch.tensor(members), device), places)


def in_order(parts: Sequence[Tensor], places: Sequence[Tensor]) -> Tensor:
    """Rows of all groups in the order of the whole batch: ``places`` says where each part's lie."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(list(parts)).index_select(0, torch.cat(list(places)).argsort())


def flat_places(batch: Batch) -> Tensor:
    """Where each token lies in N padded rows laid end to end: [T]."""
    rows = torch.arange(len(batch.lengths), device=batch.input_ids.device) * batch.max_seqlen
    lengths = batch.cu_seqlens.diff()
    return (
        torch.repeat_interleave(rows, lengths, output_size=len(batch.input_ids))
        + batch.position_ids
    )


def flat(padded: Tensor, batch: Batch) -> Tensor:
    """The rows of real tokens: [N, longest, X] -> [T, X]."""
    return padded.flatten(0, 1).index_select(0, flat_places(batch))


def in_rows(values: Tensor, place: Tensor, shape: tuple[int, int], empty: int) -> Tensor:
    """Flat values [T] in padded rows [N, longest], the rest filled with ``empty``."""
    padded = values.new_full((shape[0] * shape[1],), empty)
    return padded.index_copy(0, place, values).view(shape)
