"""CrfTagger: a tagger of words with a linear-chain CRF on top, as a model of its own.

No Hugging Face class has a CRF, so what is saved has a class and a configuration of its own, which
embeds the whole configuration of the tagger inside: a saved folder needs nothing else to load.
Importing this module makes ``AutoConfig`` and ``AutoModel`` know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from finetune.models.encoder import Batching, Encoder
from finetune.models.heads.crf import CrfScores, LinearChainCrf
from finetune.models.heads.custom import OwnModel
from finetune.models.heads.token_classification import TokenTagger
from finetune.types import Batch, LabelSet, UserError


class CrfTaggerConfig(PreTrainedConfig):
    """What a CrfTagger is made of: a token classification model, and the scheme of its tags.

    ``tagger`` is the whole configuration of that model; ``id2label`` are the tags; ``scheme`` is
    None where all transitions are legal.
    """

    model_type = "crf-tagger"

    def __init__(
        self, tagger: dict[str, Any] | None = None, scheme: str | None = None, **more: Any
    ) -> None:
        """Keep the parts; ``more`` is for the base class."""
        self.tagger = tagger
        self.scheme = scheme
        super().__init__(**more)


class CrfTagger(OwnModel):
    """Scores of C tags for each of W words, and of tags to begin, to end and to follow.

    ``tagger`` holds the Hugging Face model, ``crf`` the scores of transitions. Use ``from_encoder``
    for one to train and ``from_pretrained`` (or ``AutoModel``'s) for a trained one.
    """

    config_class = CrfTaggerConfig
    base_model_prefix = ""
    own_learning_rates: ClassVar[Mapping[str, tuple[str, float]]] = {"crf": ("crf_lr", 0.05)}
    """Parts whose learning rate has a setting of its own, and the rate where that is unset; they
    do not decay (``training.optimizer.parameter_groups``). 0.05 because transitions start at 0: on
    CoNLL-2003 it beat 0.01 and 0.001 after 126 steps, and equalled 0.01 after 375."""

    def __init__(
        self,
        config: CrfTaggerConfig,
        batching: Batching = "auto",
        model: PreTrainedModel | None = None,
    ) -> None:
        """A CRF with all scores 0 over a fresh token classification model, or over ``model``."""
        super().__init__(config)
        if config.tagger is None:
            raise UserError(f"a {config.model_type} needs the configuration of its tagger")
        if model is None:
            inner = AutoConfig.for_model(**config.tagger)
            model = AutoModelForTokenClassification.from_config(inner)
        self.tagger = TokenTagger(model, batching)
        self.crf = LinearChainCrf(self.labels.names, config.scheme)
        self.post_init()

    @classmethod
    def from_encoder(
        cls, name: str, *, labels: Sequence[str], scheme: str | None,
        revision: str | None = None, batching: Batching = "auto", trust_remote_code: bool = False,
    ) -> CrfTagger:  # fmt: skip
        """A tagger to train, over a hub id, short name or folder, in float32.

        ``labels`` are tags of ``scheme`` (None: all transitions are legal). Raises ValueError as
        ``TokenTagger.from_pretrained`` does, and for models that bring their own code.
        """
        model = TokenTagger.from_pretrained(
            name, labels=labels, revision=revision, batching="padded",
            trust_remote_code=trust_remote_code,
        ).model  # fmt: skip
        if type(model).__module__.startswith("transformers_modules"):
            raise UserError(
                f"model {name!r} runs its own Python code, which a tagger with a CRF cannot save: "
                "leave --crf out, or use another model."
            )
        inner = model.config.to_dict()
        for stale in ("_name_or_path", "architectures"):  # those of the checkpoint
            inner.pop(stale, None)
        labelled = {key: inner[key] for key in ("id2label", "label2id")}
        return cls(CrfTaggerConfig(inner, scheme, **labelled), batching, model)

    def forward(self, batch: Batch) -> CrfScores:
        """Emissions [W, C] of the words of a batch, with the scores of transitions."""
        return self.crf(self.tagger(batch))

    @property
    def encoder(self) -> Encoder:
        """The encoder inside, a view."""
        return self.tagger.encoder

    @property
    def labels(self) -> LabelSet:
        """The tags, in the order of the classes."""
        return self.tagger.labels

    @property
    def revision(self) -> str | None:
        """The commit of the hub model that was loaded; None for a local folder."""
        return self.tagger.revision

    def is_head(self, parameter_name: str) -> bool:
        """Whether a parameter lies above the hidden states."""
        return self.tagger.is_head(parameter_name.removeprefix("tagger."))

    def depth_of(self, parameter_name: str) -> int:
        """``Encoder.depth_of`` for a name of ``named_parameters()``: L+1 for all of the head."""
        return self.tagger.depth_of(parameter_name.removeprefix("tagger."))


AutoConfig.register(CrfTaggerConfig.model_type, CrfTaggerConfig, exist_ok=True)
AutoModel.register(CrfTaggerConfig, CrfTagger, exist_ok=True)
