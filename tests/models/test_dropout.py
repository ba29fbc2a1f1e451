"""Dropout masks: their rates and independence, and the model they are put into."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from finetune.models.dropout import LEVELS, FastDropout, dropout, fast_dropout

DRAWS = 400_000


def drop_mask(shape: tuple[int, int], drop: int) -> torch.Tensor:
    return dropout(torch.ones(shape), drop / LEVELS) == 0


def test_masks_of_neighbors_are_independent() -> None:
    torch.manual_seed(0)
    masks = drop_mask((20_000, 24), 6554).double()
    centered = (masks - masks.mean(0)) / masks.std(0)
    found = (centered.T @ centered / len(masks)).fill_diagonal_(0).abs() * len(masks) ** 0.5
    assert found.max() < 5


@pytest.mark.parametrize("drop", [1, 6554, LEVELS // 2, LEVELS - 1])
def test_every_probability_is_met(drop: int) -> None:
    share = drop / LEVELS
    found = float(drop_mask((DRAWS // 100, 100), drop).double().mean())
    assert abs(found - share) < 5 * (share * (1 - share) / DRAWS) ** 0.5 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
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
    input = torch.randn(3, 4)
    with pytest.raises(KeyError), fast_dropout(model):
        assert [type(module) for module in model][1:] == [FastDropout, Other, FastDropout]
        assert model.state_dict().keys() == plain.state_dict().keys()
        assert torch.equal(model.eval()(input), plain.eval()(input))
        assert (model.train()(input) == 0).any()
        model.eval()
        raise KeyError
    assert [type(module) for module in model] == [nn.Linear, nn.Dropout, Other, nn.Dropout]
    assert not any(module.training for module in model)
    assert torch.equal(dropout(input, 0.0), input)
    assert torch.equal(dropout(input, 1.0), torch.zeros(3, 4))
