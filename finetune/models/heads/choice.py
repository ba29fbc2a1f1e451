"""ChoiceScorer: one score for each sequence, to choose among the sequences of a question.

Radford et al., 2018, "Improving Language Understanding by Generative Pre-Training", section 3.3;
the classes of transformers for multiple choice. Each family has its own head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForMultipleChoice
from transformers.modeling_outputs import MultipleChoiceModelOutput

from finetune.models.dropout import keyed_dropout
from finetune.models.families import ROBERTA
from finetune.models.heads.pretrained import LabeledHead, PaddedRows
from finetune.models.heads.sequence_classification import (
    HeadLayers,
    first_tokens,
    modernbert_head,
    pooled_head,
)
from finetune.models.padding import restore_order
from finetune.types import Batch, UserError

SCORE = "score"
"""The label of the one number that the model computes for a sequence."""


class ChoiceScorer(LabeledHead):
    """A score [N, 1] for each of N sequences, of a context with a question and one choice.

    The softmax is over the sequences of a question. ``PretrainedHead`` explains arguments and
    attributes. Padded rows are [Q, C, L] of Q questions with C choices, ``labels`` are [Q], and the
    output is a ``MultipleChoiceModelOutput`` with logits [Q, C].

    Examples:
        >>> from finetune import Encoding, pack
        >>> from finetune.models.heads.choice import ChoiceScorer
        >>> load = ChoiceScorer.from_pretrained
        >>> model = load("roberta-base", labels=["score"])  # doctest: +SKIP
        >>> model(pack([Encoding(0, [0, 713, 2]), Encoding(0, [0, 2])])).shape  # doctest: +SKIP
        torch.Size([2, 1])
    """

    auto_class = AutoModelForMultipleChoice
    output_class = MultipleChoiceModelOutput

    def _logits(self, batch: Batch) -> Tensor:
        """Return scores [N, 1] for a batch of N sequences."""
        head = _HEADS.get(self.known_type)
        if head is None:
            return self._padded_scores(batch)
        hidden = self.encoder(batch)
        with keyed_dropout(batch, batch.cu_seqlens[:-1]):
            return head(self.model, hidden, batch)

    def _output(self, rows: PaddedRows, labels: Tensor | None) -> Any:
        if rows.input_ids is None or rows.input_ids.ndim != 3:
            raise UserError(
                "a head of multiple choice takes a Batch (finetune.pack), or input_ids "
                "[questions, choices, tokens]."
            )
        sequences = PaddedRows(*(None if each is None else each.flatten(0, 1) for each in rows))
        logits = self._logits_of_rows(sequences).view(rows.input_ids.shape[:2])
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return self.output_class(loss=loss, logits=logits)

    def _padded_scores(self, batch: Batch) -> Tensor:
        """Return the scores [N, 1] of the whole model on padded rows, as N questions of one."""
        self.encoder.check_batch(batch)

        def one_choice(**inputs: Tensor) -> Any:
            positions = inputs.pop("position_ids", None)
            shown = {name: value[:, None] for name, value in inputs.items()}
            if positions is not None:
                shown["position_ids"] = positions[:, None]
            return self.model(**shown)

        parts, indices = [], []
        for group, output in self.encoder.padded_outputs(one_choice, batch):
            parts.append(output.logits)
            indices.append(group.sequences)
        return restore_order(parts, indices)


_pooler = pooled_head(lambda model, first: model.base_model.pooler(first[:, None]))


def _electra(model: Any, hidden: Tensor, batch: Batch) -> Any:
    return model.classifier(model.sequence_summary(first_tokens(hidden, batch)[:, None]))


_HEADS: dict[str, HeadLayers] = {
    **dict.fromkeys(("bert", "ernie", "roc_bert", *ROBERTA), _pooler),
    "albert": pooled_head(
        lambda model, first: model.base_model.pooler_activation(model.base_model.pooler(first))
    ),
    "distilbert": pooled_head(lambda model, first: torch.relu(model.pre_classifier(first))),
    "deberta-v2": pooled_head(lambda model, first: model.pooler(first[:, None])),
    "electra": _electra,
    "modernbert": modernbert_head,
}
"""The head of each model type with a parity test; others run the Hugging Face class on padding."""
