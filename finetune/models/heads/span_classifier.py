"""SpanClassifier: scores of each type for every candidate span of words.

Jurafsky & Martin, chapter "Masked Language Models", span-based NER: all spans up to a number of
words are candidates, and each gets one of the types or none, y = softmax(FFN(spanrep_ij)).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from finetune.models.dropout import keyed_dropout
from finetune.models.encoder import Batching
from finetune.models.heads.base import EncoderModel
from finetune.models.heads.configurations import SpanClassifierConfig
from finetune.models.heads.span_scorers import (
    BIAFFINE_WIDTH,
    BiaffineScorer,
    FactorizedScorer,
    SpanLayout,
)
from finetune.types import Batch

PRIOR = 0.01
"""The probability that a new scorer gives to all types of a candidate together. Otherwise training
first has to learn that most candidates have no type (Lin et al., 2017)."""


class SpanClassifier(EncoderModel):
    """Scores of C classes for each of S candidate spans of words.

    ``from_pretrained`` loads a trained model; with ``labels``, the types without one for none, it
    makes one to train. Its settings are the attributes of ``SpanClassifierConfig``.

    ``encoder`` is a view of ``model``, the Hugging Face encoder; ``scorer`` is on top of it.

    Examples:
        >>> from finetune import Encoding, SpanClassifier, pack
        >>> labels, load = ["PER", "LOC"], SpanClassifier.from_pretrained
        >>> model = load("roberta-base", labels=labels, max_width=8)  # doctest: +SKIP
        >>> batch = pack([Encoding(0, [0, 713, 16, 2], word_starts=[1, 2, 3])])  # 2 words
        >>> model(batch).shape  # 3 candidates, none and 2 types  # doctest: +SKIP
        torch.Size([3, 3])
    """

    config_class = SpanClassifierConfig
    head_lr_factor: ClassVar[float] = 10.0
    config: SpanClassifierConfig

    def __init__(
        self,
        config: SpanClassifierConfig,
        batching: Batching = "auto",
        model: PreTrainedModel | None = None,
    ) -> None:
        super().__init__(config, batching, model)
        self.dropout = nn.Dropout(config.dropout)
        width = self.model.config.hidden_size
        num_classes = len(self.labels) + (not config.multi_label)
        self.scorer: FactorizedScorer | BiaffineScorer
        if config.representation == "biaffine":
            hidden = config.hidden or BIAFFINE_WIDTH
            self.scorer = BiaffineScorer(width, hidden, num_classes, config.dropout)
        else:
            assert config.max_width is not None
            self.scorer = FactorizedScorer(
                config.representation,
                width,
                config.hidden or width,
                num_classes,
                config.max_width,
                config.dropout,
            )
        self.post_init()  # type: ignore[no-untyped-call]

    def _begin(self) -> None:
        with torch.no_grad():
            self.scorer.bias.fill_(math.log(PRIOR / len(self.labels)))
            if not self.config.multi_label:
                self.scorer.bias[0] = 0.0

    def forward(self, batch: Batch) -> Tensor:
        """Return scores [S, C] of a batch's S candidates, by sequence, first word and width.

        Class 0 is none and class n + 1 the n-th of ``labels``, for a softmax; with ``multi_label``
        class n is the n-th of ``labels``, for a sigmoid.
        """
        hidden = self.encoder(batch)  # [T, H]
        with keyed_dropout(batch, batch.words):
            words = self.dropout(hidden.index_select(0, batch.words))  # [W, H]
            scores: Tensor = self.scorer(words, SpanLayout(batch, self.config.max_width))
        return scores


AutoModel.register(SpanClassifierConfig, SpanClassifier, exist_ok=True)
