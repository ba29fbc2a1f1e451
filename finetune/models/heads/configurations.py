"""Configurations of saved models with a head that transformers does not have.

Importing this module registers them with ``AutoConfig``. A configuration imports its model, which
registers with ``AutoModel``.
"""

from __future__ import annotations

import copy
import importlib
from dataclasses import field
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig

from finetune.types import UserError, did_you_mean

REPRESENTATIONS = ("boundary", "ffn", "attention", "biaffine")
DECODINGS = ("flat", "nested", "overlapping")


class HeadConfig(PreTrainedConfig):
    """The configuration of a model with a head of this toolkit."""

    head_module: ClassVar[str]
    """Defines the model, which registers with ``AutoModel``."""

    def __post_init__(self, **more: Any) -> None:
        """Import the model."""
        importlib.import_module(self.head_module)
        super().__post_init__(**more)  # type: ignore[no-untyped-call]

    def require_legal(self) -> None:
        """Raise ``UserError`` if the settings are incomplete, or not legal together."""
        raise NotImplementedError


class CrfTaggerConfig(HeadConfig):
    """The whole configuration of the ``tagger`` inside, and the tag ``scheme`` (None for none)."""

    model_type = "crf-tagger"
    head_module = "finetune.models.heads.crf_tagger"

    tagger: dict[str, Any] | None = None
    scheme: str | None = None

    def require_legal(self) -> None:
        """Raise ``UserError`` if there is no configuration inside."""
        if self.tagger is None:
            raise UserError(f"a {self.model_type} needs the configuration of its tagger")


class EncoderModelConfig(HeadConfig):
    """A configuration that embeds its ``encoder``'s; ``head_module`` defines the model."""

    sub_configs = {"encoder": AutoConfig}  # noqa: RUF012 (transformers' own attribute)

    encoder: PreTrainedConfig | dict[str, Any] | None = None

    def __post_init__(self, **more: Any) -> None:
        """Embed a copy of the encoder's configuration, whose attention the base class resets."""
        given = self.encoder  # a dict if it is from a file
        if isinstance(given, dict):
            self.encoder = AutoConfig.for_model(**given)
        else:
            self.encoder = copy.deepcopy(given)
        super().__post_init__(**more)

    def require_legal(self) -> None:
        """Raise ``UserError`` if the settings are incomplete, or not legal together."""
        if self.encoder is None:
            raise UserError(f"a {self.model_type} configuration needs its encoder's configuration")


class SpanClassifierConfig(EncoderModelConfig):
    """The configuration of a ``SpanClassifier``, which embeds its ``encoder``'s.

    Attributes:
        representation: The representation of a span, one of ``REPRESENTATIONS``.
        max_width: The widest candidate, in words; None without limit (biaffine only).
        multi_label: Whether a span can have several types.
        hidden: Width of hidden layers; None is the encoder's width, or 150 for biaffine.
        thresholds: Decision thresholds by type, for decoding.
        decoding: The spans that may occur together, one of ``DECODINGS``.
        id2label: The types, without none.
    """

    model_type = "span-ner"
    head_module = "finetune.models.heads.span_classifier"

    representation: str = "boundary"
    max_width: int | None = None
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
        if self.max_width is None and self.representation != "biaffine":
            raise UserError(
                f"max_width None: only biaffine scores spans of any width, not "
                f"{self.representation}: give the widest span in words."
            )
        if self.max_width is not None and self.max_width < 1:
            raise UserError(f"max_width must be 1 word or more, not {self.max_width}")
        if not self.id2label:
            raise UserError("span NER needs at least one label")


class PairClassifierConfig(EncoderModelConfig):
    """The configuration of a ``PairClassifier``, with the configuration of its ``encoder`` inside.

    Attributes:
        kind: ``"bi"`` or ``"poly"``; with ``marked_words`` also ``"cross"``.
        marked_words: Whether one word of each text is compared.
        num_codes: Number of codes that attend to the first text, with ``"poly"``.
        dropout: Dropout before the classifier.
    """

    model_type = "pair-classifier"
    head_module = "finetune.models.heads.pair_classifier"

    kind: str = "bi"
    num_codes: int = 16
    dropout: float = 0.0
    marked_words: bool = False

    def require_legal(self) -> None:
        """Raise ``UserError`` if the settings are incomplete or not legal."""
        super().require_legal()
        legal = ("cross", "bi") if self.marked_words else ("bi", "poly")
        if self.kind not in legal:
            raise UserError(f"kind {self.kind!r} is not one of {', '.join(legal)}.")
        if self.num_codes < 1:
            raise UserError(f"num_codes must be 1 or more, not {self.num_codes}")


class RelationClassifierConfig(EncoderModelConfig):
    """The configuration of a ``RelationClassifier``, which embeds its ``encoder``'s.

    Attributes:
        subject_id: The id of the start marker of a subject.
        dropout: Dropout before the classifier.
        id2label: The labels, without none.
    """

    model_type = "relation-classifier"
    head_module = "finetune.models.heads.relation_classifier"

    subject_id: int = 0
    dropout: float = 0.1


for each in (CrfTaggerConfig, SpanClassifierConfig, PairClassifierConfig, RelationClassifierConfig):
    AutoConfig.register(each.model_type, each, exist_ok=True)
