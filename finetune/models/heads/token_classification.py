"""TokenClassifier: logits for each word, from its first subword or from all of them.

Jurafsky & Martin, chapter "Masked Language Models", section on sequence labeling. Rows are selected
before dropout and classifier, as a head over W words costs less than one over T tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification, PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput

from finetune.models.encoder import Batching
from finetune.models.heads.pretrained import PretrainedHead
from finetune.types import Batch, UserError

Subwords = Literal["first", "all"]


class TokenClassifier(PretrainedHead):
    """Logits of C tags for each of W words, or for each of their subwords.

    ``subwords`` says which subwords get logits, ``"first"`` or ``"all"``. ``PretrainedHead``
    explains the other arguments and the attributes. With padded rows, ``labels`` are [N, L], and
    the output is a ``TokenClassifierOutput``.

    Examples:
        >>> from finetune import Encoding, TokenClassifier, pack
        >>> tags = ["O", "B-PER", "I-PER"]
        >>> model = TokenClassifier.from_pretrained("roberta-base", labels=tags)  # doctest: +SKIP
        >>> batch = pack([Encoding(0, [0, 713, 16, 2], word_starts=[1, 2, 3])])  # 2 words
        >>> model(batch).shape  # doctest: +SKIP
        torch.Size([2, 3])
    """

    auto_class = AutoModelForTokenClassification
    output_class = TokenClassifierOutput

    def __init__(
        self, model: PreTrainedModel, batching: Batching = "auto", subwords: Subwords = "first"
    ) -> None:
        super().__init__(model, batching)
        if subwords not in ("first", "all"):
            raise UserError(f"subwords must be first or all, not {subwords!r}")
        self.subwords = subwords

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: str | Path, *, subwords: Subwords = "first", **options: Any
    ) -> Self:
        """Load a model as ``PretrainedHead`` does; ``subwords`` is as for the class."""
        batching = options.get("batching", "auto")
        return cls(super().from_pretrained(name, **options).model, batching, subwords)

    def _rows(self, batch: Batch) -> Tensor:
        return batch.words if self.subwords == "first" else subword_rows(batch)


def subword_rows(batch: Batch) -> Tensor:
    """Return the token index of every subword of every word, in order: [P]."""
    lengths = batch.word_lengths
    starts = lengths.cumsum(0) - lengths  # [W], among all subwords
    shifts = batch.words - starts
    shifts = torch.repeat_interleave(shifts, lengths, output_size=batch.num_subwords)  # [P]
    return shifts + torch.arange(len(shifts), device=shifts.device)
