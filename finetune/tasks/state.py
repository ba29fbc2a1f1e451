"""The state that is saved with a model, besides its weights, to use it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from finetune.config.tasks import TrainConfig, column_map
from finetune.data.tables import Table
from finetune.evaluation.prediction_types import DEFAULT_METRICS
from finetune.preprocessing.preparation import stream_examples
from finetune.preprocessing.texts import Input, as_example, check_pair
from finetune.preprocessing.windows import WINDOW_OVERLAP
from finetune.tasks.decoding import Decoder
from finetune.types import Example, LabelSet, TokenExample

FITTED: Mapping[str, Any] = {"temperature": None, "thresholds": {}, "decisions": {}}
"""Fields of states that are fitted on the validation split after training; their defaults."""


@dataclass(frozen=True, kw_only=True)
class TaskState(Decoder):
    """Everything that is saved with a model in order to use it again (``finetune.json``).

    Each task adds the fields that it derives from training data or fits on validation data.
    """

    config: TrainConfig
    labels: LabelSet
    max_length: int  # in tokens, special tokens included
    pairs: bool | None = None
    """Whether examples are pairs of texts; None for words and for data of both types."""
    temperature: float | None = None
    """Divides logits before the softmax (Guo et al., 2017), if it is fitted."""
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """What `finetune thresholds` saved, as ``Decisions.to_dict`` returns it."""

    @property
    def prediction_type(self) -> str:
        """The name of the prediction type, as in ``TYPES``; a label if a task says nothing."""
        return "label"

    @property
    def input_keys(self) -> tuple[str, ...]:
        """The keys of an example in a request to a server; none if a server cannot read it."""
        return ("text",) if self.pairs is False else ("text", "text_pair")

    @property
    def context_words(self) -> int:
        """Most words of a document that the model reads on each side of a sentence."""
        return 0

    @property
    def usual_columns(self) -> Mapping[str, str]:
        """The columns that training named, by role: they are read where others are not named."""
        return column_map(self.config.columns)

    def read(self, source: str | Path | Table, **options: Any) -> Iterator[Example]:
        """Stream inputs as examples without gold, whose ``id`` is the row number from 0.

        Args:
            source: A path, a folder or pattern of several files, ``-`` for standard input, or a
                table.
            options: ``columns`` by role; the text ``encoding`` of the files; ``rows``, a dict that
                gets the values of each row by ``id``.

        Raises:
            DataError: If a row cannot be read; the message names file and line.
        """
        about, options = self.config.description, options | {"usual_columns": self.usual_columns}
        return stream_examples(about, source, pair=self.pairs, **options)

    def read_scored(self, source: str, **options: Any) -> Iterator[Example]:
        """Stream the inputs of a file with gold, to score their predictions, as ``read`` does."""
        return self.read(source, **options)

    def example(self, index: int, item: Input, where: str = "") -> Example:
        """Convert an input to an example; raise UserError if that is impossible."""
        type = self.config.description.examples
        return as_example(index, item, type, pairs=self.pairs, where=where)

    def checked(self, example: Example) -> Example:
        """Add the location to an example, and leave its gold out, which the model may lack.

        Raises UserError if the model cannot read it.
        """
        if not example.where:
            example = replace(example, where=f"input {example.id}")
        self.config.description.require_examples(type(example), f"{example.where}: the examples")
        if isinstance(example, TokenExample):
            return replace(example, tags=None)
        return check_pair(replace(example, label=None), self.pairs)

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best model (higher is better)."""
        return self.config.metric or DEFAULT_METRICS[self.prediction_type]

    @property
    def overlap(self) -> int:
        """Number of tokens that neighboring windows of a long text share."""
        return min(WINDOW_OVERLAP, self.max_length // 2)

    @property
    def long_text(self) -> str | None:
        """The treatment of whole texts that are too long; None for words and contexts."""
        return None

    @property
    def threshold_labels(self) -> Sequence[str]:
        """The labels whose lowest probabilities, ``thresholds``, may be changed later."""
        return ()

    def extra_fields(self) -> dict[str, Any]:
        """The fields under ``extra`` in ``finetune.json``."""
        left_out = {"config", "labels", "max_length"}
        left_out |= {name for name in ("temperature", "decisions") if not getattr(self, name)}
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names if name not in left_out}

    def unfitted(self) -> Self:
        """Remove the values that an earlier training run has fitted."""
        fields = self.extra_fields()
        return replace(self, **{name: value for name, value in FITTED.items() if name in fields})
