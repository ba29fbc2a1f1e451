"""SequenceClassifier: one answer for each sequence, from its first token.

Jurafsky & Martin, chapter "Masked Language Models", section on fine-tuning for classification:
the vector of [CLS] in the last layer goes through a classifier head. Which layers that head has
differs by family; the family's own head is used, so that checkpoints with one keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from finetune.models.encoder import Batching
from finetune.models.heads.pretrained import PROBLEM_TYPES, PretrainedHead, Problem
from finetune.types import Batch, UserError


class SequenceClassifier(PretrainedHead):
    """Scores of C classes for each of N sequences."""

    auto_class = AutoModelForSequenceClassification

    @classmethod
    def from_pretrained(
        cls, name: str, *, labels: Sequence[str] | None, problem: Problem = "single",
        revision: str | None = None, batching: Batching = "auto",
        trust_remote_code: bool = False, dropout: float | None = None,
    ) -> SequenceClassifier:  # fmt: skip
        """A classifier over a hub id, short name or folder, in float32.

        With ``labels`` it is one to train: a head the checkpoint lacks (or has for another number
        of classes) is new. ``labels=None`` loads a fine-tuned model with its own labels and
        problem. ``dropout`` is that of the classifier. Raises ValueError where there is no such
        model, where it is no encoder, or where its weights do not fit.
        """
        if problem == "regression" and labels is not None and len(labels) != 1:
            raise UserError(f"regression has one label, the name of the number, not {len(labels)}")
        return cls._load(
            name, labels=labels, problem=problem, revision=revision, batching=batching,
            trust_remote_code=trust_remote_code, dropout=dropout,
        )  # fmt: skip

    def forward(self, batch: Batch) -> Tensor:
        """Logits [N, C] of a batch of N sequences."""
        head = _HEADS.get(self.known_type)
        if head is None:
            return self._padded_logits(batch, tokens=False)
        return head(self.model, self.encoder(batch), batch)

    @property
    def problem(self) -> Problem:
        """What is answered: one label of several, any number of labels, or a number."""
        kind = self.model.config.problem_type
        if kind is None:
            return "regression" if self.model.config.num_labels == 1 else "single"
        return next(problem for problem, name in PROBLEM_TYPES.items() if name == kind)


def _first(hidden: Tensor, batch: Batch) -> Tensor:
    """The first token of each sequence: [T, H] -> [N, H]."""
    return hidden.index_select(0, batch.cu_seqlens[:-1])


def _classifier(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    """RoBERTa and others, whose classifier takes rows [N, 1, H] and reads their first token."""
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
    """The mean over the tokens of each sequence: [T, X] -> [N, X]."""
    lengths = batch.cu_seqlens.diff().long()
    # unsafe: else it looks at the lengths, which on a GPU is a wait; empty sequences are 0
    return torch.segment_reduce(values, "mean", lengths=lengths, axis=0, unsafe=True, initial=0)


def _modernbert(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    pool = _mean if model.config.classifier_pooling == "mean" else _first
    return model.classifier(model.drop(model.head(pool(hidden, batch))))


def _eurobert(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    """Late pooling takes the mean of what the classifier says to each token."""
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
