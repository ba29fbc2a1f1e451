"""SequenceClassifier: one prediction for each sequence, from its first token.

Jurafsky & Martin, chapter "Masked Language Models", section on fine-tuning for classification. Each
family has its own head, so that checkpoints with a trained head keep it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from finetune.models.heads.pretrained import PretrainedHead, Problem, problem_of


class SequenceClassifier(PretrainedHead):
    """Logits of C classes for each of N sequences.

    ``PretrainedHead`` explains arguments and attributes. With padded rows, ``labels`` are [N] or
    [N, C], and the output is a ``SequenceClassifierOutput``.

    Examples:
        >>> from finetune import Encoding, SequenceClassifier, pack
        >>> labels, load = ["bad", "good"], SequenceClassifier.from_pretrained
        >>> model = load("roberta-base", labels=labels)  # doctest: +SKIP
        >>> model(pack([Encoding(0, [0, 713, 2]), Encoding(1, [0, 2])])).shape  # doctest: +SKIP
        torch.Size([2, 2])
    """

    auto_class = AutoModelForSequenceClassification
    output_class = SequenceClassifierOutput
    per_token = False

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: str | Path, *, problem: Problem = "single", **options: Any
    ) -> Self:
        """Load a model as ``PretrainedHead`` does.

        ``problem`` is what a model to train predicts: one label (``"single"``), any number of
        labels (``"multi"``) or a number (``"regression"``). A trained model has its own.
        """
        return super().from_pretrained(name, problem=problem, **options)

    def _padded_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.problem == "single":
            return super()._padded_loss(logits, labels)
        loss = F.mse_loss if self.problem == "regression" else F.binary_cross_entropy_with_logits
        return loss(logits.float().view(labels.shape), labels.float())

    @property
    def problem(self) -> Problem:
        """The prediction: one label, any number of labels (``"multi"``), or a number."""
        return problem_of(self.model.config)
