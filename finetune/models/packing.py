"""Packed rows: the layout of their sequences, groups for dense attention, and round sizes.

A packed row holds N sequences end to end, T tokens without padding. Attention computes a few
dense products over groups of sequences of near-equal length; padding exists only inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from finetune.models.shapes import RowShape, with_fillers
from finetune.runtime.device import to_device
from finetune.types import Batch

T = TypeVar("T")

MAX_WASTE = 0.5
"""Padding in a group as a fraction of its tokens. Padding costs attention alone, which is cheap for
short sequences; many small groups cost calls."""
MAX_WASTE_ON_DEVICE = 3.0
"""The same on a GPU, where calls cost more than rows: one group holds most batches."""
TOKEN_MULTIPLE = 16
"""The padded length of a group is a multiple of this: rows of a softmax then fill the vector
registers of a CPU, and torch compiles kernels for few shapes."""


class Group(NamedTuple):
    """Sequences that share a dense attention call: ``size`` of them, padded to ``longest`` L."""

    size: int
    longest: int
    key_mask: Tensor | None  # [size, 1, 1, L], False at padding; None without padding

    def attention_mask(self, sliding_window: int | None, device: torch.device) -> Tensor | None:
        """Build a mask broadcastable to [size, A, L, L], True where a query attends to a key.

        Tokens attend to others less than ``sliding_window`` positions away; None allows all pairs.
        """
        if sliding_window is None or self.longest <= sliding_window:
            return self.key_mask
        position = torch.arange(self.longest, device=device)
        near = (position[:, None] - position).abs() < sliding_window
        if self.key_mask is None:
            return near
        # A padded query far from every key would attend to nothing (NaN): let it attend to itself.
        return (near & self.key_mask) | torch.eye(self.longest, dtype=torch.bool, device=device)


@dataclass(eq=False)
class PackedLayout:
    """The boundaries of the N sequences of a packed row; one layout serves all layers."""

    cu_seqlens: Tensor  # cumulative lengths [N+1], int32, on the device
    lengths: tuple[int, ...]  # may have 0; empty if only the device knows them
    max_waste: float = MAX_WASTE
    shape: RowShape | None = None  # of a row that is filled up to it
    _cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def num_tokens(self) -> int:
        """T, the number of tokens."""
        return sum(self.lengths) if self.shape is None else self.shape.num_tokens

    @cached_property
    def max_seqlen(self) -> int:
        """Length of the longest sequence, in tokens, or the bound on it of the shape."""
        return max(self.lengths) if self.shape is None else self.shape.longest

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Groups that cover all sequences but empty ones."""
        device = self.cu_seqlens.device
        groups = []
        for _, valid in self.group_tokens:
            key_mask = None if valid.all() else to_device(valid[:, None, None], device)
            groups.append(Group(valid.shape[0], valid.shape[1], key_mask))
        return tuple(groups)

    @cached_property
    def group_tokens(self) -> list[tuple[Tensor, Tensor]]:
        """For each group the token indices in the packed row and a mask of real tokens.

        Both are [size, L], on the CPU. Padding repeats the first token of its sequence.
        """
        if not self.lengths:
            raise RuntimeError("one sequence is so long that attention cannot pad all others to it")
        ends = torch.tensor(self.lengths).cumsum(0)
        groups = []
        for members in group_by_length(self.lengths, self.max_waste, TOKEN_MULTIPLE):
            lengths = torch.tensor([self.lengths[member] for member in members])[:, None]
            begin = ends[members][:, None] - lengths
            offsets = torch.arange(round_up(int(lengths[-1]), TOKEN_MULTIPLE))
            valid = offsets < lengths
            groups.append((torch.where(valid, begin + offsets, begin), valid))
        return groups

    @property
    def padded_size(self) -> tuple[int, int]:
        """N and L of a single group of all sequences."""
        number = len(self.lengths) if self.shape is None else self.shape.num_sequences
        return number, round_up(self.max_seqlen, TOKEN_MULTIPLE)

    @property
    def is_one_group(self) -> bool:
        """Whether a single group is not too much padding."""
        number, longest = self.padded_size
        return number * longest <= (1 + self.max_waste) * self.num_tokens

    @cached_property
    def padded_index(self) -> PaddedIndex:
        """The index of a single group, computed on the device."""
        (number, longest), device = self.padded_size, self.cu_seqlens.device
        starts, lengths = self.cu_seqlens[:-1], self.cu_seqlens.diff()
        columns = torch.arange(longest, device=device)
        valid = columns < lengths[:, None]
        # padding repeats the first token of its sequence
        sources = starts[:, None] + columns * valid
        before = torch.arange(number, device=device) * longest - starts
        positions = torch.repeat_interleave(before, lengths, output_size=self.num_tokens)
        positions += torch.arange(self.num_tokens, device=device)
        # a query attends to something in an empty sequence, too
        key_mask = valid | (columns == 0)
        group = Group(number, longest, key_mask[:, None, None])
        return PaddedIndex(sources.flatten().clamp_(max=self.num_tokens - 1), positions, group)

    def bias(self, group: Group, sliding_window: int | None, dtype: torch.dtype) -> Tensor | None:
        """The bias of the attention scores of a group: -inf between unrelated tokens.

        It is broadcastable to [size, A, L, L]; None adds nothing.
        """

        def make() -> Tensor | None:
            mask = group.attention_mask(sliding_window, self.cu_seqlens.device)
            zero = torch.zeros((), dtype=dtype, device=self.cu_seqlens.device)
            return None if mask is None else torch.where(mask, zero, -torch.inf)

        return self.cached((id(group), sliding_window, dtype), make)

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """The value under a key, made once for all layers."""
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    def row_order(self, num_heads: int, heads_first: bool = False) -> RowOrder:
        """The order of rows in groups for A heads, the same for all layers."""
        make = partial(RowOrder.of, self, num_heads, heads_first)
        return self.cached((num_heads, heads_first), make)


