"""Divergences from a teacher, in plain torch and over all tag sequences one by one."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence

from finetune.tasks.soft_losses import class_divergence, label_divergence

CLOSE = {"rtol": 0, "atol": 1e-10}


def draws(*shape: int, seed: int = 1) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(*shape, dtype=torch.double, generator=chance)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_values_and_gradients_are_those_of_torch(temperature: float) -> None:
    own, teacher = draws(7, 3).requires_grad_(), draws(7, 3, seed=2)
    for ours, distribution in ((class_divergence, Categorical), (label_divergence, Bernoulli)):
        found = ours(own, teacher, temperature)
        p, q = (distribution(logits=each / temperature) for each in (teacher, own))
        expected = temperature**2 * kl_divergence(p, q)
        torch.testing.assert_close(found, expected, **CLOSE)
        gradients = [torch.autograd.grad(each.sum(), own)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients, **CLOSE)
        assert (ours(teacher, teacher, temperature) == 0).all()
