"""SpanNer: scores of each type for every candidate span of words, as a model class.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", span-based
NER: all spans up to a number of words are candidates, and each gets one of the types or none,
y = softmax(FFN(spanrep_ij)). ``finetune.models.heads.span_scorers`` computes the scores.

No Hugging Face class does this, so this one has a class and a configuration, which embeds the whole
configuration of the encoder. Importing this module registers them with ``AutoConfig`` and
``AutoModel``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from finetune.models.encoder import Batching, Encoder
from finetune.models.heads.base import labels_of
from finetune.models.heads.custom import CustomModel
from finetune.models.heads.span_scorers import (
    BIAFFINE_WIDTH,
    BiaffineScorer,
    FactorizedScorer,
    SpanLayout,
    word_vectors,
)
from finetune.models.loading import load_config, load_weights
from finetune.types import Batch, LabelSet, UserError, did_you_mean

REPRESENTATIONS = ("boundary", "ffn", "attention", "biaffine")
WORD_VECTORS = ("first", "mean")
DECODINGS = ("flat", "nested", "overlapping")
PRIOR = 0.01
"""The probability that a new scorer gives to all types of a candidate together."""


class SpanNerConfig(PreTrainedConfig):
    """The configuration of a ``SpanNer``.

    Attributes:
        encoder: The configuration of the encoder.
        representation: How a span is represented, one of ``REPRESENTATIONS``.
        word_vectors: ``"first"`` subword of a word, or the ``"mean"`` of its subwords.
        max_width: The widest candidate, in words; None without limit (biaffine only).
        multi_label: Whether a span can have several types.
        hidden: Width of hidden layers; None is the encoder's width, or 150 for biaffine.
        dropout: Dropout of the scorer.
        thresholds: Decision thresholds by type, for decoding.
        decoding: Which spans may occur together, one of ``DECODINGS``.
        id2label: The types, without none.
    """

    model_type = "span-ner"
    sub_configs = {"encoder": AutoConfig}  # noqa: RUF012 (transformers' own attribute)

    encoder: PreTrainedConfig | dict[str, Any] | None = None
    representation: str = "boundary"
    word_vectors: str = "first"
    max_width: int | None = None
    multi_label: bool = False
    hidden: int | None = None
    dropout: float = 0.1
    thresholds: dict[str, float] = field(default_factory=dict)
    decoding: str = "nested"

    def __post_init__(self, **more: Any) -> None:
        """Embed a copy of the encoder's configuration, whose attention the base class resets."""
        if isinstance(self.encoder, dict):
            self.encoder = AutoConfig.for_model(**self.encoder)
        else:
            self.encoder = copy.deepcopy(self.encoder)
        super().__post_init__(**more)

    def require_legal(self) -> None:
        """Raise ``UserError`` if the settings are incomplete, or not legal together."""
        if self.encoder is None:
            raise UserError("a span-ner configuration needs that of its encoder")
        for name, legal in (
            ("representation", REPRESENTATIONS),
            ("word_vectors", WORD_VECTORS),
            ("decoding", DECODINGS),
        ):
            value = getattr(self, name)
            if value not in legal:
                raise UserError(
                    f"{name} {value!r} is not one of {', '.join(legal)}."
                    f"{did_you_mean(value, legal)}"
                )
        if self.max_width is None and self.representation != "biaffine":
            raise UserError(
                f"max_width None: only biaffine scores spans of any width; {self.representation} "
                "has an embedding for each width: give the widest span in words."
            )
        if self.max_width is not None and self.max_width < 1:
            raise UserError(f"max_width must be 1 word or more, not {self.max_width}")
        if not self.id2label:
            raise UserError("span NER needs at least one label")


