"""SpanClassifier: scores of each type for every candidate span of words.

Jurafsky & Martin, chapter "Masked Language Models", span-based NER: all spans up to a number of
words are candidates, and each gets one of the types or none, y = softmax(FFN(spanrep_ij)).
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar

from torch import Tensor, nn

from finetune.models.heads.base import EncoderModel, EncoderModelConfig
from finetune.models.heads.layers import word_rows
from finetune.models.heads.span_scorers import FactorizedScorer, SpanLayout
from finetune.types import Batch, UserError, did_you_mean

REPRESENTATIONS = ("boundary", "ffn", "attention")
DECODINGS = ("flat", "nested", "overlapping")
PRIOR = 0.01
"""The probability that a new scorer gives to all types of a candidate together. Otherwise training
first has to learn that most candidates have no type (Lin et al., 2017)."""


class SpanClassifierConfig(EncoderModelConfig):
    """The configuration of a ``SpanClassifier``, which embeds its ``encoder``'s.

    Attributes:
        representation: The representation of a span, one of ``REPRESENTATIONS``.
        max_width: The widest candidate, in words.
        multi_label: Whether a span can have several types.
        hidden: Width of hidden layers; None is the encoder's width.
        thresholds: Decision thresholds by type, for decoding.
        decoding: The spans that may occur together, one of ``DECODINGS``.
        id2label: The types, without none.
    """

    model_type = "span-ner"

    representation: str = "boundary"
    max_width: int = 0
    multi_label: bool = False
    hidden: int | None = None
    dropout: float = 0.1
    thresholds: dict[str, float] = field(default_factory=dict)
    decoding: str = "nested"

    def require_legal(self) -> None:
        """Raise ``UserError`` if the settings are incomplete, or not legal together."""
        super().require_legal()
        settings = {"representation": REPRESENTATIONS, "decoding": DECODINGS}
        for name, legal in settings.items():
            if (value := getattr(self, name)) not in legal:
                hint = did_you_mean(value, legal)
                raise UserError(f"{name} {value!r} is not one of {', '.join(legal)}.{hint}")
        if self.max_width < 1:
            raise UserError(
                f"max_width must be the widest span in words, 1 or more, not {self.max_width}"
            )


class SpanClassifier(EncoderModel):
    """Scores of C classes for each of S candidate spans of words.

    ``from_pretrained`` loads a trained model; with ``labels``, the types without one for none, it
    makes one to train. Its settings are the attributes of ``SpanClassifierConfig``.

    ``encoder`` is a view of ``model``, the Hugging Face encoder; ``scorer`` is on top of it.

    Examples:
        >>> from finetune import SpanClassifier, SubwordTokenizer
        >>> load = SubwordTokenizer.from_pretrained
        >>> tokenizer = load("roberta-base", words=True)  # doctest: +SKIP
        >>> labels, load = ["PER", "LOC"], SpanClassifier.from_pretrained
        >>> model = load("roberta-base", labels=labels, max_width=8)  # doctest: +SKIP
        >>> batch = tokenizer([["Anna", "slept"]])  # doctest: +SKIP
        >>> model(batch).shape  # 3 candidates, none and 2 types  # doctest: +SKIP
        torch.Size([3, 3])
    """

    config_class = SpanClassifierConfig
    head_lr_factor: ClassVar[float] = 10.0
    config: SpanClassifierConfig

    def add_layers(self, width: int) -> None:
        """Add the layers of the head (``EncoderModel.add_layers``)."""
        self.dropout = nn.Dropout(self.config.dropout)
        num_classes = len(self.labels) + (not self.config.multi_label)
        self.scorer = FactorizedScorer(
            self.config.representation,
            width,
            self.config.hidden or width,
            num_classes,
            self.config.max_width,
            self.config.dropout,
        )

    def init_new_weights(self) -> None:
        """Set the bias so that a new model predicts few spans."""
        bias = self.scorer.output.bias.detach()
        bias.fill_(math.log(PRIOR / len(self.labels)))
        if not self.config.multi_label:
            bias[0] = 0.0

    def read(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Compute scores [S, C] of a batch's S candidates, by sequence, first word and width.

        Class 0 is none and class n + 1 the n-th of ``labels``, for a softmax; with ``multi_label``
        class n is the n-th of ``labels``, for a sigmoid.
        """
        words = self.dropout(hidden.index_select(0, word_rows(batch)))  # [W, H]
        scores: Tensor = self.scorer(words, SpanLayout(batch, self.config.max_width))
        return scores
