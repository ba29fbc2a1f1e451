"""Where the sequences of a packed row lie, and which of them share a dense attention call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from finetune.runtime.transfer import to_device

MAX_WASTE = 0.5
"""Padding that a group may add to its sequences, as a share of their tokens. It costs attention
alone, which is little in short sequences, and many small groups cost calls."""
MULTIPLE = 16
"""What lengths of groups are rounded up to a multiple of: a row of a softmax is then whole vector
registers on a CPU, and there are few shapes of products for which torch compiles a kernel each."""


class Group(NamedTuple):
    """Sequences that share one dense attention call: ``size`` of them, of up to L tokens.

    ``keys`` [size, 1, 1, L] is False at padding, None where there is none.
    """

    size: int
    longest: int
    keys: Tensor | None


@dataclass(frozen=True)
class PackedLayout:
    """Where the N sequences of a packed row lie: their boundaries [N+1] int32 and lengths.

    ``max_waste`` is the padding that groups of them may add, as a share of their tokens.
    Sequences may be empty. ``plans`` are of who computes attention, made once for all layers.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    max_waste: float = MAX_WASTE
    plans: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence, in tokens."""
        return max(self.lengths)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Groups that cover all sequences."""
        device = self.cu_seqlens.device
        return tuple(Group(*valid.shape, _keys(valid, device)) for _, valid in self.places)

    @cached_property
    def places(self) -> list[tuple[Tensor, Tensor]]:
        """The places of each group's rows in the packed row, and which of them are tokens of it:
        [size, L] each, on the CPU. What is none is at the place of its sequence's first."""
        ends = torch.tensor(self.lengths).cumsum(0)
        places = []
        for members in near_equal(self.lengths, self.max_waste, MULTIPLE):
            lengths = torch.tensor([self.lengths[member] for member in members])[:, None]
            begin = ends[members][:, None] - lengths
            offsets = torch.arange(round_up(int(lengths[-1]), MULTIPLE))
            valid = offsets < lengths
            places.append((torch.where(valid, begin + offsets, begin), valid))
        return places


def round_up(number: int, multiple: int) -> int:
    """The least multiple that is not below a number."""
    return -(-number // multiple) * multiple


def near_equal(
    lengths: Sequence[int], max_waste: float = MAX_WASTE, multiple: int = 1
) -> Iterator[list[int]]:
    """Numbers of sequences in groups of ascending length that padding widens by ``max_waste``.

    Lengths that round up to the same ``multiple`` stay together. Empty sequences are in no group.
    """
    members: list[int] = []
    tokens = longest = 0
    filled = (number for number, length in enumerate(lengths) if length)
    for number in sorted(filled, key=lambda n: (lengths[n], n)):
        rounded = round_up(lengths[number], multiple)
        tokens += lengths[number]
        if rounded > longest and rounded * (len(members) + 1) > (1 + max_waste) * tokens:
            if members:
                yield members
            members, tokens = [], lengths[number]
        members.append(number)
        longest = rounded
    yield members


def _keys(valid: Tensor, device: torch.device) -> Tensor | None:
    return None if bool(valid.all()) else to_device(valid[:, None, None], device)
