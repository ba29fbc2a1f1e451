"""Batches of a few fixed shapes, in tensors that stay where they are: what a captured step reads.

A CUDA graph is a recording of kernels with their shapes and addresses. So the T tokens of a batch
are rounded up to one of a few sizes, by one more sequence at the end, which is real (the attention
kernel writes no rows that belong to no sequence) and carries no loss. Sequences are rounded up to
whole batches by empty ones in front of it, and words to as many as there are tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from finetune.runtime.transfer import staged
from finetune.types import TENSORS, Batch

FEWEST, MOST = 64, 256
"""Bounds of what T is rounded up to a multiple of; between them it is about a sixteenth of T."""
LONGEST = 128
"""The least bound on the length of sequences: shorter ones take the kernel no less."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a recording is for: ``tokens`` T, ``sequences`` N and ``words`` W of its batches, the
    bound ``longest`` on their lengths, and whether they have segment ids."""

    tokens: int
    longest: int
    sequences: int
    words: int
    segments: bool

    @classmethod
    def of(cls, batch: Batch, batch_size: int, max_length: int | None = None) -> Shape:
        """The shape that a batch is brought to: the next one with room for a token more.

        ``batch_size`` is the usual number of sequences; ``max_length`` that of positions (of
        tokens in a sequence) that the model has.
        """
        least = len(batch.input_ids) + 1
        multiple = min(max(FEWEST, _power(least) // 16), MOST, _power(max_length or MOST))
        tokens = -(-least // multiple) * multiple
        longest = max(batch.max_seqlen, tokens - least + 1)
        return cls(
            tokens=tokens,
            longest=max(LONGEST, 2 ** (longest - 1).bit_length()),
            sequences=-(-len(batch.lengths) // batch_size) * batch_size + 1,
            words=tokens if len(batch.words) else 0,
            segments=batch.segment_ids is not None,
        )


def _power(number: int) -> int:
    """The largest power of two that is not above a number."""
    return 2 ** (number.bit_length() - 1)


def padded(
    batch: Batch, shape: Shape, *, pad_id: int, padding: Mapping[str, float], of_words: bool
) -> Batch:
    """A batch on the CPU brought to its shape; the first rows of everything are its own.

    ``padding`` has a value for each of its targets, which are ``of_words`` or of sequences; with
    these values, what is added takes no part in loss, count and gradients.
    """
    num_tokens, num_words, num_sequences = (
        len(rows) for rows in (batch.input_ids, batch.words, batch.lengths)
    )
    tail, more_words = shape.tokens - num_tokens, shape.words - num_words
    empty = shape.sequences - num_sequences - 1
    assert tail > 0 and more_words >= 0 and empty >= 0, "the shape is too small for the batch"
    more = more_words if of_words else empty + 1
    segments = batch.segment_ids
    return Batch(
        input_ids=pad(batch.input_ids, (0, tail), value=pad_id),
        position_ids=torch.cat([batch.position_ids, torch.arange(tail)]),
        segment_ids=None if segments is None else pad(segments, (0, tail)),
        cu_seqlens=_bounds(batch.cu_seqlens, empty, shape.tokens),
        words=pad(batch.words, (0, more_words), value=num_tokens),
        word_lengths=pad(batch.word_lengths, (0, more_words), value=1),
        words_cu=_bounds(batch.words_cu, empty, shape.words),
        lengths=(*batch.lengths, *[0] * empty, tail),
        example=(*batch.example, *[-1] * (empty + 1)),
        first_word=(*batch.first_word, *[0] * (empty + 1)),
        num_words=(*batch.num_words, *[0] * empty, more_words),
        targets={
            name: pad(value, (*[0] * (2 * value.ndim - 1), more), value=padding[name])
            for name, value in batch.targets.items()
        },
        longest=shape.longest,
    )


def _bounds(bounds: Tensor, empty: int, end: int) -> Tensor:
    """The boundaries [N+1] of sequences with empty ones behind them and one up to the end."""
    last = int(bounds[-1])
    return torch.cat([bounds, bounds.new_tensor([last] * empty + [end])])


class Buffers:
    """Tensors on the device that hold one batch of a shape after the other.

    ``batch`` are these tensors, with the lengths of the batch that they hold now.
    """

    def __init__(self, first: Batch, device: torch.device) -> None:
        """Make room for batches like the first, and put it in."""
        self.batch: Batch = first.each(lambda value: torch.empty_like(value, device=device))
        self.load(first)

    def load(self, batch: Batch) -> None:
        """Put a batch of the same shape in, whole, without waiting for the device."""
        for into, value in zip(_tensors(self.batch), _tensors(batch), strict=True):
            assert into.shape == value.shape, "batches of one shape differ in their tensors"
            into.copy_(staged(value, into.device), non_blocking=True)
        plain: dict[str, Any] = {
            name: getattr(batch, name)
            for name in ("lengths", "example", "first_word", "num_words", "longest")
        }
        self.batch = dataclasses.replace(self.batch, **plain)


def _tensors(batch: Batch) -> Iterator[Tensor]:
    """All tensors of a batch, in a fixed order."""
    yield from (value for name in TENSORS if (value := getattr(batch, name)) is not None)
    yield from (value for _, value in sorted(batch.targets.items()))
