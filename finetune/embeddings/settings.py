"""The settings of `finetune sentence`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from finetune.config.description import PROBLEMS, TaskDescription
from finetune.config.options import COMMON, POSITIVE
from finetune.config.tasks import TrainConfig, flag
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class SentenceConfig(TrainConfig):
    """Sentence encoders: one vector for each text, for similarity and search.

    Examples:
        finetune sentence --model minilm --data stsb
        finetune sentence --model minilm --data pairs.jsonl --objective ranking --batch-size 64
    """

    description: ClassVar[TaskDescription] = TaskDescription(
        name="sentence",
        title="sentence vectors",
        example_data="similarity",
        own_reader=True,
        windows=False,
        labels=False,
        skipped_checks=("labels", "numbers", "pairs"),
        metrics=(
            "spearman_all",
            "pearson_all",
            "ranking_accuracy",
            "ranking_mrr",
            *PROBLEMS["single"][:5],
        ),
        pipeline="sentence-similarity",
        library="sentence-transformers",
        custom_head=lambda settings: settings.get("objective") == "prompt",
    )
    data: str = "stsb"
    objective: Annotated[
        Literal["mirror", "simcse", "prompt", "cmlm", "ranking", "softmax", "cosine"], COMMON
    ] = "cosine"
    """Training objective, which depends on the data. Texts: `mirror` (Mirror-BERT: a copy with a
    masked span), `simcse` (a copy with different dropout) or `prompt` (PromptBERT: two templates).
    Running text: `cmlm` (masked subwords of a sentence, given the vector of the previous sentence).
    Positive pairs, perhaps with hard negatives: `ranking`. Labeled pairs: `softmax`
    (Sentence-BERT's siamese classifier). Pairs with a similarity: `cosine` (regression)."""
    pooling: Annotated[Literal["auto", "mean", "cls", "max"], COMMON] = "auto"
    """Pooling of token vectors to the vector of a text: their mean or maximum, or the first token
    (`cls`). `auto` is the pooling that the starting model names, else the mean.
    With `--objective prompt`, the vector is the mask token of the template."""
    normalize: bool = False
    """Scale vectors to length 1."""
    temperature: Annotated[float | None, COMMON, POSITIVE] = None
    """Temperature that divides the cosines in the loss of mirror, simcse, prompt and ranking;
    default: 0.04 for mirror, else 0.05 (a scale of 20)."""
    templates: tuple[str, ...] = ()
    """Two templates for `--objective prompt`, with {text} and {mask}; default: PromptBERT's
    templates. After training, vectors come from the first template."""

    @property
    def trains_language_model(self) -> bool:
        """True for the conditional language model."""
        return self.objective == "cmlm"

    def __post_init__(self) -> None:
        super().__post_init__()
        objective = self.objective

        def refuse(name: str, reason: str) -> None:
            value = getattr(self, name)
            raise UserError(f"{flag(name)} {value}: {reason}: leave {flag(name)} out.")

        if objective == "prompt" and self.pooling != "auto":
            refuse("pooling", "with --objective prompt the mask token is the vector")
        if objective in ("softmax", "cosine", "cmlm"):
            if self.temperature is not None:
                refuse("temperature", f"--objective {objective} has none")
        elif self.batch_size == 1:
            refuse("batch_size", f"--objective {objective} compares the texts of a batch")
        if objective != "prompt" and self.templates:
            refuse("templates", "they apply to --objective prompt")
        counts = [
            (template.count("{text}"), template.count("{mask}")) for template in self.templates
        ]
        if counts not in ([], [(1, 1)] * 2):
            raise UserError(
                "--templates must be two templates that have {text} and {mask} once each, not "
                f"{self.templates}."
            )