class PackedCall(NamedTuple):
    """The arguments of attention in a packed row; ``attend`` explains them."""

    layout: PackedLayout
    dropout: float = 0.0
    scaling: float | None = None
    sliding_window: int | None = None


class PaddedIndex(NamedTuple):
    """The positions of T tokens among N padded rows of L, laid end to end."""

    sources: Tensor  # the token at each position [N * L]
    positions: Tensor  # the padded position of each token [T]
    group: Group

    def pad(self, rows: Tensor) -> Tensor:
        """Copy rows [1, T, A, D] to padded rows [N, A, L, D]."""
        return self._split(rows[0].flatten(1).index_select(0, self.sources), rows)

    def pad_with_zeros(self, rows: Tensor) -> Tensor:
        """Copy rows [1, T, A, D] to rows [N, A, L, D] padded with 0."""
        flat = rows[0].flatten(1)
        padded = rows.new_zeros(len(self.sources), flat.shape[1])
        return self._split(padded.index_copy_(0, self.positions, flat), rows)

    def unpad(self, padded: Tensor) -> Tensor:
        """Copy padded rows [N, A, L, D] to rows [1, T, A, D]."""
        heads = padded.shape[1], padded.shape[3]
        flat = padded.transpose(1, 2).flatten(0, 1).flatten(1)
        return flat.index_select(0, self.positions).view(1, -1, *heads)

    def _split(self, padded: Tensor, rows: Tensor) -> Tensor:
        size, longest, _ = self.group
        return padded.view(size, longest, *rows.shape[2:]).transpose(1, 2)


