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
from torch.nn import functional

from finetune.models.shapes import RowShape, with_fillers
from finetune.runtime.device import all_to_device, to_device
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

    tokens: Tensor  # indices in the packed row [size, L]; padding repeats the first of its sequence
    valid: Tensor  # False at padding [size, L]
    key_mask: Tensor | None  # [size, 1, 1, L] on the device of the row; None without padding

    @property
    def size(self) -> int:
        """The number of sequences."""
        return self.tokens.shape[0]

    @property
    def longest(self) -> int:
        """L, the number of columns."""
        return self.tokens.shape[1]

    def rows(self, num_heads: int, num_tokens: int) -> tuple[Tensor, Tensor]:
        """The rows of this group, if it is the only one: of A heads [size * A * L] among [A * T].

        The second tensor has for each of T tokens its place among the padded ones.
        """
        heads = torch.arange(num_heads, device=self.tokens.device)[:, None]
        sources = (heads * num_tokens + self.tokens[:, None]).view(-1)
        targets = self.tokens.where(self.valid, num_tokens).view(-1)
        numbers = torch.arange(len(targets), device=targets.device)
        return sources, numbers.new_empty(num_tokens + 1).scatter_(0, targets, numbers)[:-1]


class TooMuchPadding(Exception):
    """To pad all sequences to the longest one is too much, and other groups need their lengths."""


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
        """Groups that cover all sequences but, on the CPU, empty ones.

        On a GPU a single group is computed there, if it is not too much padding.
        """
        on_device = self.cu_seqlens.device.type != "cpu"
        size = (len(self.cu_seqlens) - 1) * round_up(self.max_seqlen, TOKEN_MULTIPLE)
        if on_device and size <= (1 + self.max_waste) * self.num_tokens:
            return (self.all_padded(),)
        if not self.lengths:
            raise TooMuchPadding
        divided = list(group_by_length(self.lengths, self.max_waste, TOKEN_MULTIPLE))
        if on_device and len(divided) == 1:
            return (self.all_padded(),)
        ends, groups = torch.tensor(self.lengths).cumsum(0), []
        for members in divided:
            lengths = torch.tensor([self.lengths[member] for member in members])[:, None]
            columns = torch.arange(round_up(int(lengths[-1]), TOKEN_MULTIPLE))
            valid = columns < lengths
            key_mask = None
            if not valid.all():
                key_mask = to_device(valid[:, None, None], self.cu_seqlens.device)
            tokens = ends[members][:, None] - lengths + columns * valid
            groups.append(Group(tokens, valid, key_mask))
        return tuple(groups)

    def all_padded(self) -> Group:
        """A single group of all sequences, computed on the device of the row."""
        longest = round_up(self.max_seqlen, TOKEN_MULTIPLE)
        columns = torch.arange(longest, device=self.cu_seqlens.device)
        valid = columns < self.cu_seqlens.diff()[:, None]
        tokens = (self.cu_seqlens[:-1, None] + columns * valid).clamp(max=self.num_tokens - 1)
        # a query attends to something in an empty sequence, too
        return Group(tokens, valid, (valid | (columns == 0))[:, None, None])

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # which cannot trace the cache
    def bias(self, group: Group, sliding_window: int | None, dtype: torch.dtype) -> Tensor | None:
        """The bias of the attention scores of a group: -inf between unrelated tokens.

        It is broadcastable to [size, A, L, L]; None adds nothing. Tokens attend to others less than
        ``sliding_window`` positions away; None allows all pairs.
        """

        def make() -> Tensor | None:
            mask, device = group.key_mask, self.cu_seqlens.device
            if sliding_window is not None and group.longest > sliding_window:
                position = torch.arange(group.longest, device=device)
                distance = (position[:, None] - position).abs()
                near = distance < sliding_window
                # a padded query far from every key attends to itself, not to nothing (NaN)
                mask = near if mask is None else (near & mask) | (distance == 0)
            zero = torch.zeros((), dtype=dtype, device=device)
            return None if mask is None else torch.where(mask, zero, -torch.inf)

        return self.cached((id(group), sliding_window, dtype), make)

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """The value under a key, made once for all layers."""
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # which cannot trace the cache
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


