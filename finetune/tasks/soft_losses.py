"""Losses of a student against the outputs of its teacher, for the predictions of each kind.

Hinton, Vinyals & Dean 2015, "Distilling the Knowledge in a Neural Network". At temperature T the
logits of both distributions are divided by T, and the divergence is multiplied by T^2, which keeps
the size of its gradient.

Shapes: N rows, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from finetune.models.heads.crf import CrfScores, chain_divergence
from finetune.models.heads.pretrained import POSITIONS, rows_of
from finetune.preprocessing.encodings import Array, FlatSequences, Ragged
from finetune.preprocessing.span_candidates import num_candidates
from finetune.types import IGNORED, Batch


class SoftLoss(ABC):
    """The loss against a teacher, by the state of the task.

    The sum over a batch is to be divided by the number of words, or of sequences of texts.
    """

    def __init__(self, state: Any) -> None:
        self.state = state

    @abstractmethod
    def __call__(self, logits: Any, teacher: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the sum of the losses of a batch, from the logits of student and teacher.

        For a CRF the logits are the emissions, with the rest of the teacher's scores in the targets
        of the batch.
        """

    @abstractmethod
    def targets_without_gold(self, sequences: FlatSequences) -> Mapping[str, Ragged]:
        """Return targets of sequences without gold, which add nothing to the loss of the task."""


class SoftTextLoss(SoftLoss):
    """Divergence from the classes or labels of texts, or squared error of their number."""

    def __call__(self, logits: Tensor, teacher: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed loss of logits [N, C]."""
        if self.state.problem == "regression":
            return functional.mse_loss(logits, teacher.to(logits.dtype), reduction="sum")
        if self.state.problem == "multi":
            return label_divergence(logits, teacher, temperature).mean(1).sum()
        return class_divergence(logits, teacher, temperature).sum()

    def targets_without_gold(self, sequences: FlatSequences) -> Mapping[str, Ragged]:
        """Return targets whose weight is 0."""
        num_labels, problem = len(self.state.labels), self.state.problem
        kind = np.int32 if problem == "single" else np.float32
        targets = {
            "label": _zeros(len(sequences), num_labels if problem == "multi" else 1, kind),
            "fraction": _zeros(len(sequences), 1, np.float32),
        }
        if self.state.votes:
            targets["votes"] = _zeros(len(sequences), num_labels, np.float32)
        return targets


class SoftTagLoss(SoftLoss):
    """Divergence from the tags of words or subwords, or from the tag sequences of a CRF."""

    def __call__(self, logits: Any, teacher: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed loss of logits [R, C]."""
        if isinstance(logits, CrfScores):
            edges = (batch.targets[f"teacher_{name}"] for name in CrfScores._fields[1:])
            return chain_divergence(logits, CrfScores(teacher, *edges), batch, temperature)
        return class_divergence(logits, teacher, temperature).sum()

    def targets_without_gold(self, sequences: FlatSequences) -> Mapping[str, Ragged]:
        """Return unknown tags, which have no loss."""
        counts = self.state.num_rows(sequences)
        targets = {"tag": Ragged.of_counts(np.full(counts.sum(), IGNORED, np.int32), counts)}
        if self.state.config.crf:
            last = np.diff(sequences.example, append=-1) != 0  # window of its sentence
            ones = np.ones_like(counts)
            targets["begins"] = Ragged.of_counts(sequences.first_word == 0, ones)
            targets["ends"] = Ragged.of_counts(last, ones)
        return targets


class SoftSpanLoss(SoftLoss):
    """Divergence from the types of all candidate spans."""

    def __call__(self, logits: Tensor, teacher: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed loss of logits [S, C]."""
        divergence = label_divergence if self.state.multi_label else class_divergence
        return divergence(logits, teacher, temperature).sum()

    def targets_without_gold(self, sequences: FlatSequences) -> Mapping[str, Ragged]:
        """Return targets in which no candidate has a loss."""
        number, width = len(sequences), self.state.max_width
        counts = np.array([num_candidates(n, width) for n in sequences.num_words.tolist()])
        ones = np.ones(number, np.int64)
        none = Ragged.of_counts(np.zeros(0, np.int32), ones * 0)
        others = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
        return {
            "indices": none,
            "classes": none,
            "others": Ragged.of_counts(others, counts),
            "num_words": _zeros(number, 1, np.int32),
            "width": Ragged.of_counts(sequences.num_words.astype(np.int32), ones),
        }


class SoftAnswerLoss(SoftLoss):
    """Divergence from the starts and ends of answers, over tokens."""

    def __call__(self, logits: Tensor, teacher: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed loss of logits [T, 2]."""
        student, expected = (
            rows_of(each, batch).flatten(0, 1).clamp(min=-1e4) for each in (logits, teacher)
        )
        return class_divergence(student, expected, temperature).sum() / 2

    def targets_without_gold(self, sequences: FlatSequences) -> Mapping[str, Ragged]:
        """Return targets whose weight is 0."""
        return dict.fromkeys(POSITIONS, _filled(len(sequences), 1, np.int32, -1))


class SoftChoiceLoss(SoftLoss):
    """Divergence from the choices of questions."""

    def __call__(self, logits: Tensor, teacher: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed loss of the scores of sequences [N, 1]."""
        # a temperature below 1 would make the lowest numbers infinite
        student, expected = (by_question(each, batch).clamp(min=-1e4) for each in (logits, teacher))
        return class_divergence(student, expected, temperature).sum()

    def targets_without_gold(self, sequences: FlatSequences) -> Mapping[str, Ragged]:
        """Return targets of sequences of which none has the right choice."""
        return {"right": _zeros(len(sequences), 1, bool)}


def by_question(logits: Tensor, batch: Batch) -> Tensor:
    """Return the scores of sequences [N, 1] by question: [Q, C].

    The probability of a choice that a question does not have is 0.
    """
    rows = batch.targets["rows"]
    lowest = torch.finfo(logits.dtype).min
    return logits[rows.clamp_min(0), 0].masked_fill(rows < 0, lowest)


def class_divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T^2 KL(teacher || student) of one label of C: [N, C], [N, C] -> [N]."""
    student = (logits / temperature).log_softmax(-1)
    target = (teacher.to(logits.dtype) / temperature).log_softmax(-1)
    losses = functional.kl_div(student, target, log_target=True, reduction="none").sum(-1)
    return losses * temperature**2


def label_divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T^2 KL(teacher || student) of independent labels: [N, C], [N, C] -> [N, C]."""
    student, target = logits / temperature, teacher.to(logits.dtype) / temperature
    p = target.sigmoid()
    losses = p * (functional.logsigmoid(target) - functional.logsigmoid(student))
    losses = losses + (1 - p) * (functional.logsigmoid(-target) - functional.logsigmoid(-student))
    return losses * temperature**2


def _zeros(number: int, width: int, dtype: Any) -> Ragged:
    return _filled(number, width, dtype, 0)


def _filled(number: int, width: int, dtype: Any, value: int) -> Ragged:
    counts: Array = np.full(number, width, np.int64)
    return Ragged.of_counts(np.full(number * width, value, dtype), counts)
