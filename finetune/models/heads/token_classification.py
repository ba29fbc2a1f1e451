"""TokenTagger: scores for each word, from its first piece or from all.

Jurafsky & Martin, chapter "Masked Language Models", section on sequence labelling: the vector of
a word's first piece goes through a linear layer. Rows are picked before dropout and classifier:
a head over W words costs less than one over T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification, PreTrainedModel

from finetune.models.encoder import Batching
from finetune.models.heads.pretrained import PretrainedHead
from finetune.types import Batch, UserError

Pieces = Literal["first", "all"]


class TokenTagger(PretrainedHead):
    """Scores of C tags for each of W words, or for each of their P pieces."""

    auto_class = AutoModelForTokenClassification

    def __init__(
        self, model: PreTrainedModel, batching: Batching = "auto", pieces: Pieces = "first"
    ) -> None:
        """Wrap a Hugging Face token classification model."""
        super().__init__(model, batching)
        if pieces not in ("first", "all"):
            raise UserError(f"pieces must be first or all, not {pieces!r}")
        self.pieces = pieces

    @classmethod
    def from_pretrained(
        cls, name: str, *, labels: Sequence[str] | None, pieces: Pieces = "first",
        revision: str | None = None, batching: Batching = "auto",
        trust_remote_code: bool = False, dropout: float | None = None,
    ) -> TokenTagger:  # fmt: skip
        """A tagger over a hub id, short name or folder, in float32.

        ``labels``, ``dropout`` and errors as in ``SequenceClassifier.from_pretrained``; ``pieces``
        says for which pieces of a word ``forward`` answers.
        """
        tagger = cls._load(
            name, labels=labels, revision=revision, batching=batching,
            trust_remote_code=trust_remote_code, dropout=dropout,
        )  # fmt: skip
        return cls(tagger.model, batching, pieces)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [W, C] of the words' first pieces, or [P, C] of all pieces of all words in order
        (``pieces="all"``, P the sum of ``batch.word_lengths``)."""
        rows = batch.words if self.pieces == "first" else piece_rows(batch)
        head = _HEADS.get(self.known_type)
        if head is None:
            return self._padded_logits(batch, tokens=True).index_select(0, rows)
        return head(self.model, self.encoder(batch).index_select(0, rows))


def piece_rows(batch: Batch) -> Tensor:
    """The row of every piece of every word, in order: [P]."""
    lengths = batch.word_lengths
    begins = lengths.cumsum(0) - lengths  # [W], among all pieces
    shifts = batch.words - begins
    shifts = torch.repeat_interleave(shifts, lengths, output_size=batch.num_pieces)  # [P]
    return shifts + torch.arange(len(shifts), device=shifts.device)


def _linear(model: Any, states: Tensor) -> Tensor:
    return model.classifier(model.dropout(states))


def _classifier(model: Any, states: Tensor) -> Tensor:
    return model.classifier(states)


def _modernbert(model: Any, states: Tensor) -> Tensor:
    return model.classifier(model.drop(model.head(states)))


_HEADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "bert": _linear,
    "ernie": _linear,
    "roberta": _linear,
    "xlm-roberta": _linear,
    "xlm-roberta-xl": _linear,
    "camembert": _linear,
    "data2vec-text": _linear,
    "roberta-prelayernorm": _linear,
    "electra": _linear,
    "albert": _linear,
    "distilbert": _linear,
    "deberta": _linear,
    "deberta-v2": _linear,
    "mpnet": _linear,
    "modernbert": _modernbert,
    "eurobert": _classifier,
    "nomic_bert": _linear,
    "jina_embeddings_v3": _linear,
}
"""The head of each model type with a parity test; others run the Hugging Face class on padding."""
