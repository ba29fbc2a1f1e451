"""Flat arrays hold what lists of sequences held, and are taken apart and joined without loss."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.preprocessing.batching import grouped
from finetune.preprocessing.encodings import (
    EncodedExamples,
    FlatSequences,
    Ragged,
    load_encoded,
)
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
