"""Examples on disk equal examples in lists: items, views, columns, labels, and what they refuse."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest

from finetune.data import example_store
from finetune.data.collecting import collected, transformed
from finetune.data.example_store import ExampleStore, chosen, taken, with_labels
from finetune.types import Span, TextExample, TokenExample

TEXTS = [
    TextExample(i, f"text {i}", None, "abc"[i % 3] if i % 7 else None, f"f:{i}", i)
    for i in range(23)
]
WORDS = [
    TokenExample(i, ("a",) * i, (Span(0, i, "X"),) if i else (), ("B-X",) * i, f"d{i // 5}")
    for i in range(23)
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", "off")
    monkeypatch.setattr(example_store, "MOST_IN_MEMORY", 5)
    monkeypatch.setattr(example_store, "CHUNK", 4)


@pytest.mark.parametrize("examples", [TEXTS, WORDS])
def test_a_store_reads_as_its_list(examples: list) -> None:
    store = collected(iter(examples))
    assert isinstance(store, ExampleStore)
    assert list(store) == examples and len(store) == 23
    assert [store[i] for i in (0, 22, -1, 5)] == [examples[i] for i in (0, 22, -1, 5)]
    assert list(store[3:17:2]) == examples[3:17:2]
    assert list(store.column("where")) == [each.where for each in examples]
    order = np.array([20, 3, 4, 21, 0])
    assert list(store.take(order)) == [examples[i] for i in order]
    assert list(store.take(order)[1:3]) == [examples[i] for i in (3, 4)]
    assert list(store.take(order).column("id")) == order.tolist()
    assert list(taken(store, order)) == taken(examples, order)
    odd = [i % 2 == 1 for i in range(23)]
    assert list(chosen(store, odd)) == chosen(examples, odd) == examples[1::2]
    with pytest.raises(IndexError):
        store[23]


def test_labels_are_replaced_in_all_and_in_chosen_rows() -> None:
    store = collected(iter(TEXTS))
    new = [str(i) for i in range(23)]
    assert list(with_labels(store, new)) == with_labels(TEXTS, new)
    part = store.take(np.array([2, 3, 9, 10, 11]))
    assert [each.label for each in with_labels(part, "vwxyz")] == list("vwxyz")
    assert list(store) == TEXTS, "the store itself is unchanged"
    assert list(transformed(part, lambda row: replace(row, text="t"))) == [
        replace(each, text="t") for each in part
    ]


def test_the_digest_tells_apart_content_and_order_but_not_places() -> None:
    first = collected(iter(TEXTS))
    moved = collected(replace(each, where="g") for each in TEXTS)
    assert first.digest() == moved.digest()
    other = collected(replace(each, text=each.text.upper()) for each in TEXTS)
    digests = {each.digest() for each in (first, other, first[1:], first[::-1])}
    assert len(digests) == 4


def test_a_file_of_examples_runs_no_code() -> None:
    store = collected(iter(TEXTS))
    harmful = store.disk.write(pickle.dumps([os.getcwd] * 4))
    column = (harmful, *store.columns["text"][1:])
    store.columns["text"] = column
    with pytest.raises(pickle.UnpicklingError):
        list(store)
