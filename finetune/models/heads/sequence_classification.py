"""SequenceClassifier: one prediction for each sequence, from its first token.

Jurafsky & Martin, chapter "Masked Language Models", section on fine-tuning for classification:
the vector of [CLS] in the last layer goes through a classifier head. The layers of that head differ
by family; the family's head is used, so that checkpoints with a trained one keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from finetune.models.encoder import Batching
from finetune.models.heads.pretrained import (
    PROBLEM_TYPES,
    PretrainedHead,
    Problem,
    load_task_model,
)
from finetune.types import Batch, UserError


class SequenceClassifier(PretrainedHead):
    """Logits of C classes for each of N sequences.

    Args:
        model: A model such as ``AutoModelForSequenceClassification`` loads. It stays as it is.
        batching: How the ``Encoder`` batches sequences; the numbers are the same.

    Attributes:
        model: The Hugging Face model, which owns all weights.
        encoder: The ``Encoder`` inside.
        labels: The label names, in the order of the classes.
        problem: What is predicted: ``"single"``, ``"multi"`` (any number of labels) or
            ``"regression"``.

    Example:
        >>> from finetune import Encoding, SequenceClassifier, pack
        >>> labels, load = ["bad", "good"], SequenceClassifier.from_pretrained
        >>> model = load("roberta-base", labels=labels)  # doctest: +SKIP
        >>> model(pack([Encoding(0, [0, 713, 2]), Encoding(1, [0, 2])])).shape  # doctest: +SKIP
        torch.Size([2, 2])
    """

    auto_class = AutoModelForSequenceClassification

    @classmethod
    def from_pretrained(
        cls, name: str, *, labels: Sequence[str] | None, problem: Problem = "single",
        revision: str | None = None, batching: Batching = "auto",
        trust_remote_code: bool = False, dropout: float | None = None,
    ) -> SequenceClassifier:  # fmt: skip
        """Load a classifier in float32.

        Args:
            name: Hub id, short name (``roberta-base``, ``minilm``) or folder.
            labels: The labels of a classifier to train. A head that the checkpoint lacks, or has
                for another number of classes, is new. None loads a fine-tuned model with its labels
                and problem.
            problem: What a classifier to train predicts; ``"regression"`` has one label.
            revision: Branch, tag or commit on the hub.
            batching: See the class.
            trust_remote_code: Run Python code that comes with the checkpoint.
            dropout: Dropout before the classifier; None leaves the checkpoint's.

        Raises:
            UserError: If there is no such model, it is no encoder, or its weights do not match.
        """
        if problem == "regression" and labels is not None and len(labels) != 1:
            raise UserError(f"regression has one label, the name of the number, not {len(labels)}")
        model = load_task_model(
            cls.auto_class, name, labels=labels, problem=problem, revision=revision,
            trust_remote_code=trust_remote_code, dropout=dropout,
        )  # fmt: skip
        return cls(model, batching)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits [N, C] for a batch of N sequences."""
        head = _HEADS.get(self.known_type)
        if head is None:
            return self._padded_logits(batch, tokens=False)
        return head(self.model, self.encoder(batch), batch)

    @property
    def problem(self) -> Problem:
        """The kind of prediction: one label of several, any number of labels, or a number."""
        problem_type = self.model.config.problem_type
        if problem_type is None:
            return "regression" if self.model.config.num_labels == 1 else "single"
        return next(problem for problem, name in PROBLEM_TYPES.items() if name == problem_type)


def _first(hidden: Tensor, batch: Batch) -> Tensor:
    """Select the first token of each sequence: [T, H] -> [N, H]."""
    return hidden.index_select(0, batch.cu_seqlens[:-1])


def _classifier(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    """Run the classifier of RoBERTa and others, which reads the first token of [N, 1, H]."""
    return model.classifier(_first(hidden, batch)[:, None])


def _bert(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    pooled = model.base_model.pooler(_first(hidden, batch)[:, None])
    return model.classifier(model.dropout(pooled))


def _albert(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    base = model.base_model
    pooled = base.pooler_activation(base.pooler(_first(hidden, batch)))
    return model.classifier(model.dropout(pooled))


def _distilbert(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    pooled = F.relu(model.pre_classifier(_first(hidden, batch)))
    return model.classifier(model.dropout(pooled))


def _deberta(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    return model.classifier(model.dropout(model.pooler(_first(hidden, batch)[:, None])))


def _mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean over the tokens of each sequence: [T, X] -> [N, X]."""
    lengths = batch.cu_seqlens.diff().long()
    # unsafe: checking lengths would wait for a GPU; empty sequences are 0
    return torch.segment_reduce(values, "mean", lengths=lengths, axis=0, unsafe=True, initial=0)


def _modernbert(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    pool = _mean if model.config.classifier_pooling == "mean" else _first
    return model.classifier(model.drop(model.head(pool(hidden, batch))))


def _eurobert(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    """Run EuroBERT's head; late pooling averages the logits of tokens."""
    pooling = model.config.classifier_pooling
    if pooling != "late":
        hidden = (_first if pooling == "bos" else _mean)(hidden, batch)
    logits = model.classifier(model.activation(model.dense(hidden)))
    return _mean(logits, batch) if pooling == "late" else logits


_HEADS: dict[str, Callable[[Any, Tensor, Batch], Tensor]] = {
    "bert": _bert,
    "ernie": _bert,
    "roberta": _classifier,
    "xlm-roberta": _classifier,
    "xlm-roberta-xl": _classifier,
    "camembert": _classifier,
    "data2vec-text": _classifier,
    "roberta-prelayernorm": _classifier,
    "electra": _classifier,
    "mpnet": _classifier,
    "albert": _albert,
    "distilbert": _distilbert,
    "deberta": _deberta,
    "deberta-v2": _deberta,
    "modernbert": _modernbert,
    "eurobert": _eurobert,
    "nomic_bert": _bert,
    "jina_embeddings_v3": _classifier,
}
"""The head of each model type with a parity test; others run the Hugging Face class on padding."""
