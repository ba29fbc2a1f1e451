"""The order of an epoch, the shard of each process, micro-batches, and packed batches.

All functions are pure, so every process can compute the results of any other.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from finetune.preprocessing.encodings import FlatSequences
from finetune.types import Batch, TokenSequence, UserError


def epoch_order(num_examples: int, seed: int, epoch: int, copies: Tensor | None = None) -> Tensor:
    """Draw a random permutation of the examples [E], the same on every process and machine.

    ``copies`` [E] gives the expected number of copies of each example; their sum is the number of
    examples. Each number is rounded up or down at random (systematic sampling; Madow 1949).
    """
    digest = hashlib.sha256(f"order/{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    order = torch.randperm(num_examples, generator=generator)
    if copies is None:
        return order
    start = torch.rand((), generator=generator, dtype=torch.float64)
    ends = copies[order].cumsum(0)
    ends[-1:] = num_examples  # which rounding may miss
    drawn = order[torch.searchsorted(ends, torch.arange(num_examples) + start)]
    return drawn[torch.randperm(num_examples, generator=generator)]


def balanced_copies(classes: Sequence[Collection[str]]) -> Tensor:
    """Compute the expected copies of each example in an epoch of balanced sampling: float64 [E].

    All classes get the same share. An example of several classes counts for its rarest class
    (repeat factors; Gupta, Dollár & Girshick, 2019). No class counts as a class.

    >>> balanced_copies([["a"], ["a"], ["a"], ["b"]])
    tensor([0.6667, 0.6667, 0.6667, 2.0000], dtype=torch.float64)
    """
    counts = Counter(name for names in classes for name in set(names) or {""})
    weights = [1 / min(counts[name] for name in set(names) or {""}) for names in classes]
    total = math.fsum(weights)
    return torch.tensor([len(classes) * weight / total for weight in weights], dtype=torch.float64)


def process_shard(
    examples: Sequence[int],
    rank: int,
    world_size: int,
    lengths: Sequence[int] | Mapping[int, int] | np.ndarray,
) -> list[int]:
    """The examples of an optimizer batch that one process computes, in the batch's order.

    ``lengths[example]`` is the number of tokens of an example. The longest examples are assigned
    first, each to the process with the fewest tokens yet (Graham 1969: the largest shard has at
    most 4/3 of the tokens of the best assignment). A shard may be empty.
    """
    if world_size == 1:
        return list(examples)
    tokens = [0] * world_size
    shard = []
    sizes = [int(lengths[example]) for example in examples]
    for index in sorted(range(len(examples)), key=lambda i: (-sizes[i], i)):
        lightest = tokens.index(min(tokens))
        tokens[lightest] += sizes[index]
        if lightest == rank:
            shard.append(index)
    return [examples[index] for index in sorted(shard)]


def micro_batches(
    encodings: Iterable[TokenSequence], max_tokens: int, *, together: bool = False
) -> list[FlatSequences]:
    """Sort sequences by length, and cut them into groups.

    A group has at most ``max_tokens`` tokens, or is one longer sequence. Sequences of similar
    length share attention calls, and need little padding if a model must be padded. With
    ``together``, all sequences of an example are in one group: a group is then sorted by the
    lengths of whole examples, and may be one longer example.
    """
    encodings = FlatSequences.of(encodings)
    examples = encodings.example if together else None
    return [encodings.take(rows) for rows in grouped(encodings.lengths, max_tokens, examples)]


def grouped(
    lengths: np.ndarray, max_tokens: int, examples: np.ndarray | None = None
) -> list[np.ndarray]:
    """The rows of each group of ``micro_batches`` from the lengths [N] of the sequences.

    ``examples`` [N] are the examples whose sequences are kept together.
    """
    if examples is not None:
        _, example = np.unique(examples, return_inverse=True)
        sizes = np.bincount(example, weights=lengths).astype(np.int64)
        sequences = np.split(np.argsort(example, kind="stable"), np.bincount(example).cumsum()[:-1])
        return [
            np.concatenate([sequences[number] for number in group])
            for group in grouped(sizes, max_tokens)
        ]
    order = np.argsort(lengths, kind="stable")
    tokens = np.cumsum(lengths[order])
    groups, start, before = [], 0, 0
    while start < len(order):
        fitting = int(np.searchsorted(tokens, before + max_tokens, side="right"))
        end = max(fitting, start + 1)
        groups.append(order[start:end])
        start, before = end, int(tokens[end - 1])
    return groups


def pass_seed(seed: int, step: int, rank: int = 0, number: int = 0) -> int:
    """The seed of the random numbers of a process in a micro-batch of a step."""
    name = f"pass/{seed}/{step}/{rank}/{number}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def pack(
    encodings: Iterable[TokenSequence],
    targets: Mapping[str, Tensor] | None = None,
    seed: int | None = None,
) -> Batch:
    """Pack N >= 1 sequences end to end into one row of T tokens, in the given order, on the CPU.

    Args:
        encodings: The sequences.
        targets: The targets of the batch (``Task.collate``).
        seed: The seed of the random numbers of training (``pass_seed``).

    Examples:
        >>> pack([TokenSequence(0, [101, 7592, 102])]).lengths
        (3,)
    """
    encodings = FlatSequences.of(encodings)
    ids, bounds = encodings.ids
    lengths = encodings.lengths
    if not len(lengths) or lengths.min() == 0:
        raise UserError("a batch needs at least one sequence, and every sequence a token")
    types = encodings.token_type_ids
    # the word starts of a sequence, and the end of its last word, as rows of the batch
    counts, num_words = encodings.words.counts, encodings.num_words
    starts = encodings.words.values + np.repeat(bounds[:-1], counts)
    is_word = np.ones(len(starts), dtype=bool)
    is_word[encodings.words.offsets[1:][counts > 0] - 1] = False
    return Batch(
        input_ids=torch.from_numpy(ids.astype(np.int64)),
        position_ids=torch.from_numpy(np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)),
        token_type_ids=None if types is None else torch.from_numpy(types.values.astype(np.int64)),
        cu_seqlens=torch.from_numpy(bounds.astype(np.int32)),
        words=torch.from_numpy(starts[is_word]),
        word_lengths=torch.from_numpy(np.diff(starts, append=0)[is_word]),
        words_cu=torch.from_numpy(np.concatenate(([0], np.cumsum(num_words)))),
        lengths=tuple(lengths.tolist()),
        example=tuple(encodings.example.tolist()),
        window=tuple(encodings.window.tolist()),
        num_words=tuple(num_words.tolist()),
        targets=dict(targets or {}),
        seed=seed,
    )
