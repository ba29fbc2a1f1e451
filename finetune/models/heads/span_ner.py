"""SpanNer: a score of each type for every candidate span of words, as a model of its own.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", span-based
NER: all spans up to a number of words are candidates, and each gets one of the types or none,
y = softmax(FFN(spanrep_ij)). How the scores come about: ``finetune.models.heads.span_scorers``.

No Hugging Face class does this, so what is saved has a class and a configuration of its own, which
embeds the whole configuration of the encoder: a saved folder needs nothing else to load. Importing
this module makes ``AutoConfig`` and ``AutoModel`` know it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from finetune.models.encoder import Batching, Encoder
from finetune.models.heads.custom import OwnModel
from finetune.models.heads.span_scorers import (
    BIAFFINE_WIDTH,
    BiaffineScorer,
    FactorisedScorer,
    SpanLayout,
    word_vectors,
)
from finetune.models.loading import load_config, load_weights
from finetune.types import Batch, LabelSet, UserError, perhaps

REPRESENTATIONS = ("boundary", "ffn", "attention", "biaffine")
WORD_VECTORS = ("first", "mean")
DECODINGS = ("flat", "nested", "overlapping")
PRIOR = 0.01
"""The probability that a fresh scorer gives to a candidate's having a type."""


class SpanNerConfig(PreTrainedConfig):
    """What a SpanNer is made of, and how its scores become an answer.

    ``encoder`` is the configuration of the encoder, ``id2label`` the types without none. How spans
    are represented: ``representation``, ``word_vectors``, ``max_width`` (words; None without
    limit), ``hidden`` (units; None is the encoder's width, and 150 for biaffine), ``dropout``. With
    ``multi_label`` a span can have several types. ``thresholds`` (by type) and ``decoding`` (which
    spans may stand together) are for whoever turns scores into an answer.
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
        """Make the embedded configuration one of its class."""
        if isinstance(self.encoder, dict):
            self.encoder = AutoConfig.for_model(**self.encoder)
        super().__post_init__(**more)

    def require_legal(self) -> None:
        """Raise ValueError where no model can be made of the settings."""
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
                    f"{name} {value!r} is not one of {', '.join(legal)}.{perhaps(value, legal)}"
                )
        if self.max_width is None and self.representation != "biaffine":
            raise UserError(
                f"max_width None: spans of any width are for biaffine, and {self.representation} "
                "has an embedding of each width: give the widest span in words."
            )
        if self.max_width is not None and self.max_width < 1:
            raise UserError(f"max_width must be 1 word or more, not {self.max_width}")
        if not self.id2label:
            raise UserError("span NER needs at least one label")


class SpanNer(OwnModel):
    """Scores of the types of each of S candidate spans.

    ``model`` is the Hugging Face encoder and ``scorer`` the rest; ``encoder`` is a view of the
    model, not registered as a submodule: each weight has one name. Use ``from_encoder`` for one to
    train and ``from_pretrained`` (or ``AutoModel``'s) for a trained one.
    """

    config_class = SpanNerConfig
    base_model_prefix = "model"
    head_lr_factor: ClassVar[float] = 10.0
    config: SpanNerConfig
    encoder: Encoder

    def __init__(
        self,
        config: SpanNerConfig,
        batching: Batching = "auto",
        model: PreTrainedModel | None = None,
    ) -> None:
        """A fresh scorer over a fresh encoder, or over ``model``."""
        super().__init__(config)
        config.require_legal()
        self.model = AutoModel.from_config(config.encoder) if model is None else model
        if getattr(self.model, "pooler", None) is not None:
            self.model.pooler = None  # reads the first token of a row: words have no use for it
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
        """A model to train, over a hub id, short name or folder, in float32.

        ``labels`` are the types, without one for none. Raises ValueError for settings that do not
        go together, where there is no such encoder, and for one that brings its own code.
        """
        where: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        inner = load_config(name, **where)
        if inner.model_type not in CONFIG_MAPPING or hasattr(inner, "auto_map"):
            raise UserError(
                f"model {name!r} brings its own Python code, which span NER cannot save: use a "
                "model that transformers knows."
            )
        names = LabelSet(labels)
        config = SpanNerConfig(
            encoder=inner, representation=representation, word_vectors=word_vectors,
            max_width=max_width, multi_label=multi_label, decoding=decoding,
            id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)},
        )  # fmt: skip
        config.require_legal()
        model = load_weights(AutoModel, name, inner, **where)
        inner.name_or_path, inner.architectures = "", None  # those of the checkpoint
        fresh = cls(config, batching, model)
        fresh._expect_few()
        return fresh

    def _expect_few(self) -> None:
        """Let the fresh scorer begin at ``PRIOR`` for all types together, so that training need
        not find out first that most candidates are none (as Lin et al., 2017, for detection)."""
        bias = self.scorer.bias
        with torch.no_grad():
            bias.fill_(math.log(PRIOR / len(self.labels)))
            if not self.config.multi_label:
                bias[0] = 0.0

    def forward(self, batch: Batch) -> Tensor:
        """Scores [S, C] of a batch's S candidates: sequence by sequence, by first word, by width.

        Class 0 is none and class n + 1 the n-th of ``labels``; with ``multi_label`` class n is the
        n-th label, to be read through a sigmoid.
        """
        hidden = self.encoder(batch)  # [T, H]
        words = self.dropout(word_vectors(hidden, batch, self.config.word_vectors))  # [W, H]
        return self.scorer(words, SpanLayout(batch, self.config.max_width))

    @property
    def batching(self) -> Batching:
        """How sequences meet in the encoder, a matter of speed alone; can be set."""
        return self._batching

    @batching.setter
    def batching(self, batching: Batching) -> None:
        self.__dict__["encoder"] = Encoder(self.model, batching)
        self._batching = batching

    @property
    def labels(self) -> LabelSet:
        """The types, in the order of the classes, without none."""
        names = self.config.id2label
        return LabelSet(names[index] for index in range(len(names)))

    @property
    def revision(self) -> str | None:
        """The commit of the hub model that was loaded; None for a local folder."""
        return getattr(self.model.config, "_commit_hash", None)

    def is_head(self, parameter_name: str) -> bool:
        """Whether a parameter lies above the hidden states."""
        return not parameter_name.startswith("model.")

    def depth_of(self, parameter_name: str) -> int:
        """``Encoder.depth_of`` for a name of ``named_parameters()``: L+1 for all of the head."""
        if self.is_head(parameter_name):
            return self.encoder.top_depth
        return self.encoder.depth_of(parameter_name.removeprefix("model."))


def _scorer(config: SpanNerConfig, width: int) -> FactorisedScorer | BiaffineScorer:
    """The scorer of a configuration over an encoder of width H."""
    num_classes = len(config.id2label) + (not config.multi_label)
    if config.representation == "biaffine":
        hidden = config.hidden or BIAFFINE_WIDTH
        return BiaffineScorer(width, hidden, num_classes, config.dropout)
    assert config.max_width is not None
    return FactorisedScorer(
        config.representation, width, config.hidden or width, num_classes, config.max_width,
        config.dropout,
    )  # fmt: skip


AutoConfig.register(SpanNerConfig.model_type, SpanNerConfig, exist_ok=True)
AutoModel.register(SpanNerConfig, SpanNer, exist_ok=True)
