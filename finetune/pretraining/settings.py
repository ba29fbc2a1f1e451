"""The settings of `finetune pretrain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from finetune.config.description import TaskDescription
from finetune.config.options import COMMON, FRACTION, Limit
from finetune.config.tasks import TrainConfig
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainConfig):
    """Masked language modeling on running text: adapt an encoder, or train one from scratch.

    Examples:
        finetune pretrain --model roberta-base --data texts/
        finetune pretrain --config small --tokenizer vocabulary/ --data en=en.txt,de=de.txt
    """

    description: ClassVar[TaskDescription] = TaskDescription(
        name="pretrain",
        title="masked language modeling",
        example_data="text",
        own_reader=True,
        reads_targets=True,
        labels=False,
        fills_masks=True,
        metrics=("mlm_accuracy", "mlm_loss", "perplexity", "sbo_loss", "nsp_accuracy"),
        pipeline="fill-mask",
        example="The city lies on a {mask}.",
    )
    unused: ClassVar[tuple[str, ...]] = ("bilstm", "test_sets")
    data: str = ""
    """Running text: a file, a folder, `train=PATH,validation=PATH`, a hub data set such as
    `owner/name:config`, or several sources such as `en=PATH,de=PATH`. Each line is a sentence, and
    blank lines separate documents. In files without blank lines, and in JSON Lines, each line is a
    document."""
    config: Annotated[str | None, COMMON] = None
    """Train a new encoder with random weights: `small` (BERT with 4 layers and hidden size 256), or
    the configuration of this model or folder. --tokenizer is needed, unless that model has one."""
    tokenizer: Annotated[str | None, COMMON] = None
    """Folder or model with the tokenizer for --config."""
    alpha: Annotated[float, Limit(lambda value: 0 <= value <= 1, "from 0 to 1")] = 0.3
    """Exponent of the sizes of several sources: 1 keeps their proportions, 0 makes them equal.
    Sequences of small sources are repeated."""
    packing: Literal["doc-sentences", "full-sentences"] = "doc-sentences"
    """Fill sequences with whole lines of one document (`doc-sentences`), or across documents, with
    a separator (`full-sentences`)."""
    mask: Annotated[Literal["subwords", "words", "spans"], COMMON] = "subwords"
    """Mask single subwords, whole words, or spans of words of geometrically distributed length."""
    mask_probability: Annotated[float, FRACTION] = 0.15
    """Fraction of the subwords to predict. Of these, 80 % are masked, 10 % are replaced at random
    and 10 % are kept."""
    replacement: Literal["uniform", "unigram"] = "uniform"
    """Distribution of random subwords: uniform over the vocabulary, or their frequency in the
    training text."""
    explore: bool = False
    """Mask each subword exactly once within 1 / --mask-probability epochs."""
    boundary: bool = False
    """Add the span boundary objective of SpanBERT: predict the subwords of a span from its two
    neighbors. It needs --mask spans."""
    nsp: bool = False
    """Add next sentence prediction (BERT). Half of the sequences are two parts of one document; in
    the other half, the second part is from another document."""
    lr: float | None = None
    """Peak learning rate; default: 1e-4, or 5e-4 for small encoders (hidden size below 512)."""
    warmup: float = 0.06
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-6
    validation: str = "auto"
    """Fraction of the documents to hold out for selecting the best model, if the data have no
    validation split: `0.2`. `auto` holds out 0.05, at most about 10,000 documents; `none` trains on
    everything and keeps the last model."""

    @property
    def new_encoder(self) -> str | None:
        """The configuration of a new encoder; None for a pretrained one."""
        return self.config

    @property
    def trains_language_model(self) -> bool:
        """Always true: training starts from the masked-LM head of the checkpoint."""
        return True

    @property
    def lr_factor(self) -> float:
        """Factor of the learning rate of the head."""
        from finetune.models.heads.masked_lm import MaskedLanguageModel

        return MaskedLanguageModel.lr_factor

    def _check_combinations(self) -> None:
        super()._check_combinations()
        if self.config is None and self.tokenizer is not None:
            raise UserError(
                f"--tokenizer {self.tokenizer} is for a new encoder, with --config: an encoder "
                "reads the subwords that it was trained with."
            )
        if self.config is not None:
            if self.model is not None or self.init_from is not None:
                option = "--model" if self.init_from is None else "--init-from"
                raise UserError(f"--config trains a new encoder: leave {option} out.")
            if self.tuning != "full":
                raise UserError(
                    f"--tuning {self.tuning}: --config has random weights, which all need training."
                )
        if self.explore and self.mask == "spans":
            raise UserError("--explore divides subwords or words: choose another --mask.")
        if self.boundary and self.mask != "spans":
            raise UserError(
                f"--boundary predicts spans from their neighbors, not {self.mask}: add --mask "
                "spans, or leave --boundary out."
            )
        if self.nsp and self.packing != "doc-sentences":
            raise UserError(
                f"--nsp divides texts of one document: leave --packing {self.packing} out."
            )
