"""Where the sequences of a packed row lie, and which of them share a dense attention call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from finetune.staging import moved

MAX_WASTE = 0.5
"""Padding that a group may add to its sequences, as a share of their tokens. It costs attention
alone, which is little in short sequences, and many small groups cost calls: 0.5 was 1.03 times as
fast as 0.15 in training with MiniLM on sentences of 20 tokens."""


class Group(NamedTuple):
    """Sequences that share one dense attention call: ``size`` of them, the longest with L tokens.

    ``rows`` are their places in the packed row: [size * L], or a slice where they lie there in
    one piece. ``keys`` [size, 1, 1, L] is False at padding, None where lengths are equal.
    """

    size: int
    longest: int
    rows: Tensor | slice
    keys: Tensor | None


@dataclass(frozen=True)
class PackedLayout:
    """Where the N sequences of a packed row lie: their boundaries [N+1] int32 and lengths.

    ``max_waste`` is the padding that groups of them may add, as a share of their tokens.
    ``longest`` is an upper bound of the lengths, for shapes that are fixed beforehand: on a GPU
    the boundaries alone then say where sequences end, and ``lengths`` are those of one batch among
    many. Sequences may be empty.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    max_waste: float = MAX_WASTE
    longest: int | None = None

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence, in tokens, or the bound that stands for it."""
        return self.longest or max(self.lengths)

    @cached_property
    def groups(self) -> tuple[tuple[Group, ...], Tensor | None]:
        """Groups that cover all sequences, and the way back.

        The way back [T] finds each token of the packed row among the groups' rows, one group
        after the other; None where both orders are the same.
        """
        starts = [0]
        for length in self.lengths:
            starts.append(starts[-1] + length)
        groups, back, offset = [], torch.empty(starts[-1], dtype=torch.long), 0
        for members in near_equal(self.lengths, self.max_waste):
            begin = torch.tensor([starts[m] for m in members])[:, None]
            place = torch.arange(self.lengths[members[-1]])
            valid = place < torch.tensor([self.lengths[m] for m in members])[:, None]  # [size, L]
            rows = torch.where(valid, begin + place, begin)  # [size, L]
            back[rows[valid]] = offset + valid.flatten().nonzero()[:, 0]
            offset += valid.numel()
            groups.append(_group(rows, valid, self.cu_seqlens.device))
        unmoved = offset == len(back) and bool((back == torch.arange(offset)).all())
        return tuple(groups), None if unmoved else moved(back, self.cu_seqlens.device)

    @cached_property
    def rows(self) -> Tensor:
        """The rows of all groups, one group after the other, as places in the packed row: [G]."""
        places = torch.arange(sum(self.lengths), device=self.cu_seqlens.device)
        return torch.cat([places[group.rows] for group in self.groups[0]])


def near_equal(lengths: Sequence[int], max_waste: float = MAX_WASTE) -> Iterator[list[int]]:
    """Numbers of sequences in groups of ascending length that padding widens by ``max_waste``.

    Empty sequences are in no group.
    """
    members: list[int] = []
    tokens = 0
    filled = (number for number, length in enumerate(lengths) if length)
    for number in sorted(filled, key=lambda n: (lengths[n], n)):
        tokens += lengths[number]
        if members and lengths[number] * (len(members) + 1) > (1 + max_waste) * tokens:
            yield members
            members, tokens = [], lengths[number]
        members.append(number)
    yield members


def _group(rows: Tensor, valid: Tensor, device: torch.device) -> Group:
    """The group of these rows of the packed row and their validity, both [size, L]."""
    size, longest = rows.shape
    if not valid.all():
        keys = moved(valid[:, None, None], device)
        return Group(size, longest, moved(rows.flatten(), device), keys)
    first = int(rows[0, 0])
    if torch.equal(rows.flatten(), torch.arange(first, first + rows.numel())):
        return Group(size, longest, slice(first, first + rows.numel()), None)
    return Group(size, longest, moved(rows.flatten(), device), None)
