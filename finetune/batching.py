"""From an epoch's order to micro-batches: which examples meet in a step, and in which forward pass.

``batch_size`` examples make an optimizer batch, as papers count it; ``max_tokens`` only cuts that
batch into forward passes and never changes a result. Everything here is a pure function of its
arguments, so that any process at any time can compute what any other process does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from finetune.types import Batch, Encoding


def epoch_order(num_examples: int, seed: int, epoch: int) -> list[int]:
    """A random permutation of ``range(num_examples)``, the same on every process and machine."""
    digest = hashlib.sha256(f"order/{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randperm(num_examples, generator=generator).tolist()


def share(
    examples: Sequence[int], rank: int, world_size: int, lengths: Sequence[int] | Mapping[int, int]
) -> list[int]:
    """The examples of an optimizer batch that one process computes, in the batch's order.

    ``lengths[example]`` is an example's number of tokens. The shares of all ranks are disjoint and
    make up the batch. Longest first, each example goes to the process with the fewest tokens so
    far (Graham 1969: at most 4/3 of the best possible longest share). A share may be empty.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in 0..{world_size - 1}")
    tokens = [0] * world_size
    mine = []
    for place in sorted(range(len(examples)), key=lambda i: (-lengths[examples[i]], i)):
        lightest = tokens.index(min(tokens))
        tokens[lightest] += lengths[examples[place]]
        if lightest == rank:
            mine.append(place)
    return [examples[place] for place in sorted(mine)]


def micro_batches(encodings: Sequence[Encoding], max_tokens: int) -> list[list[Encoding]]:
    """Sequences sorted by length (ties keep their order) and cut so that a group's lengths sum
    to at most ``max_tokens``.

    A sequence that is longer by itself makes a group of its own. Serves training and prediction
    alike: sorted sequences share attention calls, and pad little where a model must be padded.
    """
    groups: list[list[Encoding]] = []
    tokens = 0
    for encoding in sorted(encodings, key=lambda encoding: len(encoding.input_ids)):
        length = len(encoding.input_ids)
        if not groups or tokens + length > max_tokens:
            groups.append([])
            tokens = 0
        groups[-1].append(encoding)
        tokens += length
    return groups


def pack(encodings: Sequence[Encoding], targets: Mapping[str, Tensor] | None = None) -> Batch:
    """Lay N >= 1 sequences end to end in one row of T tokens, in the given order, on the CPU.

    ``targets`` belong to the same sequences in the same order and are taken as they are.
    """
    lengths = [len(encoding.input_ids) for encoding in encodings]
    if not lengths or min(lengths) == 0:
        raise ValueError("a batch needs at least one sequence, and every sequence a token")
    cu_seqlens = _boundaries(lengths)  # [N+1]
    num_tokens = sum(lengths)
    starts = torch.repeat_interleave(cu_seqlens[:-1], torch.tensor(lengths), output_size=num_tokens)
    words, word_lengths = _word_rows(encodings, cu_seqlens)
    num_words = tuple(encoding.num_words for encoding in encodings)
    return Batch(
        input_ids=_joined([encoding.input_ids for encoding in encodings]),
        position_ids=torch.arange(num_tokens) - starts,
        segment_ids=_segment_row(encodings),
        cu_seqlens=cu_seqlens.int(),
        words=words,
        word_lengths=word_lengths,
        words_cu=_boundaries(num_words),
        lengths=tuple(lengths),
        example=tuple(encoding.example for encoding in encodings),
        first_word=tuple(encoding.first_word for encoding in encodings),
        num_words=num_words,
        targets=dict(targets or {}),
    )


def _word_rows(encodings: Sequence[Encoding], cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Row of each word's first piece and its number of pieces, both [W]."""
    counts = torch.tensor([len(encoding.word_starts) for encoding in encodings])
    offsets = torch.repeat_interleave(cu_seqlens[:-1], counts)
    starts = _joined([encoding.word_starts for encoding in encodings]) + offsets
    inner = torch.ones(len(starts), dtype=torch.bool)
    inner[counts[counts > 0].cumsum(0) - 1] = False  # the last entry of a sequence ends a word
    return starts[inner], starts.diff()[inner[:-1]]


def _segment_row(encodings: Sequence[Encoding]) -> Tensor | None:
    """Segment ids [T], zero for sequences without any; None where no sequence has them."""
    if all(encoding.segment_ids is None for encoding in encodings):
        return None
    return _joined([e.segment_ids or [0] * len(e.input_ids) for e in encodings])


def _joined(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.long)


def _boundaries(sizes: Sequence[int]) -> Tensor:
    """Cumulative sizes with a leading 0: [len(sizes) + 1]."""
    return torch.nn.functional.pad(torch.tensor(sizes, dtype=torch.long).cumsum(0), (1, 0))
