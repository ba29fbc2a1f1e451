"""The cheaper mask is as random as the dear one, and a model with it is the model it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from finetune.models.dropout import LEVELS, FastDropout, draw_bits, dropout, fast_dropout

DRAWS = 400_000


def drop_mask(shape: tuple[int, ...], drop: int) -> torch.Tensor:
    return draw_bits(shape, drop, torch.float32) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_all_bits_or_none(dtype: torch.dtype) -> None:
    bits = draw_bits((64,), LEVELS // 2, dtype)
    assert bits.element_size() == dtype.itemsize
    assert set(bits.tolist()) == {0, -1}


def test_rate_and_independence() -> None:
    """Of each of the four lanes of a draw alone, of neighbours, and of calls."""
    share = 6554 / LEVELS
    masks = torch.stack([drop_mask((DRAWS,), 6554).double() for _ in range(2)])
    deviation = (share * (1 - share)) ** 0.5
    assert abs(masks.mean() - share) < 4 * deviation / (2 * DRAWS) ** 0.5
    lanes = masks[0].view(-1, 4)
    bound = 4 * deviation / len(lanes) ** 0.5
    assert (lanes.mean(0) - share).abs().max() < bound
    centred = lanes - share
    together = centred.T @ centred / len(lanes) / deviation**2
    assert (together - torch.eye(4)).abs().max() < 5 / len(lanes) ** 0.5 + 0.02
    follow = (masks[0][1:] - share) * (masks[0][:-1] - share)
    across = (masks[0] - share) * (masks[1] - share)
    for product in (follow, across):
        assert abs(product.mean()) / deviation**2 < 4 / DRAWS**0.5


@pytest.mark.parametrize("drop", [1, 6554, LEVELS // 2, LEVELS - 1])
def test_every_probability_is_met(drop: int) -> None:
    share = drop / LEVELS
    found = float(drop_mask((DRAWS,), drop).double().mean())
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


def test_expectation() -> None:
    output = dropout(torch.ones(DRAWS, dtype=torch.double), 0.1)
    assert abs(float(output.mean()) - 1) < 4 * (0.1 / 0.9 / DRAWS) ** 0.5


def test_seeds_and_states() -> None:
    torch.manual_seed(3)
    first = drop_mask((99,), 9000)
    state = torch.random.get_rng_state()
    second = drop_mask((99,), 9000)
    torch.random.set_rng_state(state)
    assert torch.equal(drop_mask((99,), 9000), second)
    torch.manual_seed(3)
    assert torch.equal(drop_mask((99,), 9000), first)
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
