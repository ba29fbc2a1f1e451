"""Losses over classes, also of a student, against hand-written ones and torch's."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence
from torch.nn import functional

from finetune.config.tasks import ClassifyConfig
from finetune.tasks.class_losses import (
    class_losses,
    class_shift,
    label_losses,
    loss_targets,
    vote_losses,
)
from finetune.tasks.soft_losses import class_divergence, label_divergence
from finetune.types import IGNORED

LABELS, COUNTS = ["a", "b", "c"], {"a": 70, "b": 20, "c": 10}
LOGITS = torch.randn(9, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 1, 2, 0, IGNORED, 1, 2, 2, 0])
KNOWN = CLASSES != IGNORED
SETS = torch.randint(0, 2, (9, 3), generator=torch.Generator().manual_seed(2))
WEIGHTS = (0.5, 1.0, 3.0)


def of_classes(loss: str, weights: tuple[float, ...] | None = None) -> list[torch.Tensor]:
    config = ClassifyConfig(loss=loss)
    targets = loss_targets(weights, class_shift(config, LABELS, COUNTS, 100))
    return [each[KNOWN] for each in class_losses(config, LOGITS, CLASSES, targets)]


def of_labels(loss: str, weights: tuple[float, ...] | None = None) -> torch.Tensor:
    config = ClassifyConfig(loss=loss)
    shift = class_shift(config, LABELS, COUNTS, 100, independent=True)
    return label_losses(config, LOGITS, SETS, loss_targets(weights, shift))


def test_weighted_mean_is_that_of_torch() -> None:
    losses, weights = of_classes("ce", WEIGHTS)
    expected = functional.cross_entropy(LOGITS, CLASSES, torch.tensor(WEIGHTS).double())
    torch.testing.assert_close(losses.sum() / weights.sum(), expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_loss_by_hand(gamma: float) -> None:
    p = LOGITS.softmax(-1)[KNOWN].gather(1, CLASSES[KNOWN, None])[:, 0]
    torch.testing.assert_close(of_classes(f"focal:{gamma}")[0], -((1 - p) ** gamma) * p.log())
    p = torch.where(SETS > 0, LOGITS.sigmoid(), 1 - LOGITS.sigmoid())
    expected = -((1 - p) ** gamma) * p.log() * torch.where(SETS > 0, torch.tensor(WEIGHTS), 1.0)
    torch.testing.assert_close(of_labels(f"focal:{gamma}", WEIGHTS), expected)


def test_focal_zero_is_cross_entropy_and_two_the_default() -> None:
    for weights in (None, WEIGHTS):
        torch.testing.assert_close(of_classes("focal:0", weights), of_classes("ce", weights))
        torch.testing.assert_close(of_labels("focal:0", weights), of_labels("ce", weights))
    assert torch.equal(of_classes("focal")[0], of_classes("focal:2")[0])


@pytest.mark.parametrize("gamma", ["0.5", "2"])
def test_focal_gradient_is_finite_where_the_model_is_certain(gamma: str) -> None:
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    config = ClassifyConfig(loss=f"focal:{gamma}")
    class_losses(config, logits, torch.tensor([0, 0]), {})[0].sum().backward()
    label_losses(config, logits, torch.tensor([[1, 0], [1, 1]]), {}).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


@pytest.mark.parametrize("loss", ["ce", "logit-adjusted"])
def test_label_smoothing_by_hand(loss: str) -> None:
    """Cross entropy with probabilities 1 - e + e / C of gold and e / C of other classes."""
    config = ClassifyConfig(label_smoothing=0.3, loss=loss)
    targets = loss_targets(WEIGHTS, class_shift(config, LABELS, COUNTS, 100))
    losses, weights = class_losses(config, LOGITS, CLASSES, targets)
    q = functional.one_hot(CLASSES[KNOWN], 3).double() * 0.7 + 0.1
    logs = (LOGITS + targets.get("shift", torch.zeros(3)).double()).log_softmax(-1)[KNOWN]
    expected = torch.tensor(WEIGHTS).double()[CLASSES[KNOWN]]
    torch.testing.assert_close(losses[KNOWN], -(q * logs).sum(-1) * expected)
    assert losses[~KNOWN].tolist() == weights[~KNOWN].tolist() == [0.0]
    torch.testing.assert_close(weights[KNOWN], expected)
    smooth = SETS.double() * 0.7 + 0.15
    expected = functional.binary_cross_entropy_with_logits(LOGITS, smooth, reduction="none")
    found = label_losses(ClassifyConfig(label_smoothing=0.3), LOGITS, SETS, {})
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("tau", [0.0, 1.0, 1.5])
def test_logit_adjusted_loss_is_its_formula(tau: float) -> None:
    """log(1 + sum over other classes o of (pi_o / pi_y)^tau e^(f_o - f_y)) (Menon et al.)."""
    losses, _ = of_classes(f"logit-adjusted:{tau}")
    for loss, f, y in zip(losses, LOGITS[KNOWN], CLASSES[KNOWN].tolist(), strict=True):
        pi = [0.7, 0.2, 0.1]
        others = [(pi[o] / pi[y]) ** tau * (f[o] - f[y]).exp() for o in range(3) if o != y]
        torch.testing.assert_close(loss, (1 + sum(others)).log(), atol=1e-6, rtol=1e-6)
    odds = torch.tensor([0.7 / 0.3, 0.2 / 0.8, 0.1 / 0.9], dtype=torch.double)
    expected = functional.binary_cross_entropy_with_logits(
        LOGITS + tau * odds.log(), SETS.double(), reduction="none"
    )
    found = of_labels(f"logit-adjusted:{tau}")
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_labels_without_examples_and_of_all_examples_stay_finite() -> None:
    config = ClassifyConfig(loss="logit-adjusted")
    shift = class_shift(config, ["x", "y", "z"], {"x": 4, "y": 1}, 4)
    assert shift == pytest.approx((math.log(0.875), math.log(0.25), 0.0))
    assert class_shift(ClassifyConfig(), ["x"], {"x": 1}, 1) is None
    independent = class_shift(config, ["x", "y"], {"x": 4, "y": 1}, 4, independent=True)
    assert independent == pytest.approx((math.log(7), math.log(1 / 3)))


SHARES = torch.rand(9, 3, dtype=torch.double, generator=torch.Generator().manual_seed(3))
SHARES /= SHARES.sum(-1, keepdim=True)


@pytest.mark.parametrize("loss", ["ce", "focal:0.5", "focal", "logit-adjusted"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_loss_of_votes_is_the_mean_over_votes(loss: str, smoothing: float) -> None:
    if loss.startswith("focal") and smoothing:
        return
    config = ClassifyConfig(loss=loss, label_smoothing=smoothing)
    weights = None if loss == "logit-adjusted" else WEIGHTS
    targets = loss_targets(weights, class_shift(config, LABELS, COUNTS, 100))
    losses, sums = vote_losses(config, LOGITS, SHARES, targets)
    each = [class_losses(config, LOGITS, torch.full((9,), c), targets) for c in range(3)]
    expected = sum(SHARES[:, c] * own for c, (own, _) in enumerate(each))
    torch.testing.assert_close(losses, expected)
    expected = sum(SHARES[:, c] * weight for c, (_, weight) in enumerate(each))
    torch.testing.assert_close(sums, expected)


def draws(*shape: int, seed: int = 1) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(*shape, dtype=torch.double, generator=chance)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_divergences_from_a_teacher_and_gradients_are_those_of_torch(temperature: float) -> None:
    own, teacher = draws(7, 3).requires_grad_(), draws(7, 3, seed=2)
    for ours, distribution in ((class_divergence, Categorical), (label_divergence, Bernoulli)):
        found = ours(own, teacher, temperature)
        p, q = (distribution(logits=each / temperature) for each in (teacher, own))
        expected = temperature**2 * kl_divergence(p, q)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        gradients = [torch.autograd.grad(each.sum(), own)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)
        assert (ours(teacher, teacher, temperature) == 0).all()
