"""Packed attention sees each sequence alone: equal to a dense block mask, in every layout."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finetune.models import attention
from finetune.models.attention import attend
from finetune.models.packing import (
    MAX_WASTE,
    TOKEN_MULTIPLE,
    PackedCall,
    PackedLayout,
    group_by_length,
    round_up,
)
from tests.covering import few

LAYER = nn.Module()


def layout_of(lengths: list[int], device: str = "cpu") -> PackedLayout:
    boundaries = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    return PackedLayout(boundaries, tuple(lengths))


def dense(rows: list[Tensor], lengths: list[int], window: int | None, scale: float) -> Tensor:
    """[1, A, T, D] three times -> [1, T, A, D], by one mask of T x T."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = owner[:, None] == owner
    if window is not None:
        workdir = torch.arange(len(owner))
        mask &= (workdir[:, None] - workdir).abs() < window
    mask = mask.to(rows[0].device)
    return F.scaled_dot_product_attention(*rows, attn_mask=mask, scale=scale).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 1, 3, 8])
@pytest.mark.parametrize("seed", range(6))
def test_equals_dense_block_mask(window: int | None, seed: int) -> None:
    chance = random.Random(seed)
    lengths = [chance.choice((1, 2, 7, 7, 8, 8, 9, 30)) for _ in range(chance.randint(1, 14))]
    if seed % 2:
        lengths.sort()
    rows = [torch.randn(1, 2, sum(lengths), 4, dtype=torch.double) for _ in range(3)]
    ours, theirs = ([row.clone().requires_grad_() for row in rows] for _ in range(2))
    out, _ = attend(
        LAYER, *ours, None, scaling=0.7, sliding_window=window, layout=layout_of(lengths)
    )
    expected = dense(theirs, lengths, window, 0.7)
    weight = torch.randn_like(expected)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-12)


def test_queries_and_keys_of_a_wider_type_than_values() -> None:
    """Rotations do that under autocast; the output has the type of the values, as in torch."""
    query, key, value = (torch.randn(1, 2, 12, 8) for _ in range(3))
    layout = layout_of([5, 7])
    mixed, _ = attend(LAYER, query, key, value.bfloat16(), None, layout=layout)
    rows = [tensor.bfloat16() for tensor in (query, key, value)]
    assert torch.equal(mixed, attend(LAYER, *rows, None, layout=layout)[0])
    assert mixed.dtype == torch.bfloat16


@pytest.mark.parametrize("multiple", [1, 16])
def test_groups_waste_little_and_cover_all(multiple: int) -> None:
    chance = random.Random(1)
    lengths = [chance.randint(1, 120) for _ in range(200)]
    groups = list(group_by_length(lengths, MAX_WASTE, multiple))
    assert sorted(chain.from_iterable(groups)) == list(range(200))
    padded = tokens = 0
    for group in groups:
        sizes = {round_up(lengths[member], multiple) for member in group}
        if len(sizes) > 1 or multiple == 1:  # else there is no smaller shape for them
            padded += max(sizes) * len(group)
            tokens += sum(lengths[member] for member in group)
    assert padded <= (1 + MAX_WASTE) * tokens
    assert len(groups) < 25


@pytest.mark.parametrize("heads_first", [False, True])
def test_rows_go_to_their_groups_and_back(heads_first: bool) -> None:
    lengths = [5, 0, 17, 16, 40, 1]
    layout, num_heads = layout_of(lengths), 3
    order = layout.row_order(num_heads, heads_first)
    assert layout.row_order(num_heads, heads_first) is order
    rows = torch.randn(sum(lengths), num_heads, 2, requires_grad=True)
    (grouped,) = order.to_groups(rows)
    assert torch.equal(order.to_tokens([grouped]), rows.flatten(0, 1))
    weight = torch.zeros_like(grouped)  # as gradients are at padding
    weight[order.positions] = torch.randn(len(order.positions), 2)
    ((grouped * weight).sum() + order.to_tokens([grouped]).square().sum()).backward()
    gradient = weight[order.positions] + 2 * rows.flatten(0, 1)
    torch.testing.assert_close(rows.grad.flatten(0, 1), gradient)
    sequences = rows[:, 1].split(lengths)
    for group, (own,) in order.split(grouped):
        assert group.longest % TOKEN_MULTIPLE == 0
        shape = (num_heads, group.size) if heads_first else (group.size, num_heads)
        outer = own.view(*shape, group.longest, 2)
        first = outer[1, 0] if heads_first else outer[0, 1]
        assert any(torch.equal(first[: len(s)], s) for s in sequences if len(s))
    assert sum(group.size for group in layout.groups) == 5


def test_refuses_what_would_mix_sequences() -> None:
    rows = [torch.randn(1, 2, 12, 4) for _ in range(3)]
    with pytest.raises(ValueError, match="without its layout"):
        attend(LAYER, *rows, None)
    with pytest.raises(ValueError, match="12 tokens"):
        attend(LAYER, *[row[:, :, :11] for row in rows], None, layout=layout_of([5, 7]))
    with pytest.raises(ValueError, match="attention mask"):
        attend(LAYER, *rows, torch.ones(1, 1, 12, 12), layout=layout_of([5, 7]))


