"""CrfTagger: a token classification model with a linear-chain CRF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformers import AutoConfig, AutoModel, PreTrainedModel

from finetune.models.encoder import Batching, Encoder
from finetune.models.heads.base import EncoderModel
from finetune.models.heads.configurations import CrfTaggerConfig
from finetune.models.heads.crf import CrfScores, LinearChainCrf
from finetune.models.heads.pretrained import load_task_model
from finetune.models.heads.token_classification import TokenClassifier
from finetune.types import Batch


class CrfTagger(EncoderModel):
    """A tagger whose tags depend on each other: emissions of words and scores of transitions.

    ``from_pretrained`` loads a trained model; with ``labels`` it makes one to train, with the
    ``scheme`` of the tags, such as ``"BIO"``; None makes all transitions legal. The
    ``TokenClassifier`` in ``tagger`` computes emissions, ``finetune.models.heads.crf`` computes the
    loss, and ``finetune.tasks.viterbi`` decodes.

    Examples:
        >>> from finetune import CrfTagger, Encoding, pack
        >>> tags, load = ["O", "B-PER", "I-PER"], CrfTagger.from_pretrained
        >>> model = load("roberta-base", labels=tags, scheme="BIO")  # doctest: +SKIP
        >>> batch = pack([Encoding(0, [0, 713, 16, 2], word_starts=[1, 2, 3])])  # 2 words
        >>> model(batch).emissions.shape  # doctest: +SKIP
        torch.Size([2, 3])
    """

    config_class = CrfTaggerConfig
    base_model_prefix = ""
    separate_learning_rates: ClassVar[Mapping[str, float]] = {"crf": 0.05}
    """0.05 because transitions start at 0 and have few steps: on CoNLL-2003 it beat lower rates
    after 126 steps, and equaled 0.01 after 375."""

    def __init__(
        self,
        config: CrfTaggerConfig,
        batching: Batching = "auto",
        model: PreTrainedModel | None = None,
    ) -> None:
        super().__init__(config, batching, model)
        self.encoder_prefix = f"tagger.{self.tagger.encoder_prefix}"
        self.crf = LinearChainCrf(self.labels.names, config.scheme)
        self.post_init()  # type: ignore[no-untyped-call]

    def _hold(self, model: Any, batching: Batching) -> Encoder:
        if model is None:
            auto_class: Any = TokenClassifier.auto_class
            model = auto_class.from_config(AutoConfig.for_model(**self.config.tagger))
        self.tagger = TokenClassifier(model, batching)
        return self.tagger.encoder

    @classmethod
    def _starting(
        cls, name: str, labels: Sequence[str], settings: Mapping[str, Any], **options: Any
    ) -> tuple[CrfTaggerConfig, Any]:
        model = load_task_model(TokenClassifier.auto_class, name, labels=labels, **options)
        inner = model.config.to_dict()
        for stale in ("_name_or_path", "architectures"):  # they describe the checkpoint
            inner.pop(stale, None)
        tags = {key: inner[key] for key in ("id2label", "label2id")}
        return CrfTaggerConfig(tagger=inner, **settings, **tags), model

    def forward(self, batch: Batch) -> CrfScores:
        """Return emissions [W, C] for the words of a batch, with the transition scores."""
        scores: CrfScores = self.crf(self.tagger(batch))
        return scores


AutoModel.register(CrfTaggerConfig, CrfTagger, exist_ok=True)
