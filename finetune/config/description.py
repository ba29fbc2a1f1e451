"""Descriptions of tasks for layers that cannot import the tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from finetune.types import TextExample, TokenExample, UserError

ECE_METRICS = ("ece", "ece_uncalibrated")
"""The metrics of calibrated probabilities."""

VOTES = ("soft_cross_entropy", "agreement", "votes_entropy")
"""The metrics of texts with votes of several annotators."""

HIERARCHY = ("hierarchical_precision", "hierarchical_recall", "hierarchical_f1")
"""The metrics of labels with levels."""

PROBLEMS: Mapping[str, tuple[str, ...]] = {
    "single": ("accuracy", "macro_f1", "weighted_f1", "matthews", "f1", *ECE_METRICS, *VOTES),
    "multi": (
        "micro_f1",
        "macro_f1",
        "weighted_f1",
        "subset_accuracy",
        "hamming_loss",
        *ECE_METRICS,
    ),
    "regression": ("pearson", "spearman", "mse"),
}
"""The metrics of each `problem` of the task classify."""


@dataclass(frozen=True, kw_only=True)
class TaskDescription:
    """A task in words, and the type of its examples and models."""

    name: str
    """The name of the command."""
    title: str
    """What models are trained for, in a model card."""
    examples: type[TextExample] | type[TokenExample] = TextExample
    """The class of its examples, which ``finetune.preprocessing.preparation`` reads."""
    own_reader: bool = False
    """Whether only the task can read its data."""
    pairs: bool | None = None
    """Whether all data of the task are pairs of texts; None if the data tell."""
    given_spans: bool = False
    """Whether the model reads spans that are given, and relates them."""
    example_file: str = ""
    """Name of a file of examples, for tasks whose examples are more than a text or a pair."""
    example_data: str = "sentiment"
    """Name of the folder of its small data in ``examples/data``."""
    windows: bool = True
    """Whether several sequences of an example are windows of a long one."""
    grouped: bool = False
    """Whether the loss of a micro-batch needs all sequences of an example: training keeps them
    together. An example of more than ``--max-tokens`` tokens is a micro-batch of its own."""
    reads_targets: bool = False
    """Whether the model reads the targets of a batch, also for predictions."""
    labels: bool = True
    """Whether predictions are labels or numbers, and not vectors or subwords."""
    fills_masks: bool = False
    """Whether the model fills masks in running text."""
    skipped_checks: tuple[str, ...] = ()
    """The data checks that do not apply."""
    joint: bool = False
    """Whether several tasks can share an encoder in training (recipes with ``task: multitask``)."""
    metrics: tuple[str, ...] = ()
    """The metrics that recipes may expect."""
    searched: Mapping[str, tuple[float, float]] | None = None
    """Learning rates that ``finetune search`` varies by default besides --lr, from and to these
    multiples of its default."""
    pipeline: str = "text-classification"
    """The task of the hub and of pipelines of transformers."""
    auto_class: str = ""
    """The class of transformers that loads its models, for tasks without a pipeline there."""
    predicts: str = ""
    """What a prediction is, in words, if it is no label of the model."""
    own_pipeline: str | None = None
    """The pipeline of this toolkit for models with a custom head; None if there is none."""
    library: str = "transformers"
    """The library that loads models without a custom head."""
    custom_head: Callable[[Mapping[str, Any]], bool] = lambda settings: False
    """Whether ``library`` cannot load the model of these settings."""
    decoding: str = ""
    """What a prediction does beyond the pipeline of transformers, in words."""
    example: str = "I would watch it again tomorrow."
    """A text for the model card, with ``{mask}`` for the mask of the model. For tasks with
    ``auto_class`` an example in Python."""

    @property
    def words(self) -> bool:
        """True if examples are words and not whole texts."""
        return self.examples is TokenExample

    def require_examples(self, example_type: type, which: str) -> None:
        """Raise UserError if the task does not read examples of this class; ``which`` has them."""
        if not issubclass(example_type, self.examples):
            raise UserError(
                f"{which} are {example_type.__name__}, and `{self.name}` reads "
                f"finetune.{self.examples.__name__}: make these."
            )