def test_kernel_call_fits_the_operator() -> None:
    """The CUDA operator's arguments and shapes, checked without a device (trap 5)."""
    query = torch.empty(12, 2, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
    out = attention._flash(query, query, query, PackedCall(layout_of([5, 7], "meta"), 0.1, 0.5, 3))
    assert out.shape == query.shape
    assert out.requires_grad


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 8])
def test_kernel_equals_groups(window: int | None) -> None:
    lengths = [5, 60, 17, 1, 17, 33]
    rows = [
        torch.randn(sum(lengths), 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    settings = {"sliding_window": window, "layout": layout_of(lengths, "cuda")}
    fast, slow = (
        attend(LAYER, *[row.to(dtype).transpose(0, 1)[None] for row in rows], None, **settings)[0][
            0
        ]
        for dtype in (torch.bfloat16, torch.float32)
    )
    torch.testing.assert_close(fast.float(), slow, rtol=0, atol=2e-2)
    weight = torch.randn_like(slow)
    grads = [torch.autograd.grad((out * weight).sum(), rows) for out in (fast.float(), slow)]
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=6e-2)


@pytest.mark.parametrize("window", few([None, 3], 3))
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_dropout_of_weights(window: int | None, scaling: float | None) -> None:
    """Of 600 draws the mean is the attention without dropout."""
    rows = [torch.randn(1, 2, 27, 8, dtype=torch.double) for _ in range(3)]
    layout = layout_of([7, 20])
    settings = {"scaling": scaling, "sliding_window": window, "layout": layout}
    plain, _ = attend(LAYER, *rows, None, **settings)
    many = torch.stack([attend(LAYER, *rows, None, 0.2, **settings)[0] for _ in range(600)])
    error = many.std(0) / 600**0.5
    assert ((many.mean(0) - plain).abs() < 6 * error + 1e-12).all()


@pytest.mark.parametrize("window", few([None, 2], 2))
def test_gradient_behind_dropout(window: int | None) -> None:
    """Against finite differences, with the same draws each time."""

    def attended(*rows: Tensor) -> Tensor:
        torch.manual_seed(0)
        settings = {"sliding_window": window, "layout": layout_of([3, 1, 2])}
        return attend(LAYER, *rows, None, 0.4, **settings)[0]

    rows = [torch.randn(1, 2, 6, 3, dtype=torch.double, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(attended, rows)


@pytest.mark.parametrize("longest", [attention.SHORT, attention.SHORT + 8])
def test_both_ways_to_compute_on_a_cpu(longest: int) -> None:
    """Products and softmax one by one, and torch's own call for each group."""
    lengths = [longest, 9, 33]
    rows = [torch.randn(1, 2, sum(lengths), 8, dtype=torch.double) for _ in range(3)]
    expected = dense(rows, lengths, None, 8**-0.5)
    out, _ = attend(LAYER, *rows, None, layout=layout_of(lengths))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)
    ordered = [row[0].transpose(0, 1) for row in rows]
    call = PackedCall(layout_of(lengths))
    for path in (attention._grouped, attention._by_products):
        found = path(*ordered, call)
        torch.testing.assert_close(found, expected[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("device", "dtype", "error"),
    [
        ("cpu", torch.float64, 1e-12),
        pytest.param("cuda", torch.float32, 1e-4, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("window", [None, 3])
def test_one_padded_group_as_on_a_gpu(
    window: int | None, device: str, dtype: torch.dtype, error: float
) -> None:
    """Output and gradients equal those of several groups, also with an empty sequence."""
    lengths = [20, 1, 33, 0]
    results = []
    rows = [
        torch.randn(1, 2, sum(lengths), 8, dtype=dtype, device=device, requires_grad=True)
        for _ in range(3)
    ]
    weight = torch.randn(1, sum(lengths), 2, 8, dtype=dtype, device=device)
    for is_one_group in (False, True):
        layout = layout_of(lengths, device)
        call = PackedCall(layout, 0.0, None, window)
        if is_one_group:
            layout.groups = (layout.all_padded(),)
            output = attention._padded(*rows, call)
        else:
            output = attention._grouped(*(row[0].transpose(0, 1) for row in rows), call)[None]
        results.append([output, *torch.autograd.grad((output * weight).sum(), rows)])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=error)


def test_a_gpu_pads_all_sequences_unless_one_is_much_longer() -> None:
    for lengths, is_one_group in (([20, 1, 33, 0], True), ([20, 1, 33, 0, 1, 500], False)):
        layout = replace(layout_of(lengths, "meta"), max_waste=3.0)
        assert (len(layout.groups) == 1) == is_one_group


def test_half_precision_is_as_near_as_its_products() -> None:
    """Softmax in single precision: the error is that of bfloat16 scores, weights and values."""
    lengths = [20, 11, 64, 3]
    rows = [torch.randn(1, 2, sum(lengths), 32) for _ in range(3)]
    rounded = [row.bfloat16() for row in rows]
    expected = dense([row.float() for row in rounded], lengths, None, 32**-0.5)
    out, _ = attend(LAYER, *rounded, None, 1e-9, layout=layout_of(lengths))
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("lengths", [(9, 12), (16, 0, 0, 0, 0), (3, 16)])
def test_a_single_group_is_on_the_device_of_its_row(lengths: tuple[int, ...]) -> None:
    """Rows of one group are read there; empty sequences fill a row up to its shape."""
    bounds = torch.tensor([0, *lengths], dtype=torch.int32, device="meta").cumsum(0)
    (group,) = PackedLayout(bounds, lengths, max_waste=3.0).groups
    assert group.tokens.device == group.valid.device == bounds.device