class RowOrder(NamedTuple):
    """The permutation between rows of tokens [T * A] and padded rows of groups [G * A].

    Rows of a group are ordered as [size, A, L], or as [A, size, L] with heads first.
    """

    sources: Tensor  # the token row of each group row [G * A]
    positions: Tensor  # the group row of each token row [T * A]
    num_heads: int
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, layout: PackedLayout, num_heads: int, heads_first: bool) -> RowOrder:
        """Compute the order for a layout and A heads."""
        heads = torch.arange(num_heads)
        sources, real = [], []
        for tokens, valid in layout.group_tokens:  # [size, L]
            axis = 0 if heads_first else 1  # of the heads
            head = heads.view((num_heads, 1, 1) if heads_first else (num_heads, 1))
            rows = tokens.unsqueeze(axis) * num_heads + head
            sources.append(rows.flatten())
            real.append(valid.unsqueeze(axis).expand_as(rows).flatten())
        joined = torch.cat(sources)
        rows = torch.cat(real).nonzero()[:, 0]
        positions = torch.empty_like(rows)
        positions[joined[rows]] = rows
        device = layout.cu_seqlens.device
        return cls(
            to_device(joined, device), to_device(positions, device), num_heads, layout.groups
        )

    def split(self, *tensors: Tensor) -> Iterator[tuple[Group, list[Tensor]]]:
        """Yield each group with its rows of tensors [G * A, D], as matrices [size * A, L, D]."""
        sizes = [group.size * group.longest * self.num_heads for group in self.groups]
        columns = (torch.split(tensor, sizes) for tensor in tensors)
        for group, *rows in zip(self.groups, *columns, strict=True):
            yield group, [row.view(-1, group.longest, row.shape[1]) for row in rows]

    def to_groups(self, rows: Tensor) -> Tensor:
        """Copy rows of tokens [T, A, D] to rows of groups [G * A, D]."""
        return rows.flatten(0, 1).index_select(0, self.sources)

    def to_tokens(self, rows: Tensor) -> Tensor:
        """Copy rows of groups [G * A, D] to rows of tokens [T * A, D]."""
        return rows.index_select(0, self.positions)


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple that is at least ``number``."""
    return -(-number // multiple) * multiple


def group_by_length(
    lengths: Sequence[int], max_waste: float = MAX_WASTE, multiple: int = 1
) -> Iterator[list[int]]:
    """Yield the indices of sequences in groups of near-equal, ascending length.

    Padding a group to its longest sequence, rounded up to ``multiple``, adds at most the fraction
    ``max_waste`` to its tokens; sequences with the same rounded length stay together. Empty
    sequences are in no group.
    """
    members: list[int] = []
    tokens = longest = 0
    filled = (index for index, length in enumerate(lengths) if length)
    for index in sorted(filled, key=lambda i: (lengths[i], i)):
        rounded = round_up(lengths[index], multiple)
        tokens += lengths[index]
        if rounded > longest and rounded * (len(members) + 1) > (1 + max_waste) * tokens:
            if members:
                yield members
            members, tokens = [], lengths[index]
        members.append(index)
        longest = rounded
    yield members


def needs_round_size(batch: Batch, dtype: torch.dtype) -> bool:
    """Whether matrix products of a batch run in bfloat16 on the CPU, given the weights'.

    There torch compiles a kernel of half a megabyte for each size of a product and keeps a
    thousand of them, which fragments memory; batches hardly ever have the same number of tokens.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
    return batch.input_ids.is_cpu and dtype == torch.bfloat16


def with_round_size(batch: Batch, max_length: int | None = None) -> Batch:
    """Append a filler sequence, so that T becomes a multiple of ``MULTIPLE`` or of about T / 32.

    Words and targets stay as they are. ``max_length`` is the number of positions of the model.
    """
    num_tokens = len(batch.input_ids)
    multiple = max(TOKEN_MULTIPLE, num_tokens // 32 & -TOKEN_MULTIPLE)
    filler = -num_tokens % (multiple if max_length is None else min(multiple, max_length))
    if not filler:
        return batch
    return with_fillers(batch, RowShape(num_tokens + filler, len(batch.lengths) + 1, filler))
