"""Batching changes which examples meet in a forward pass, and nothing else."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
import torch

from finetune.preprocessing.batching import (
    balanced_copies,
    epoch_order,
    pack,
    process_shard,
)
from finetune.types import TokenSequence


def encodings(seed: int, number: int = 30) -> list[TokenSequence]:
    chance = random.Random(seed)
    made = []
    for example in range(number):
        length = chance.randint(2, 40)
        starts = sorted(chance.sample(range(1, length + 1), min(length, chance.randint(2, 6))))
        ids = [chance.randint(5, 90) for _ in range(length)]
        made.append(TokenSequence(example, ids, None, starts if chance.random() < 0.9 else []))
    return made


def test_epoch_order_is_a_fixed_permutation() -> None:
    order = epoch_order(1000, seed=3, epoch=2).tolist()
    assert sorted(order) == list(range(1000))
    assert order == epoch_order(1000, 3, 2).tolist()
    others = [epoch_order(1000, *pair).tolist() for pair in ((3, 1), (2, 3), (4, 2))]
    assert all(order != other for other in others)
    torch.manual_seed(9)
    before = torch.random.get_rng_state()
    epoch_order(10, 0, 0)
    assert torch.equal(before, torch.random.get_rng_state())
    assert epoch_order(0, 0, 0).tolist() == []


def test_balanced_sampling_draws_classes_equally_often() -> None:
    classes = [["a"]] * 700 + [["b"]] * 200 + [["c"]] * 90 + [[]] * 10
    counts = np.array([700, 200, 90, 10])
    shares, expected = balanced_copies(classes), np.full(4, 1 / 4)
    drawn = np.stack([epoch_order(1000, 3, epoch, shares) for epoch in range(20)])
    found = np.bincount(np.digitize(drawn.ravel(), counts.cumsum()), minlength=4) / drawn.size
    assert np.all(abs(found - expected) <= 3 * np.sqrt(expected * (1 - expected) / drawn.size))
    for order in drawn:  # each example as often as expected, rounded up or down
        copies = np.bincount(order, minlength=1000)
        assert np.all(abs(copies - shares.numpy()) < 1)
    assert epoch_order(1000, 3, 0, shares).tolist() == drawn[0].tolist() != drawn[1].tolist()


def test_an_example_of_several_classes_is_drawn_as_its_rarest() -> None:
    shares = balanced_copies([["a"], ["a"], ["a", "b"], ["a"]])
    assert shares[2] == pytest.approx(4 * shares[0]) and sum(shares) == pytest.approx(4)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_shares_make_up_the_batch(world_size: int) -> None:
    chance = random.Random(world_size)
    lengths = [chance.randint(1, 200) for _ in range(50)]
    batch = chance.sample(range(50), 21)
    shards = [process_shard(batch, rank, world_size, lengths) for rank in range(world_size)]
    assert sorted(chain.from_iterable(shards)) == sorted(batch)
    tokens = [sum(lengths[example] for example in part) for part in shards]
    assert max(tokens) - min(tokens) <= max(lengths)
    assert [process_shard([7], rank, 3, lengths) for rank in range(3)] == [[7], [], []]


@pytest.mark.parametrize("seed", range(5))
def test_pack_lays_sequences_end_to_end(seed: int) -> None:
    made = encodings(seed)
    batch = pack(made, {"label": torch.arange(30)})
    assert batch.input_ids.tolist() == [i for e in made for i in e.input_ids]
    assert batch.position_ids.tolist() == [p for e in made for p in range(len(e.input_ids))]
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.cu_seqlens.diff().tolist() == list(batch.lengths)
    assert batch.token_type_ids is None
    words, sizes = [], []
    for encoding, offset in zip(made, batch.cu_seqlens.tolist(), strict=False):
        starts = encoding.word_starts
        words += [offset + start for start in starts[:-1]]
        sizes += [end - start for start, end in zip(starts, starts[1:], strict=False)]
    assert (batch.words.tolist(), batch.word_lengths.tolist()) == (words, sizes)
    assert batch.words_cu.diff().tolist() == list(batch.num_words)
    assert batch.num_words == tuple(e.num_words for e in made)
    assert batch.targets["label"].tolist() == list(range(30))


def test_pack_without_words_and_with_segments() -> None:
    batch = pack([TokenSequence(4, [2, 5, 3], [0, 0, 1]), TokenSequence(9, [2, 3])])
    assert batch.token_type_ids.tolist() == [0, 0, 1, 0, 0]
    assert batch.words.tolist() == batch.word_lengths.tolist() == []
    assert batch.words_cu.tolist() == [0, 0, 0]
    assert (batch.example, batch.max_seqlen) == ((4, 9), 3)
    with pytest.raises(ValueError, match="at least one"):
        pack([])
