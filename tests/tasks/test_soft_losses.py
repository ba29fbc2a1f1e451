"""Divergences from a teacher, in plain torch and over all tag sequences one by one."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence

from finetune.models.heads.crf import CrfScores, chain_divergence
from finetune.preprocessing.batching import pack
from finetune.tasks.soft_losses import class_divergence, label_divergence
from finetune.types import TokenSequence

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


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_divergence_of_a_crf_is_that_of_its_sequences(temperature: float) -> None:
    tags, lengths = 3, (4, 1, 2)
    begins, ends = torch.tensor([True, False, True]), torch.tensor([False, True, True])

    def scores(seed: int) -> CrfScores:
        steps = draws(tags, tags, seed=seed + 3)
        steps[0, 2] = -torch.inf  # illegal
        start = draws(tags, seed=seed + 1)
        start[2] = -torch.inf
        parts = draws(sum(lengths), tags, seed=seed), start, draws(tags, seed=seed + 2), steps
        return CrfScores(*(part.requires_grad_() for part in parts))

    def by_hand(own: CrfScores, teacher: CrfScores) -> torch.Tensor:
        total, first = torch.zeros((), dtype=torch.double), 0
        for length, begun, ended in zip(lengths, begins, ends, strict=True):
            logs = []
            for each in (teacher, own):
                rows = each.emissions[first : first + length]
                found = []
                for path in product(range(tags), repeat=length):
                    steps = [each.transitions[a, b] for a, b in zip(path, path[1:], strict=False)]
                    edges = [each.start[path[0]]] * int(begun) + [each.end[path[-1]]] * int(ended)
                    own_scores = [rows[word, tag] for word, tag in enumerate(path)]
                    found.append(sum([*own_scores, *steps, *edges]) / temperature)
                stacked = torch.stack(found)
                logs.append(stacked[stacked.isfinite()].log_softmax(0))
            total = total + (logs[0].exp() * (logs[0] - logs[1])).sum()
            first += length
        return total * temperature**2

    batch = pack(
        [
            TokenSequence(n, [1] * size, word_starts=[*range(size + 1)])
            for n, size in enumerate(lengths)
        ],
        {"begins": begins, "ends": ends},
    )
    own, teacher = scores(10), scores(20)
    found = chain_divergence(own, teacher, batch, temperature)
    expected = by_hand(own, teacher)
    torch.testing.assert_close(found, expected, **CLOSE)
    gradients = [torch.autograd.grad(each, list(own)) for each in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs.nan_to_num(0.0), **CLOSE)
    assert abs(chain_divergence(own, own, batch, temperature).item()) < 1e-10
