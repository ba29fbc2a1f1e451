"""Losses of a student against the outputs of its teacher, one function for each output of models.

Hinton, Vinyals & Dean 2015, "Distilling the Knowledge in a Neural Network". At temperature T the
logits of both distributions are divided by T, and the divergence is multiplied by T^2, which keeps
the size of its gradient. A loss is the sum over a batch, to be divided by the number of words, or
of sequences of texts. Each function is ``Task.soft_loss`` of some tasks: it gets the task, the
logits of student and teacher, the batch and T.

Shapes: N rows, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from finetune.models.heads.crf import CrfScores, chain_divergence
from finetune.models.heads.pretrained import rows_of
from finetune.types import Batch


def soft_text_loss(
    task: Any, logits: Tensor, teacher: Tensor, batch: Batch, temperature: float
) -> Tensor:
    """Divergence from the classes or labels of texts [N, C], or squared error of their number."""
    if task.state.problem == "regression":
        return functional.mse_loss(logits, teacher.to(logits.dtype), reduction="sum")
    if task.state.problem == "multi":
        return label_divergence(logits, teacher, temperature).mean(1).sum()
    return class_divergence(logits, teacher, temperature).sum()


def soft_tag_loss(task: Any, logits: Any, teacher: Any, batch: Batch, temperature: float) -> Tensor:
    """Divergence from the tags of words or subwords, or from the tag sequences of a CRF."""
    if isinstance(logits, CrfScores):
        return chain_divergence(logits, teacher, batch, temperature)
    return class_divergence(logits, teacher, temperature).sum()


def soft_span_loss(
    task: Any, logits: Tensor, teacher: Tensor, batch: Batch, temperature: float
) -> Tensor:
    """Divergence from the types of all candidate spans [S, C]."""
    divergence = label_divergence if task.state.multi_label else class_divergence
    return divergence(logits, teacher, temperature).sum()


def soft_answer_loss(
    task: Any, logits: Tensor, teacher: Tensor, batch: Batch, temperature: float
) -> Tensor:
    """Divergence from the starts and ends of answers, over tokens [T, 2]."""
    student, expected = (
        rows_of(output, batch).flatten(0, 1).clamp(min=-1e4) for output in (logits, teacher)
    )
    return class_divergence(student, expected, temperature).sum() / 2


def soft_choice_loss(
    task: Any, logits: Tensor, teacher: Tensor, batch: Batch, temperature: float
) -> Tensor:
    """Divergence from the choices of questions, by the scores of sequences [N, 1]."""
    # a temperature below 1 would make the lowest numbers infinite
    student, expected = (by_question(output, batch).clamp(min=-1e4) for output in (logits, teacher))
    return class_divergence(student, expected, temperature).sum()


def by_question(logits: Tensor, batch: Batch) -> Tensor:
    """Gather the scores of sequences [N, 1] by question: [Q, C].

    The probability of a choice that a question does not have is 0.
    """
    rows = batch.targets["rows"]
    lowest = torch.finfo(logits.dtype).min
    return logits[rows.clamp_min(0), 0].masked_fill(rows < 0, lowest)


def class_divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute T^2 KL(teacher || student) of one label of C: [N, C], [N, C] -> [N]."""
    student = (logits / temperature).log_softmax(-1)
    target = (teacher.to(logits.dtype) / temperature).log_softmax(-1)
    losses = functional.kl_div(student, target, log_target=True, reduction="none").sum(-1)
    return losses * temperature**2


def label_divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute T^2 KL(teacher || student) of independent labels: [N, C], [N, C] -> [N, C]."""
    student, target = logits / temperature, teacher.to(logits.dtype) / temperature
    p = target.sigmoid()
    losses = p * (functional.logsigmoid(target) - functional.logsigmoid(student))
    losses = losses + (1 - p) * (functional.logsigmoid(-target) - functional.logsigmoid(-student))
    return losses * temperature**2
