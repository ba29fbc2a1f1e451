"""Flat arrays hold what lists of sequences held, taken apart and joined without loss.

Orders, shards and batches change which examples meet in a forward pass, and nothing else.
"""

from __future__ import annotations

import random
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from finetune.preprocessing.batching import (
    balanced_copies,
    epoch_order,
    grouped,
    pack,
    process_shard,
)
from finetune.preprocessing.encodings import EncodedExamples, FlatSequences, Ragged, load_encoded
from finetune.types import TokenSequence

NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)
IDS = st.lists(st.integers(0, 300_000), min_size=1, max_size=8)


@st.composite
def encoding(draw: st.DrawFn) -> TokenSequence:
    ids = draw(IDS)
    segments = draw(st.none() | st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))
    words = draw(st.lists(st.integers(0, 500), max_size=4))
    target = {"tag": draw(NUMBERS), "share": [draw(st.floats(0, 1, width=32))]}
    return TokenSequence(
        draw(st.integers(0, 99)), ids, segments, words, draw(st.integers(0, 9)), target
    )


def same(found: TokenSequence, expected: TokenSequence) -> None:
    for name in ("example", "input_ids", "word_starts", "window", "target"):
        assert getattr(found, name) == getattr(expected, name), name
    nothing = [0] * len(expected.input_ids)
    assert (found.token_type_ids or nothing) == (expected.token_type_ids or nothing)


EXAMPLES = st.lists(st.lists(encoding(), min_size=1, max_size=3), max_size=5)


@given(EXAMPLES, EXAMPLES, st.booleans())
def test_what_goes_in_comes_out(
    first: list[list[TokenSequence]], second: list[list[TokenSequence]], in_files: bool
) -> None:
    expected = [*first, *second]
    with tempfile.TemporaryDirectory() as folder:
        parts = [EncodedExamples.of(part) for part in (first, second) if part]
        encoded = EncodedExamples.joined(parts, Path(folder) if in_files else None)
        check_same(encoded, expected)
        if in_files:
            check_same(load_encoded(Path(folder)), expected)


def check_same(encoded: EncodedExamples, expected: list[list[TokenSequence]]) -> None:
    assert len(encoded) == len(expected)
    assert encoded.num_windows.tolist() == [len(windows) for windows in expected]
    tokens = [sum(len(window.input_ids) for window in windows) for windows in expected]
    assert encoded.lengths.tolist() == tokens
    for windows, made in zip(encoded, expected, strict=True):
        for found, one in zip(windows, made, strict=True):
            same(found, one)


@given(st.lists(encoding(), min_size=1, max_size=6), st.data())
def test_taking_some(made: list[TokenSequence], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=8))
    taken = FlatSequences.of(made).take(np.array(rows, dtype=np.int64))
    assert len(taken) == len(rows)
    for found, row in zip(taken, rows, strict=True):
        same(found, made[row])
    assert taken.num_words.tolist() == [made[row].num_words for row in rows]


def test_a_missing_target_leaves_no_targets() -> None:
    known = TokenSequence(0, [1], target={"label": [2]})
    assert FlatSequences.of([known, known]).targets["label"].values.tolist() == [2, 2]
    assert FlatSequences.of([known, TokenSequence(1, [1])]).targets is None
    parts = [EncodedExamples.of([[known]]), EncodedExamples.of([[TokenSequence(1, [1])]])]
    assert EncodedExamples.joined(parts).sequences.targets is None


def test_types_are_known_before_the_values() -> None:
    rows = [[[65_535]], [[-1, 65_536]], [[0.5]], [[True]], [[]]]
    kinds = [np.int32, np.int32, np.float32, np.bool_, np.int32]
    assert [Ragged.of(row).values.dtype for row in rows] == kinds
    short = np.dtype(np.uint16)
    made = FlatSequences.of([TokenSequence(0, [7], None, [0, 1])], short)
    assert (made.ids.values.dtype, made.words.values.dtype) == (short, np.int32)
    with pytest.raises(OverflowError):
        Ragged.of([[65_536]], short)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_groups_are_as_full_as_can_be(lengths: list[int], most: int) -> None:
    groups = [group.tolist() for group in grouped(np.array(lengths, dtype=np.int64), most)]
    rows = [row for group in groups for row in group]
    assert rows == sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    sizes = [sum(lengths[row] for row in group) for group in groups]
    assert all(size <= most or len(group) == 1 for size, group in zip(sizes, groups, strict=True))
    for size, following in zip(sizes, groups[1:], strict=False):
        assert size + lengths[following[0]] > most


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
