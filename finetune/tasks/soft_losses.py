"""Losses against the outputs of a teacher.

Hinton, Vinyals & Dean 2015, "Distilling the Knowledge in a Neural Network".

At temperature T the logits of both distributions are divided by T, and the divergence is multiplied
by T^2, so that its gradient keeps its size. Shapes: N rows, C classes.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def class_divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T^2 KL(teacher || student) of one label of C: [N, C], [N, C] -> [N]."""
    own = (logits / temperature).log_softmax(-1)
    target = (teacher.to(logits.dtype) / temperature).log_softmax(-1)
    losses = functional.kl_div(own, target, log_target=True, reduction="none").sum(-1)
    return losses * temperature**2


def label_divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T^2 KL(teacher || student) of independent labels: [N, C], [N, C] -> [N, C]."""
    own, target = logits / temperature, teacher.to(logits.dtype) / temperature
    p = target.sigmoid()
    losses = p * (functional.logsigmoid(target) - functional.logsigmoid(own))
    losses = losses + (1 - p) * (functional.logsigmoid(-target) - functional.logsigmoid(-own))
    return losses * temperature**2
