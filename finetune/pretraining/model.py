"""PretrainingModel: a masked language model with next sentence prediction.

Next sentence prediction (Devlin et al., 2019) tells from the first token whether the second text of
a pair follows the first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import AutoModelForPreTraining

from finetune.models.dropout import keyed_dropout
from finetune.models.heads.layers import NEXT_SENTENCE
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.types import Batch, UserError


class PretrainingScores(NamedTuple):
    """Scores of M chosen positions, and of N pairs."""

    loss: Tensor
    """-log P(x_i | z_i) of the target of each position, [M]."""
    best: Tensor
    """The most probable subword of each position [M]; empty while gradients are computed."""
    next: Tensor
    """Logits of N pairs: the second text follows the first, or is random [N, 2]."""


class PretrainingModel(MaskedLanguageModel):
    """A masked language model with next sentence prediction: a class such as
    ``BertForPreTraining``. A batch has the targets of ``MaskedLanguageModel``.
    """

    auto_class = AutoModelForPreTraining

    def forward(self, batch: Batch) -> PretrainingScores | Tensor:  # type: ignore[override]
        """Return the scores of the targets of a batch, or logits if the targets have no tokens."""
        targets = batch.targets
        if "token" not in targets:
            return self.logits(batch)
        states = self.encoder(batch)
        chosen = states.index_select(0, targets["position"])
        masked = self._scores_of(self._chosen_logits, chosen, targets["token"])
        first = batch.cu_seqlens[:-1]
        with keyed_dropout(batch, first):
            pooled = _pooled(self.model.base_model, states.index_select(0, first)[:, None])
            head: Any = self.model.cls
            following = head.seq_relationship(pooled)
        return PretrainingScores(*masked, following)


def require_next_sentence(name: str, config: Any) -> None:
    """Raise ``UserError`` unless a model can predict next sentences: segment ids, and a head."""
    if config.model_type not in NEXT_SENTENCE or getattr(config, "type_vocab_size", 0) < 2:
        raise UserError(
            f"--nsp: {name} ({config.model_type}) has no segment ids, or transformers no head for "
            f"next sentence prediction: use a model of type {', '.join(NEXT_SENTENCE)}, or leave "
            "--nsp out."
        )


def _pooled(model: Any, first: Tensor) -> Any:
    """Return the pooled first tokens [N, H] of states [N, 1, H]."""
    if isinstance(model.pooler, nn.Linear):  # BigBird
        return model.activation(model.pooler(first[:, 0]))
    return model.pooler(first)
