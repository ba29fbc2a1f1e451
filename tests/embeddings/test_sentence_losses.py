"""Losses of sentence encoders against sentence-transformers, and by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from finetune.embeddings import sentence_objectives as losses
from finetune.tasks.few_shot import cosine_loss

N, H = 6, 8


@pytest.fixture
def vectors() -> Any:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(N, H, generator=generator, dtype=torch.float64) for _ in range(3)]


def mean(loss: losses.Loss) -> float:
    return float((loss[0] / loss[1]).detach())


def distinct(size: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + size)


def test_equal_sentence_transformers(vectors: Any) -> None:
    library = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

    class Model(torch.nn.Module):
        """Returns the vectors that it gets, where the library expects a model."""

        device = "cpu"

        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            return features

        def get_embedding_dimension(self) -> int:
            return H

    model = Model()
    u, v, n = vectors
    three = [{"sentence_embedding": side} for side in (u, v, n)]
    ids = distinct(N), distinct(N, N), distinct(N, 2 * N)
    ranking = library.MultipleNegativesRankingLoss(model, scale=20.0)
    label = torch.tensor([0.0, 0.2, 0.2, 0.5, 0.9, 1.0], dtype=torch.float64)
    softmax = library.SoftmaxLoss(model, H, 3).double()
    classes = torch.tensor([0, 1, 2, 0, 1, 2])
    weights = torch.cat([softmax.classifier.weight, softmax.classifier.bias[:, None]], dim=1)
    without = losses.ranking_loss(u, v, n[:0], (*ids[:2], ids[2][:0]), 0.05)
    for loss, expected in (
        (losses.ranking_loss(u, v, n, ids, 0.05), ranking(three, label)),
        (without, ranking(three[:2], label)),
        (cosine_loss(u, v, label), library.CosineSimilarityLoss(model)(three[:2], label)),
        (losses.softmax_loss(u, v, weights, classes), softmax(three[:2], classes)),
    ):
        assert mean(loss) == pytest.approx(float(expected.detach()))


def test_two_views_by_hand(vectors: Any) -> None:
    u, v, _ = vectors
    both = torch.nn.functional.normalize(torch.cat([u, v]), dim=-1).tolist()
    total = 0.0
    for i, x in enumerate(both):
        scores = {
            j: math.exp(sum(a * b for a, b in zip(x, y, strict=True)) / 0.04)
            for j, y in enumerate(both)
            if j != i
        }
        total -= math.log(scores[(i + N) % (2 * N)] / sum(scores.values()))
    assert mean(losses.two_view_loss((u, v), distinct(N), 0.04)) == pytest.approx(total / (2 * N))


def test_equal_texts_are_no_negatives(vectors: Any) -> None:
    u, v, n = vectors
    same = torch.zeros(2, dtype=torch.long)
    assert mean(losses.two_view_loss((u[:2], v[:2]), same, 0.5)) == pytest.approx(0.0)
    assert mean(losses.two_view_loss((u[:2], v[:2]), distinct(2), 0.5)) > 0.01
    # an equal anchor, a positive that equals the anchor, and a negative that equals the positive
    ids = (torch.tensor([0, 0, 2]), torch.tensor([3, 4, 0]), torch.tensor([3, 9, 9]))
    loss, count = losses.ranking_loss(u[:3], v[:3], n[:3], ids, 1.0)
    cosine = torch.nn.functional.cosine_similarity
    candidates = {0: v[0], 1: v[1], 2: v[2], 3: n[0], 4: n[1], 5: n[2]}
    kept = {0: [0, 4, 5], 1: [1, 3, 4, 5], 2: [0, 1, 2, 3, 4, 5]}
    expected = 0.0
    for row, columns in kept.items():
        scores = torch.stack([cosine(u[row], candidates[c], dim=0) for c in columns])
        expected -= float(scores.log_softmax(0)[columns.index(row)])
    assert (float(loss), float(count)) == (pytest.approx(expected), 3.0)


@pytest.mark.parametrize("size", [1, 2])
def test_tiny_batches_are_finite(vectors: Any, size: int) -> None:
    u, v, n = (side[:size].requires_grad_() for side in vectors)
    label = torch.ones(size)
    for loss, _ in (
        losses.two_view_loss((u, v), distinct(size), 0.04),
        losses.ranking_loss(u, v, n[:0], (distinct(size), distinct(size), distinct(0)), 0.05),
        cosine_loss(u, v, label),
    ):
        (gradient,) = torch.autograd.grad(loss, u, retain_graph=True)
        assert loss.isfinite() and gradient.isfinite().all()