class RowOrder(NamedTuple):
    """The permutation between rows of tokens [T * A] and padded rows of groups [G * A].

    Rows of a group are ordered as [size, A, L], or as [A, size, L] with heads first.
    """

    sources: Tensor  # the token row of each group row [G * A]; that of its first token for padding
    targets: Tensor  # the same [G * A]; T * A for padding
    positions: Tensor  # the group row of each token row [T * A]
    num_heads: int
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, layout: PackedLayout, num_heads: int, heads_first: bool) -> RowOrder:
        """Compute the order for a layout and A heads."""
        axis = 0 if heads_first else 1  # of the heads
        sources, targets, total = [], [], num_heads * layout.num_tokens
        for group in layout.groups:
            heads = torch.arange(num_heads, device=group.tokens.device)
            heads = heads.view((num_heads, 1, 1) if heads_first else (num_heads, 1))
            rows = group.tokens.unsqueeze(axis) * num_heads + heads
            sources.append(rows.flatten())
            targets.append(rows.where(group.valid.unsqueeze(axis), total).flatten())
        source, target = torch.cat(sources), torch.cat(targets)
        numbers = torch.arange(len(source), device=source.device)
        positions = source.new_empty(total + 1).scatter_(0, target, numbers)[:-1]
        index = all_to_device([source, target, positions], layout.cu_seqlens.device)
        return cls(index[0], index[1], index[2], num_heads, layout.groups)

    def split(self, *tensors: Tensor) -> Iterator[tuple[Group, list[Tensor]]]:
        """Yield each group with its rows of tensors [G * A, D], as matrices [size * A, L, D]."""
        sizes = [group.size * group.longest * self.num_heads for group in self.groups]
        columns = (torch.split(tensor, sizes) for tensor in tensors)
        for group, *rows in zip(self.groups, *columns, strict=True):
            yield group, [row.view(-1, group.longest, row.shape[1]) for row in rows]

    def to_groups(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Copy rows of tokens [T, A, D] to rows of groups [G * A, D]."""
        flat = [row.flatten(0, 1) for row in rows]
        copies: tuple[Tensor, ...] = _Take.apply(self.sources, self.positions, *flat)  # type: ignore[no-untyped-call]
        return copies

    def to_tokens(self, parts: Sequence[Tensor]) -> Tensor:
        """Copy the rows of each group, [G * A, D] together, to rows of tokens [T * A, D]."""
        rows = parts[0] if len(parts) == 1 else torch.cat(list(parts))  # which would copy one, too
        (copies,) = _Take.apply(self.positions, self.targets, rows)  # type: ignore[no-untyped-call]
        return copies  # type: ignore[no-any-return]


class _Take(torch.autograd.Function):
    """Takes rows, and takes their gradients back: a CPU would add them up one by one.

    Rows of padding have no gradient, since no token attends to them.
    """

    @staticmethod
    def forward(context: Any, index: Tensor, back: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        context.back = back
        context.to_padding = len(back) > len(index)
        return tuple([row.index_select(0, index) for row in rows])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if context.to_padding:
            gradients = tuple([functional.pad(rows, (0, 0, 0, 1)) for rows in gradients])
        return None, None, *[rows.index_select(0, context.back) for rows in gradients]


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
    """Append a filler sequence, so that T becomes a multiple of ``TOKEN_MULTIPLE``, or of T / 32.

    Words and targets stay as they are. ``max_length`` is the number of positions of the model.
    """
    num_tokens = len(batch.input_ids)
    multiple = max(TOKEN_MULTIPLE, num_tokens // 32 & -TOKEN_MULTIPLE)
    filler = -num_tokens % (multiple if max_length is None else min(multiple, max_length))
    if not filler:
        return batch
    return with_fillers(batch, RowShape(num_tokens + filler, len(batch.lengths) + 1, filler))
