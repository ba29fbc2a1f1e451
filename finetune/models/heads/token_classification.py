"""TokenTagger: logits for each word, from its first subword or from all of them.

Jurafsky & Martin, chapter "Masked Language Models", section on sequence labeling: the vector of a
word's first subword goes through a linear layer. Rows are selected before dropout and classifier,
as a head over W words costs less than one over T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification, PreTrainedModel

from finetune.models.encoder import Batching
from finetune.models.heads.pretrained import PretrainedHead, load_task_model
from finetune.types import Batch, UserError

Subwords = Literal["first", "all"]


class TokenTagger(PretrainedHead):
    """Logits of C tags for each of W words, or for each of their subwords.

    Args:
        model: A model such as ``AutoModelForTokenClassification`` loads. It stays as it is.
        batching: How the ``Encoder`` batches sequences; the numbers are the same.
        subwords: Which subwords of a word get logits: ``"first"`` or ``"all"``.

    Attributes:
        model: The Hugging Face model, which owns all weights.
        encoder: The ``Encoder`` inside.
        labels: The tags, in the order of the classes.

    Example:
        >>> from finetune import Encoding, TokenTagger, pack
        >>> tags = ["O", "B-PER", "I-PER"]
        >>> model = TokenTagger.from_pretrained("roberta-base", labels=tags)  # doctest: +SKIP
        >>> batch = pack([Encoding(0, [0, 713, 16, 2], word_starts=[1, 2, 3])])  # 2 words
        >>> model(batch).shape  # doctest: +SKIP
        torch.Size([2, 3])
    """

    auto_class = AutoModelForTokenClassification

    def __init__(
        self, model: PreTrainedModel, batching: Batching = "auto", subwords: Subwords = "first"
    ) -> None:
        super().__init__(model, batching)
        if subwords not in ("first", "all"):
            raise UserError(f"subwords must be first or all, not {subwords!r}")
        self.subwords = subwords

    @classmethod
    def from_pretrained(
        cls, name: str, *, labels: Sequence[str] | None, subwords: Subwords = "first",
        revision: str | None = None, batching: Batching = "auto",
        trust_remote_code: bool = False, dropout: float | None = None,
    ) -> TokenTagger:  # fmt: skip
        """Load a tagger in float32.

        Args:
            name: Hub id, short name (``roberta-base``, ``minilm``) or folder.
            labels: The tags of a tagger to train. A head that the checkpoint lacks, or has for
                another number of tags, is new. None loads a fine-tuned model with its tags.
            subwords: See the class.
            revision: Branch, tag or commit on the hub.
            batching: See the class.
            trust_remote_code: Run Python code that comes with the checkpoint.
            dropout: Dropout before the classifier; None leaves the checkpoint's.

        Raises:
            UserError: If there is no such model, it is no encoder, or its weights do not match.
        """
        model = load_task_model(
            cls.auto_class, name, labels=labels, revision=revision,
            trust_remote_code=trust_remote_code, dropout=dropout,
        )  # fmt: skip
        return cls(model, batching, subwords)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits [W, C] of the words' first subwords.

        With ``subwords="all"``: [P, C] for all P subwords of all words, in order, where P is the
        sum of ``batch.word_lengths``.
        """
        rows = batch.words if self.subwords == "first" else subword_rows(batch)
        if not self.known_type:
            return self._padded_logits(batch, tokens=True).index_select(0, rows)
        head = _HEADS.get(self.known_type, _linear)
        return head(self.model, self.encoder(batch).index_select(0, rows))


def subword_rows(batch: Batch) -> Tensor:
    """Return the token index of every subword of every word, in order: [P]."""
    lengths = batch.word_lengths
    starts = lengths.cumsum(0) - lengths  # [W], among all subwords
    shifts = batch.words - starts
    shifts = torch.repeat_interleave(shifts, lengths, output_size=batch.num_subwords)  # [P]
    return shifts + torch.arange(len(shifts), device=shifts.device)


def _linear(model: Any, states: Tensor) -> Tensor:
    return model.classifier(model.dropout(states))


def _classifier(model: Any, states: Tensor) -> Tensor:
    return model.classifier(states)


def _modernbert(model: Any, states: Tensor) -> Tensor:
    return model.classifier(model.drop(model.head(states)))


_HEADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "modernbert": _modernbert,
    "eurobert": _classifier,
}
"""The head of model types that have another one than dropout and a linear layer."""