class SpanNer(CustomModel):
    """Scores of C classes for each of S candidate spans of words.

    Use ``from_encoder`` for a model to train and ``from_pretrained`` for a trained one.

    Args:
        config: The configuration.
        batching: How the ``Encoder`` batches sequences; the numbers are the same.
        model: An encoder of transformers to build on; None makes a fresh one.

    Attributes:
        model: The Hugging Face encoder.
        scorer: The span scorer on top.
        encoder: The ``Encoder`` inside, a view of ``model``.
        labels: The types, in the order of the classes, without none.

    Example:
        >>> from finetune import Encoding, SpanNer, pack
        >>> labels, load = ["PER", "LOC"], SpanNer.from_encoder
        >>> model = load("roberta-base", labels=labels, max_width=8)  # doctest: +SKIP
        >>> batch = pack([Encoding(0, [0, 713, 16, 2], word_starts=[1, 2, 3])])  # 2 words
        >>> model(batch).shape  # 3 candidates, none and 2 types  # doctest: +SKIP
        torch.Size([3, 3])
    """

    config_class = SpanNerConfig
    base_model_prefix = "model"
    head_lr_factor: ClassVar[float] = 10.0
    config: SpanNerConfig
    encoder_prefix = "model."

    def __init__(
        self,
        config: SpanNerConfig,
        batching: Batching = "auto",
        model: PreTrainedModel | None = None,
    ) -> None:
        super().__init__(config)
        config.require_legal()
        self.model = AutoModel.from_config(config.encoder) if model is None else model
        if getattr(self.model, "pooler", None) is not None:
            self.model.pooler = None  # reads the first token of a row; unused for words
        self.dropout = nn.Dropout(config.dropout)
        self.scorer = _scorer(config, self.model.config.hidden_size)
        self.batching = batching
        self.post_init()

    @classmethod
    def from_encoder(
        cls, name: str, *, labels: Sequence[str], representation: str = "boundary",
        word_vectors: str = "first", max_width: int | None, multi_label: bool = False,
        decoding: str = "nested", revision: str | None = None, batching: Batching = "auto",
        trust_remote_code: bool = False,
    ) -> SpanNer:  # fmt: skip
        """Make a model to train on a pretrained encoder, in float32.

        Args:
            name: Hub id, short name (``roberta-base``, ``minilm``) or folder.
            labels: The types, without one for none.
            representation: See ``SpanNerConfig``, as for the settings below.
            word_vectors: ``"first"`` or ``"mean"``.
            max_width: The widest candidate, in words.
            multi_label: Whether a span can have several types.
            decoding: Which spans may occur together.
            revision: Branch, tag or commit on the hub.
            batching: See the class.
            trust_remote_code: Needed for no model that works here.

        Raises:
            UserError: If settings are not legal together, there is no such encoder, its weights do
                not match, or it comes with Python code.
        """
        inner = load_config(name, revision=revision, trust_remote_code=trust_remote_code)
        if inner.model_type not in CONFIG_MAPPING or hasattr(inner, "auto_map"):
            raise UserError(
                f"model {name!r} runs its own Python code, which span NER cannot save: use a model "
                "of transformers."
            )
        names = LabelSet(labels)
        config = SpanNerConfig(
            encoder=inner, representation=representation, word_vectors=word_vectors,
            max_width=max_width, multi_label=multi_label, decoding=decoding,
            id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)},
        )  # fmt: skip
        config.require_legal()
        embedded: Any = config.encoder
        embedded.name_or_path, embedded.architectures = "", None  # those of the checkpoint
        model = load_weights(
            AutoModel, name, inner, revision=revision, trust_remote_code=trust_remote_code
        )
        ner = cls(config, batching, model)
        ner._initialize_bias()
        return ner

    def _initialize_bias(self) -> None:
        """Set the initial probability of all types together to ``PRIOR``.

        Else training first has to learn that most candidates are none (Lin et al., 2017).
        """
        bias = self.scorer.bias
        with torch.no_grad():
            bias.fill_(math.log(PRIOR / len(self.labels)))
            if not self.config.multi_label:
                bias[0] = 0.0

    def forward(self, batch: Batch) -> Tensor:
        """Return scores [S, C] of a batch's S candidates, by sequence, first word and width.

        Class 0 is none and class n + 1 the n-th of ``labels``, for a softmax; with ``multi_label``
        class n is the n-th of ``labels``, for a sigmoid.
        """
        hidden = self.encoder(batch)  # [T, H]
        words = self.dropout(word_vectors(hidden, batch, self.config.word_vectors))  # [W, H]
        return self.scorer(words, SpanLayout(batch, self.config.max_width))

    @property
    def batching(self) -> Batching:
        """The batching of the encoder; can be set."""
        return self._batching

    @batching.setter
    def batching(self, batching: Batching) -> None:
        self.__dict__["encoder"] = Encoder(self.model, batching)
        self._batching = batching

    @property
    def labels(self) -> LabelSet:
        """The types, in the order of the classes, without none."""
        return labels_of(self.config)


def _scorer(config: SpanNerConfig, width: int) -> FactorizedScorer | BiaffineScorer:
    """Make the scorer of a configuration for an encoder of width H."""
    num_classes = len(labels_of(config)) + (not config.multi_label)
    if config.representation == "biaffine":
        hidden = config.hidden or BIAFFINE_WIDTH
        return BiaffineScorer(width, hidden, num_classes, config.dropout)
    assert config.max_width is not None
    return FactorizedScorer(
        config.representation, width, config.hidden or width, num_classes, config.max_width,
        config.dropout,
    )  # fmt: skip


AutoConfig.register(SpanNerConfig.model_type, SpanNerConfig, exist_ok=True)
AutoModel.register(SpanNerConfig, SpanNer, exist_ok=True)
