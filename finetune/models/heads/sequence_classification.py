"""SequenceClassifier: one prediction for each sequence, from its first token.

Jurafsky & Martin, chapter "Masked Language Models", section on fine-tuning for classification. Each
family has its own head, so that checkpoints with a trained head keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from finetune.models.dropout import keyed_dropout
from finetune.models.families import ROBERTA
from finetune.models.heads.pretrained import LabeledHead, Problem, problem_of
from finetune.types import Batch

HeadLayers = Callable[[Any, Tensor, Batch], Tensor]


class SequenceClassifier(LabeledHead):
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

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: str | Path, *, problem: Problem = "single", **options: Any
    ) -> Self:
        """Load a model as ``LabeledHead`` does.

        ``problem`` is what a model to train predicts: one label (``"single"``), any number of
        labels (``"multi"``) or a number (``"regression"``). A trained model has its own.
        """
        return super().from_pretrained(name, problem=problem, **options)

    def _logits(self, batch: Batch) -> Tensor:
        """Return logits [N, C] for a batch of N sequences."""
        head = _HEADS.get(self.known_type)
        if head is None:
            return self._padded_logits(batch, tokens=False)
        hidden = self.encoder(batch)
        with keyed_dropout(batch, batch.cu_seqlens[:-1]):
            return head(self.model, hidden, batch)

    def _padded_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.problem == "single":
            return super()._padded_loss(logits, labels)
        loss = F.mse_loss if self.problem == "regression" else F.binary_cross_entropy_with_logits
        return loss(logits.float().view(labels.shape), labels.float())

    @property
    def problem(self) -> Problem:
        """The prediction: one label, any number of labels (``"multi"``), or a number."""
        return problem_of(self.model.config)


def first_tokens(hidden: Tensor, batch: Batch) -> Tensor:
    """Select the first token of each sequence: [T, H] -> [N, H]."""
    return hidden.index_select(0, batch.cu_seqlens[:-1])


def _mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean over the tokens of each sequence: [T, X] -> [N, X]."""
    lengths = batch.cu_seqlens.diff().long()
    # unsafe: checking lengths would wait for a GPU; empty sequences are 0
    return torch.segment_reduce(values, "mean", lengths=lengths, axis=0, unsafe=True, initial=0)


def pooled_head(pooler: Callable[[Any, Tensor], Tensor]) -> HeadLayers:
    """Return a head of ``pooler`` on the first tokens [N, H], dropout and a linear layer."""
    return lambda model, hidden, batch: model.classifier(
        model.dropout(pooler(model, first_tokens(hidden, batch)))
    )


def _classifier(model: Any, hidden: Tensor, batch: Batch) -> Any:
    """Run the classifier of RoBERTa and others, which reads the first token of [N, 1, H]."""
    return model.classifier(first_tokens(hidden, batch)[:, None])


def modernbert_head(model: Any, hidden: Tensor, batch: Batch) -> Any:
    """Run ModernBERT's head on the first tokens, or on the means over tokens."""
    pool = _mean if model.config.classifier_pooling == "mean" else first_tokens
    return model.classifier(model.drop(model.head(pool(hidden, batch))))


def _eurobert(model: Any, hidden: Tensor, batch: Batch) -> Tensor:
    """Run EuroBERT's head; late pooling averages the logits of tokens."""
    pooling = model.config.classifier_pooling
    if pooling != "late":
        hidden = (first_tokens if pooling == "bos" else _mean)(hidden, batch)
    logits: Tensor = model.classifier(model.activation(model.dense(hidden)))
    return _mean(logits, batch) if pooling == "late" else logits


_bert = pooled_head(lambda model, first: model.base_model.pooler(first[:, None]))
_deberta = pooled_head(lambda model, first: model.pooler(first[:, None]))

_HEADS: dict[str, HeadLayers] = {
    **dict.fromkeys(("bert", "ernie", "gte", "nomic_bert", "roc_bert"), _bert),
    **dict.fromkeys(ROBERTA, _classifier),
    **dict.fromkeys(("electra", "jina_embeddings_v3"), _classifier),
    "albert": pooled_head(
        lambda model, first: model.base_model.pooler_activation(model.base_model.pooler(first))
    ),
    "distilbert": pooled_head(lambda model, first: F.relu(model.pre_classifier(first))),
    **dict.fromkeys(("deberta", "deberta-v2"), _deberta),
    **dict.fromkeys(("modernbert", "ultrabert"), modernbert_head),
    "eurobert": _eurobert,
}
"""The head of each model type with a parity test; others run the Hugging Face class on padding."""
