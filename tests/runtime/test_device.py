"""What runs on a device: its precision, and copies, to a GPU one of all tensors of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from finetune.preprocessing.batching import pack
from finetune.runtime import device as device_module
from finetune.runtime.device import autocast, batch_to_device, batches_to_device, loss_scaler
from finetune.types import TENSORS, Batch, TokenSequence

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def batch() -> Batch:
    rows = [
        TokenSequence(0, [2, 7, 8, 9, 3], [0, 0, 1, 1, 1], [1, 3, 4]),
        TokenSequence(1, [2, 7, 3], [0] * 3, [1, 2]),
    ]
    targets = {"label": torch.tensor([1, 0]), "half": torch.ones(3).half(), "none": torch.ones(0)}
    return pack(rows, targets)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of pinned buffers; without a GPU there is no memory to pin."""
    seen: list[int] = []

    def buffer(size: int) -> Tensor:
        seen.append(size)
        return torch.zeros(size, dtype=torch.uint8)

    monkeypatch.setattr(device_module, "pinned_buffer", buffer)
    return seen


class _NotMoved(Tensor):
    """A buffer that stays on the CPU, so that its parts can be read."""

    def to(self, device: torch.device, non_blocking: bool) -> Tensor:  # type: ignore[override]
        assert device == GPU and non_blocking
        return self.as_subclass(Tensor).clone()


def tensors(batch: Batch) -> dict[str, Tensor]:
    own = {name: getattr(batch, name) for name in TENSORS}
    return {**own, **batch.targets}


def test_on_the_cpu_nothing_is_copied(batch: Batch, pinned: list[int]) -> None:
    found = batch_to_device(batch, CPU)
    assert all(value is tensors(batch)[name] for name, value in tensors(found).items())
    assert found.host is None and not pinned


def test_a_batch_goes_to_a_gpu_in_one_copy(batch: Batch, pinned: list[int]) -> None:
    batch = replace(batch, num_subwords=4)  # which a fake mode cannot sum
    with FakeTensorMode(allow_non_fake_inputs=True):
        there = batch_to_device(batch, GPU)
        again = batch_to_device(there, GPU)
    assert len(pinned) == 1 and there.host is batch and again.host is batch
    for name, before in tensors(batch).items():
        after = tensors(again)[name]
        assert (after.device, after.dtype, after.shape) == (GPU, before.dtype, before.shape)


def test_the_buffer_has_the_values_of_all_tensors(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = torch.zeros
    monkeypatch.setattr(
        device_module,
        "pinned_buffer",
        lambda size: empty(size, dtype=torch.uint8).as_subclass(_NotMoved),
    )
    before = [value for value in tensors(batch).values() if value.numel()]
    after = device_module.all_to_device(before, GPU)
    assert all(map(torch.equal, before, after))
    assert all(value.storage_offset() * value.element_size() % 16 == 0 for value in after)


def test_subwords_are_counted_before_the_copy(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "all_to_device", lambda values, device: values)
    assert (batch.num_subwords, batch_to_device(batch, GPU).num_subwords) == (None, 4)


def test_a_batch_is_copied_before_the_last_one_is_used(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    monkeypatch.setattr(
        device_module, "batch_to_device", lambda number, device: copied.append(number) or number
    )
    used: Iterator = batches_to_device([0, 1, 2], CPU)  # type: ignore[list-item]
    assert [(next(used), len(copied)) for _ in range(3)] == [(0, 2), (1, 3), (2, 3)]
    assert not list(used) and not list(batches_to_device([], CPU))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_matrix_products_have_the_type(precision: str, dtype: torch.dtype):
    with autocast(precision, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    with autocast("fp32", CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_only_float16_scales_the_loss():
    assert loss_scaler("fp16", CPU).scale(torch.ones(())).item() == 1024
    for precision in ("bf16", "fp32"):
        scaler = loss_scaler(precision, CPU)
        assert scaler.scale(torch.ones(())).item() == 1 and scaler.state_dict() == {}
