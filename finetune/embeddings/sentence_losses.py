"""Losses of sentence encoders, on the vectors of a whole optimizer batch.

Each returns the sum of the losses and the number to divide it by. ``identity`` has an integer for
each text, the same for equal texts, which are no negatives of each other.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

Loss = tuple[Tensor, Tensor]


def two_view_loss(views: tuple[Tensor, Tensor], identity: Tensor, temperature: float) -> Loss:
    """Contrast each of 2 N views with all others (Liu et al., 2021, Mirror-BERT; NT-Xent).

    The positive of a view [H] is the other view of the same text, its negatives are the 2 N - 2
    views of other texts:
    -log exp(cos(f(x), f(x̄)) / τ) / sum over other views y of exp(cos(f(x), f(y)) / τ).
    """
    size = len(identity)
    unit = F.normalize(torch.cat(views), dim=-1)
    scores = unit @ unit.T / temperature
    same = identity[:, None] == identity
    own = torch.eye(size, dtype=torch.bool, device=same.device)
    excluded = torch.cat([torch.cat([same, same & ~own], 1), torch.cat([same & ~own, same], 1)])
    target = torch.arange(2 * size, device=scores.device).roll(size)
    return _contrast(scores.masked_fill(excluded, -torch.inf), target)


def ranking_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    identity: tuple[Tensor, Tensor, Tensor],
    temperature: float,
) -> Loss:
    """Rank each anchor's positive above the positives of other anchors and all hard negatives.

    Multiple negatives ranking (Henderson et al., 2017). With two dropout views of one text it is
    the loss of unsupervised SimCSE, with hard negatives of supervised SimCSE (Gao et al., 2021).

    Args:
        anchors: [N, H].
        positives: [N, H].
        negatives: [M, H], M may be 0.
        identity: Equal numbers for equal texts, of anchors, positives and negatives. A candidate
            does not count as a negative if it equals the anchor or its positive, or is the positive
            of an equal anchor.
        temperature: τ, which divides the cosines; the inverse of the scale.
    """
    candidates = F.normalize(torch.cat([positives, negatives]), dim=-1)
    scores = F.normalize(anchors, dim=-1) @ candidates.T / temperature  # [N, N + M]
    anchor, positive, negative = identity
    candidate = torch.cat([positive, negative])
    excluded = (candidate == anchor[:, None]) | (candidate == positive[:, None])
    size = len(anchor)
    excluded[:, :size] |= anchor == anchor[:, None]
    excluded[:, :size].fill_diagonal_(False)
    target = torch.arange(size, device=scores.device)
    return _contrast(scores.masked_fill(excluded, -torch.inf), target)


def _contrast(scores: Tensor, target: Tensor) -> Loss:
    return F.cross_entropy(scores, target, reduction="sum"), _count(len(target), scores)


def softmax_loss(u: Tensor, v: Tensor, classifier: Tensor, label: Tensor) -> Loss:
    """Return the cross entropy of ``pair_logits`` (Reimers & Gurevych, 2019)."""
    losses = F.cross_entropy(pair_logits(u, v, classifier), label, reduction="sum")
    return losses, _count(len(label), u)


def pair_logits(u: Tensor, v: Tensor, classifier: Tensor) -> Tensor:
    """Return W [u; v; |u - v|] + b: [N, C] for weights [C, 3 H + 1] with the bias last."""
    return F.linear(torch.cat([u, v, (u - v).abs()], dim=1), classifier[:, :-1], classifier[:, -1])


def _count(number: int, like: Tensor) -> Tensor:
    return like.new_full((), number)
