"""The loss of a student against the outputs of its teacher.

Hinton, Vinyals & Dean 2015, "Distilling the Knowledge in a Neural Network". At temperature T the
logits of both distributions are divided by T, and the divergence is multiplied by T^2, which keeps
the size of its gradient.

Shapes: N rows, C classes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from finetune.models.heads.pretrained import rows_of
from finetune.tasks.answer_decoding import AnswerDecoder
from finetune.tasks.base import Task
from finetune.tasks.choice import ChoiceState, by_question
from finetune.tasks.decoding import TextDecoder
from finetune.tasks.span_decoding import SpanDecoder
from finetune.tasks.tag_decoding import TagDecoder
from finetune.types import Batch


def is_distillable(task: Task) -> bool:
    """Whether ``soft_loss`` compares models of a task."""
    states = TextDecoder, TagDecoder, SpanDecoder, AnswerDecoder, ChoiceState
    has_crf = isinstance(task.state, TagDecoder) and task.state.config.crf  # type: ignore[attr-defined]
    return isinstance(task.state, states) and task.fit_classifier is None and not has_crf


def soft_loss(task: Task, logits: Any, teacher: Any, batch: Batch, temperature: float) -> Tensor:
    """Compute the divergence from the outputs of the teacher, or squared error of numbers.

    It is the sum over a batch, to be divided by the number of words, or of sequences of texts. The
    distributions are those of the label or labels of a text, of the tag of each word or subword, of
    the types of each candidate span, of the starts and ends of answers, or of the choices of a
    question.
    """
    state = task.state
    if state.prediction_type == "number":
        return functional.mse_loss(logits, teacher.to(logits.dtype), reduction="sum")
    if state.prediction_type == "labels":
        return label_divergence(logits, teacher, temperature).mean(1).sum()
    if isinstance(state, SpanDecoder) and state.multi_label:
        return label_divergence(logits, teacher, temperature).sum()
    if isinstance(state, AnswerDecoder):
        logits, teacher = (rows_of(output, batch).flatten(0, 1) for output in (logits, teacher))
    elif isinstance(state, ChoiceState):
        logits, teacher = (by_question(output, batch) for output in (logits, teacher))
    # a temperature below 1 would make the lowest numbers, of what is not there, infinite
    losses = class_divergence(logits.clamp(min=-1e4), teacher.clamp(min=-1e4), temperature)
    return losses.sum() / (2 if isinstance(state, AnswerDecoder) else 1)


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
