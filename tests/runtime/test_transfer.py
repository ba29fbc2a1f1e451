"""Copies to a device: all tensors of a batch, through pinned memory to a GPU."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from finetune.preprocessing.batching import pack
from finetune.runtime import transfer
from finetune.runtime.transfer import batch_to_device, to_device
from finetune.types import TENSORS, Batch, Encoding

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def batch() -> Batch:
    rows = [
        Encoding(0, [2, 7, 8, 9, 3], [0, 0, 1, 1, 1], [1, 3, 4]),
        Encoding(1, [2, 7, 3], [0] * 3, [1, 2]),
    ]
    return pack(rows, {"label": torch.tensor([1, 0])})


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The tensors that are pinned; without a GPU there is no memory to pin."""
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(transfer, "pinned", lambda value, device: seen.append(value) or value)
    return seen


def test_on_the_cpu_nothing_is_copied(batch: Batch, pinned: list[torch.Tensor]) -> None:
    found = batch_to_device(batch, CPU)
    assert all(getattr(found, name) is getattr(batch, name) for name in TENSORS)
    assert found.targets["label"] is batch.targets["label"] and not pinned


def test_all_tensors_go_to_a_gpu_through_pinned_memory(
    batch: Batch, pinned: list[torch.Tensor]
) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        there = batch.each(mode.from_tensor).each(lambda value: to_device(value, GPU))
        again = there.each(lambda value: to_device(value, GPU))
    assert len(pinned) == len(TENSORS) + 1, "and none of them twice"
    for name in TENSORS:
        before, after = getattr(batch, name), getattr(again, name)
        assert (after.device, after.dtype, after.shape) == (GPU, before.dtype, before.shape)
    assert there.targets["label"].device == GPU


def test_subwords_are_counted_before_the_copy(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "to_device", lambda value, device: value)
    assert (batch.num_subwords, batch_to_device(batch, GPU).num_subwords) == (None, 4)
