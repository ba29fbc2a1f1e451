"""Dropout masks: their rates and independence, their keys, and the model they are put into."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from finetune.models.dropout import (
    LEVELS,
    FastDropout,
    draw_bits,
    dropout,
    fast_dropout,
    keyed_dropout,
    keys_of_heads,
    keys_of_span,
    next_keys,
    next_shared_keys,
    token_keys,
)
from finetune.preprocessing.batching import pack, step_seed
from finetune.types import Batch, Encoding

DRAWS = 400_000


def drop_mask(shape: tuple[int, int], drop: int) -> torch.Tensor:
    return draw_bits(next_keys(shape[0]), shape[1], drop, torch.float32) == 0


def batch_of(lengths: dict[int, int], seed: int | None = 5) -> Batch:
    return pack([Encoding(number, [7] * length) for number, length in lengths.items()], seed=seed)


def correlations(masks: torch.Tensor) -> torch.Tensor:
    """Correlations of the columns of masks [rows, columns], in standard errors."""
    centered = masks.double() - masks.double().mean(0)
    scaled = centered / centered.std(0)
    found = scaled.T @ scaled / len(masks)
    return found.fill_diagonal_(0).abs() * len(masks) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_all_bits_or_none(dtype: torch.dtype) -> None:
    bits = draw_bits(next_keys(1), 63, LEVELS // 2, dtype)
    assert bits.element_size() == dtype.itemsize
    assert bits.shape == (1, 63) and set(bits.flatten().tolist()) == {0, -1}


def test_masks_of_neighbors_are_independent() -> None:
    """Neighboring columns, heads, calls, tokens and steps."""
    batch = batch_of(dict.fromkeys(range(400), 100))
    keys, rate = token_keys(batch), 6554 / LEVELS
    heads = keys_of_heads(keys, 3).view(-1, 3)
    with keyed_dropout(batch):
        calls = torch.stack([next_keys(len(keys)) for _ in range(4)], 1)
    steps = torch.stack(
        [
            token_keys(batch_of(dict.fromkeys(range(400), 100), seed))
            for seed in (6, step_seed(1, 0), step_seed(1, 1))
        ],
        1,
    )
    masks = draw_bits(torch.cat([heads, calls, steps], 1), 24, 6554, torch.bfloat16) == 0
    masks = masks.flatten(1)  # [tokens, 10 * 24]
    assert abs(masks.double().mean() - rate) < 4 * (rate / masks.numel()) ** 0.5
    assert correlations(masks).max() < 6
    assert correlations(torch.cat([masks[1:, :24], masks[:-1, :24]], 1)).max() < 6


def test_masks_of_spans_are_independent() -> None:
    keys, rate = token_keys(batch_of(dict.fromkeys(range(400), 100))), 6554 / LEVELS
    spans = torch.stack([keys_of_span(keys, width) for width in range(1, 9)], 1)
    masks = (draw_bits(spans, 4, 6554, torch.bfloat16) == 0).flatten(1)  # [tokens, 8 * 4]
    assert abs(masks.double().mean() - rate) < 4 * (rate / masks.numel()) ** 0.5
    assert correlations(masks).max() < 6


def test_masks_of_an_example_do_not_depend_on_its_batch() -> None:
    alone, among = batch_of({3: 5}), batch_of({8: 4, 3: 5, 1: 7})
    rows = torch.ones(16, 33)
    with keyed_dropout(among):
        expected = [dropout(rows, 0.5)[4:9] for _ in range(2)]
        shared = dropout(torch.ones(6, 33), 0.5, next_shared_keys(2, 6))
    with keyed_dropout(alone):
        found = [dropout(rows[:5], 0.5) for _ in range(2)]
        assert torch.equal(dropout(torch.ones(3, 33), 0.5, next_shared_keys(4, 3)), shared[2:5])
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert not torch.equal(found[0], found[1])
    with keyed_dropout(alone, torch.tensor([2])):
        head = dropout(rows[:1], 0.5)
    assert not torch.equal(head[0], found[0][2])
    with keyed_dropout(batch_of({3: 5}, seed=6)):
        assert not torch.equal(dropout(rows[:5], 0.5), found[0])


def test_rows_without_keys_use_the_generator() -> None:
    torch.manual_seed(1)
    expected = dropout(torch.ones(5, 33), 0.5)
    torch.manual_seed(1)
    with keyed_dropout(batch_of({3: 5}, seed=None)):
        assert torch.equal(dropout(torch.ones(5, 33), 0.5), expected)
    torch.manual_seed(1)
    with keyed_dropout(batch_of({3: 6})):
        assert torch.equal(dropout(torch.ones(5, 33), 0.5), expected)


@pytest.mark.parametrize("drop", [1, 6554, LEVELS // 2, LEVELS - 1])
def test_every_probability_is_met(drop: int) -> None:
    share = drop / LEVELS
    found = float(drop_mask((DRAWS // 100, 100), drop).double().mean())
    assert abs(found - share) < 5 * (share * (1 - share) / DRAWS) ** 0.5 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (5, 7), (3, 2, 9)])
def test_what_is_kept_is_scaled_and_has_a_gradient(dtype: torch.dtype, shape: tuple[int, ...]):
    input = torch.rand(shape, dtype=dtype) + 1
    input.requires_grad_(True)
    output = dropout(input, 0.25)
    stays = output != 0
    torch.testing.assert_close(output[stays], (input * (1 / 0.75)).to(dtype)[stays])
    output.sum().backward()
    torch.testing.assert_close(input.grad, stays.to(dtype) * torch.tensor(1 / 0.75, dtype=dtype))


def test_seeds_and_states() -> None:
    torch.manual_seed(3)
    first = drop_mask((3, 33), 9000)
    state = torch.random.get_rng_state()
    second = drop_mask((3, 33), 9000)
    torch.random.set_rng_state(state)
    assert torch.equal(drop_mask((3, 33), 9000), second)
    torch.manual_seed(3)
    assert torch.equal(drop_mask((3, 33), 9000), first)
    assert not torch.equal(first, second)


def test_a_model_is_the_same_but_for_the_masks() -> None:
    class Other(nn.Dropout):
        pass

    plain = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), Other(0.5), nn.Dropout(0.0))
    model = copy.deepcopy(plain)
    layers, input = list(model), torch.randn(3, 4)
    with pytest.raises(KeyError), fast_dropout(model):
        assert [type(module) for module in model][1:] == [FastDropout, Other, FastDropout]
        assert model.state_dict().keys() == plain.state_dict().keys()
        assert torch.equal(model.eval()(input), plain.eval()(input))
        assert (model.train()(input) == 0).any()
        model.eval()
        raise KeyError
    assert [id(module) for module in model] == [id(module) for module in layers]
    assert not any(module.training for module in model)
    assert torch.equal(dropout(input, 0.0), input)
    assert torch.equal(dropout(input, 1.0), torch.zeros(3, 4))
