"""QuestionAnswerer: start and end logits of every token, for extractive question answering.

Devlin et al., 2019, section 4.2; Jurafsky & Martin, chapter on question answering, "answer span
extraction": a linear layer over each token's vector gives its score as the first and as the last
token of the answer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForQuestionAnswering
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from finetune.models.heads.pretrained import PaddedRows, PretrainedHead
from finetune.types import Batch

POSITIONS = ("start", "end")
"""The two logits of a token."""


class QuestionAnswerer(PretrainedHead):
    """Logits of the start and the end of an answer for each of T tokens.

    Its labels are ``POSITIONS``. ``PretrainedHead`` explains arguments and attributes.

    Examples:
        >>> from finetune import Encoding, QuestionAnswerer, pack
        >>> load = QuestionAnswerer.from_pretrained
        >>> model = load("roberta-base", labels=["start", "end"])  # doctest: +SKIP
        >>> model(pack([Encoding(0, [0, 713, 2, 2, 16, 2])])).shape  # doctest: +SKIP
        torch.Size([6, 2])
    """

    auto_class = AutoModelForQuestionAnswering
    output_class = QuestionAnsweringModelOutput

    def forward(
        self,
        batch: Batch | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> Any:
        """Return logits [T, 2] for a batch of T tokens.

        Padded rows [N, L], as ``PretrainedHead`` takes them, with ``start_positions`` and
        ``end_positions`` [N] give a ``QuestionAnsweringModelOutput``.
        """
        if batch is None:
            logits = self._logits_of_rows(PaddedRows(input_ids, attention_mask, token_type_ids))
            loss = None
            if start_positions is not None and end_positions is not None:
                positions = torch.stack([start_positions, end_positions], 1)
                loss = self._padded_loss(logits.transpose(1, 2), positions)
            start, end = logits.unbind(-1)
            return QuestionAnsweringModelOutput(loss=loss, start_logits=start, end_logits=end)
        return self._logits(batch)

    def _logits_of(self, output: Any) -> Tensor:
        return torch.stack([output.start_logits, output.end_logits], -1)


def position_losses(logits: Tensor, batch: Batch, start: Tensor, end: Tensor) -> Tensor:
    """Return the mean of the cross entropies of start and end of each sequence: [T, 2] -> [N].

    Each is over all tokens of the sequence, as in ``AutoModelForQuestionAnswering``. ``start`` and
    ``end`` are positions in each sequence [N].
    """
    scores = rows_of(logits, batch).flatten(0, 1)  # [2 N, L]
    targets = torch.stack([start, end], 1).flatten()
    return F.cross_entropy(scores, targets, reduction="none").view(-1, 2).mean(1)


def rows_of(logits: Tensor, batch: Batch) -> Tensor:
    """Return the logits of tokens as padded rows, -inf where there is no token: [N, 2, L]."""
    size = len(batch.lengths)
    lengths = batch.cu_seqlens.diff().long()
    sequence = torch.repeat_interleave(
        torch.arange(size, device=logits.device), lengths, output_size=len(logits)
    )
    padded = logits.new_full((size, batch.max_seqlen, 2), -torch.inf)
    return padded.index_put((sequence, batch.position_ids), logits).transpose(1, 2)
