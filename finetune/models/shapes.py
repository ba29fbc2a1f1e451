"""Packed rows of few sizes: fillers bring a row to one of the shapes that a run chooses.

On CUDA a row always has one of these shapes, with a CUDA graph or without. So both ways launch the
same kernels on the same sizes, and dropout takes the same random numbers: attention draws by the
number of sequences, other layers by the number of tokens. Fillers are sequences, as the kernel of
attention writes no row outside of a sequence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from finetune.types import Batch

NUM_SIZES = 8
"""Most sizes of T of a run: fillers are then 1 to 4 % of its tokens."""
MULTIPLE = 32
"""Sizes of T are multiples of this."""


class RowShape(NamedTuple):
    """The T and N of a packed row, and the longest length that a sequence has or may have."""

    num_tokens: int
    num_sequences: int
    longest: int

    @classmethod
    def of(cls, batch: Batch) -> RowShape:
        """The shape of a batch."""
        return cls(len(batch.input_ids), len(batch.lengths), batch.max_seqlen)


@dataclass(frozen=True)
class RowShapes:
    """Shapes that differ in T alone, which hold the batches of a run.

    Args:
        sizes: The sizes of T, ascending.
        num_sequences: N, with the sequences that fill.
        longest: The longest length of a sequence.
    """

    sizes: tuple[int, ...]
    num_sequences: int
    longest: int

    @classmethod
    def of(cls, rows: Sequence[RowShape], num_sizes: int = NUM_SIZES) -> RowShapes:
        """Choose the sizes that hold the rows of a run with the fewest filling tokens."""
        tokens, sequences, lengths = (np.array(column) for column in zip(*rows, strict=True))
        sizes, longest = best_sizes(tokens, num_sizes), int(lengths.max())
        gaps = np.diff([min(sizes[0], int(tokens.min())), *sizes])
        return cls(sizes, int(sequences.max() + -(-gaps.max() // longest)), longest)

    def shape_of(self, row: RowShape) -> RowShape | None:
        """The smallest shape that holds a row; None if none does."""
        size = next((size for size in self.sizes if size >= row.num_tokens), None)
        if size is None or row.longest > self.longest:
            return None
        most = (self.num_sequences - row.num_sequences) * self.longest
        held = most >= size - row.num_tokens
        return RowShape(size, self.num_sequences, self.longest) if held else None

    def suits(self, rows: Sequence[RowShape], best: RowShapes) -> bool:
        """Whether rows have at most 5 % more fillers than in the ``best`` shapes for them."""
        more = 0.05 * sum(row.num_tokens for row in rows)
        return self._num_tokens(rows) <= best._num_tokens(rows) + more

    def _num_tokens(self, rows: Sequence[RowShape]) -> float:
        shapes = [self.shape_of(row) for row in rows]
        return sum(math.inf if shape is None else shape.num_tokens for shape in shapes)

    def with_room(self, max_length: int | None) -> RowShapes:
        """Shapes for more sequences, and longer ones up to the ``max_length`` of the model."""
        number, longest = (1 << (n - 1).bit_length() for n in (self.num_sequences, self.longest))
        return RowShapes(self.sizes, number, min(longest, max_length or longest))


def best_sizes(tokens: np.ndarray, num_sizes: int) -> tuple[int, ...]:
    """Find at most ``num_sizes`` multiples that hold all numbers of tokens [B].

    Dynamic programming finds those with the least sum of sizes over all rows.
    """
    sizes, counts = np.unique(-(-tokens // MULTIPLE) * MULTIPLE, return_counts=True)
    before = np.concatenate([[0], counts.cumsum()])  # the number of rows below each size
    costs = np.full(len(sizes) + 1, np.inf)
    costs[0] = 0
    choices = []
    for _ in range(min(num_sizes, len(sizes))):
        # the rows from `start` on have the size `end`
        totals = costs[:-1, None] + sizes * (before[1:] - before[:-1, None])
        totals[np.tril_indices(len(sizes), -1)] = np.inf
        choices.append(totals.argmin(0))
        costs = np.concatenate([[0], totals.min(0)])
    chosen, end = [], len(sizes)
    for starts in reversed(choices):
        if end:
            chosen.append(int(sizes[end - 1]))
            end = int(starts[end - 1])
    return tuple(sorted(chosen))


def with_fillers(batch: Batch, shape: RowShape) -> Batch:
    """Append filler sequences up to a shape, and empty ones after them; words stay as they are."""
    num_tokens, device = len(batch.input_ids), batch.input_ids.device
    filler, number = shape.num_tokens - num_tokens, shape.num_sequences - len(batch.lengths)
    ends = [min(shape.longest * multiple, filler) for multiple in range(number + 1)]
    steps = shape.longest * torch.arange(1, number + 1, dtype=torch.int32, device=device)
    positions = torch.arange(filler, device=device) % shape.longest
    token_type_ids = batch.token_type_ids
    return dataclasses.replace(
        batch,
        input_ids=torch.cat([batch.input_ids, batch.input_ids[-1:].expand(filler)]),
        position_ids=torch.cat([batch.position_ids, positions]),
        token_type_ids=None if token_type_ids is None else pad(token_type_ids, (0, filler)),
        cu_seqlens=torch.cat([batch.cu_seqlens, (steps + num_tokens).clamp(max=shape.num_tokens)]),
        lengths=(*batch.lengths, *np.diff(ends).tolist()),
    )
