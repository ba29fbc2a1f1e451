"""The interface that every task implements, and what all tasks share.

A task knows how to encode examples, how to compute a loss from logits and how to turn logits into
predictions and scores. It holds no data, and nothing in it changes: ``load_task`` returns the task
and the prepared data, ``calibrate`` returns a new task.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from finetune.config.tasks import TrainConfig, settings
from finetune.data import Dataset, hold_out
from finetune.models.families import FAMILIES, position_limit
from finetune.models.loading import load_config
from finetune.models.warm_start import WarmStart, find_warm_start
from finetune.preprocessing.encodings import Encoded, Encodings, Ragged
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.types import (
    Batch,
    Encoding,
    Example,
    LabelSet,
    Partial,
    Prediction,
    TextExample,
    UserError,
)

if TYPE_CHECKING:
    import torch

OVERLAP = 64
"""Default number of tokens that neighboring windows of a long text share."""
CHUNK = 8192
"""Number of examples that are tokenized at a time."""
FITTED: Mapping[str, Any] = {"temperature": None, "thresholds": {}}
"""Fields of records that are fitted on the validation split after training, and their defaults."""
FORMAT = 1
"""Version of the saved record."""


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """Everything that is saved with a model in order to use it again (``finetune.json``).

    Each task adds fields for what it derives from the training data or fits on validation.

    Attributes:
        config: The settings of the training run.
        labels: The label names in the order of the classes.
        max_length: Length of the longest sequence in tokens, special tokens included.
        pairs: Whether examples are pairs of texts; None for words and for data of both kinds.
    """

    config: TrainConfig
    labels: LabelSet
    max_length: int
    pairs: bool | None = None

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best model (higher is better)."""
        raise NotImplementedError

    @property
    def calibrates(self) -> bool:
        """Whether ``Task.calibrate`` fits something."""
        return False

    @property
    def overlap(self) -> int:
        """Number of tokens that neighboring windows of a long text share."""
        overlap, largest = self.config.overlap, self.max_length // 2
        if overlap is not None and overlap > largest:
            raise UserError(
                f"--overlap {overlap} is over half of --max-length {self.max_length}: write "
                f"{largest} or less."
            )
        return min(OVERLAP, largest) if overlap is None else overlap

    def own_fields(self) -> dict[str, Any]:
        """Values of the fields under ``extra`` in ``finetune.json``."""
        others = ("config", "labels", "max_length")
        names = [f.name for f in dataclasses.fields(self) if f.name not in others]
        values = {name: getattr(self, name) for name in names}
        if values.get("temperature", 1.0) is None:  # not fitted
            del values["temperature"]
        return values

    def unfitted(self) -> Self:
        """The same record without values fitted by an earlier training run."""
        names = {field.name for field in dataclasses.fields(self)}
        return replace(self, **{n: value for n, value in FITTED.items() if n in names})

    def to_json(self, task: str) -> dict[str, Any]:
        """The content of ``finetune.json``."""
        return {
            "format": FORMAT,
            "task": task,
            "labels": list(self.labels),
            "max_length": self.max_length,
            "extra": self.own_fields(),
            "config": settings(self.config),
        }


class Calibrated(NamedTuple):
    """Result of a calibration: the new task, its predictions, and a note for the log."""

    task: Task
    predictions: list[Prediction]
    note: str


@dataclass(frozen=True, eq=False)
class Task(ABC):
    """What trainer, inference and commands need to know about a task.

    Attributes:
        record: The settings, the labels and all values that are saved with a model.
        tokenizer: The tokenizer of the encoder.
    """

    record: TaskRecord
    tokenizer: SubwordTokenizer
    _warm_start: WarmStart | None = None

    name: ClassVar[str]
    """The name of the command: classify, nli, tag, ner."""
    reads_words: ClassVar[bool]
    """Whether examples are words (``TokenExample``) instead of whole texts (``TextExample``)."""
    record_class: ClassVar[type[TaskRecord]]

    # Preparing data

    @classmethod
    def load(cls, config: TrainConfig, data: Dataset | None = None) -> tuple[Task, Dataset]:
        """Read and prepare the data, derive the labels from them and load the tokenizer.

        Args:
            config: The settings of the training run.
            data: Data in memory, in place of those that ``config.data`` names.

        Raises:
            UserError: The data have no training split, or do not fit the task.
        """
        data = cls.prepare(config, cls.read(config) if data is None else data)
        if "train" not in data.splits:
            raise UserError(
                f"{config.data}: there is no train split (found: {', '.join(data.splits)}). "
                "Name it with --data train=FILE,test=FILE."
            )
        derived = cls.derive(config, data)
        data = hold_out(data)
        warm_start = None
        if config.init_from is not None:
            warm_start = find_warm_start(
                config, cls.name, derived["labels"], derived.get("problem")
            )
        tokenizer = _load_tokenizer(config, warm_start, cls.reads_words)
        encoder = starting_config(config, warm_start)
        limit = position_limit(encoder, FAMILIES.get(encoder.model_type))
        record = cls.record_class(
            config=config, max_length=tokenizer.max_length(limit, config.max_length), **derived
        )
        if config.limit is not None:
            data = _limited(data, config.limit)
        notes = [*data.notes, *cls.notes(record, data), *([warm_start.note] if warm_start else [])]
        return cls(record, tokenizer, warm_start), replace(data, notes=notes)

    @classmethod
    @abstractmethod
    def read(cls, config: TrainConfig) -> Dataset:
        """Read the data that ``config.data`` names."""

    @classmethod
    def prepare(cls, config: TrainConfig, data: Dataset) -> Dataset:
        """Bring data into the form of the task: map labels, drop and count rows without gold."""
        return data

    @classmethod
    @abstractmethod
    def derive(cls, config: TrainConfig, data: Dataset) -> dict[str, Any]:
        """Values of the record's fields that follow from the training data: labels and so on."""

    @classmethod
    def notes(cls, record: Any, data: Dataset) -> list[str]:
        """Notes for the log on how settings and data fit together."""
        return []

    # Training and inference

    def encode(self, examples: Sequence[Example]) -> Encoded:
        """Turn examples into sequences of token ids: one for each example, or several windows."""
        chunks = (examples[start : start + CHUNK] for start in range(0, len(examples), CHUNK))
        with _without_garbage_collection():
            encoded = Encoded.joined([Encoded.of(*self._sequences(chunk)) for chunk in chunks])
        return replace(encoded, notes=tuple(self._encoding_notes(examples, encoded)))

    @abstractmethod
    def _sequences(self, examples: Sequence[Any]) -> tuple[list[list[Encoding]], int]:
        """The sequences of each example, and how many texts or words were cut to fit."""

    def _encoding_notes(self, examples: Sequence[Any], encoded: Encoded) -> list[str]:
        """Notes for the log on what the model cannot read or predict of the examples."""
        ids = encoded.sequences.ids.values
        return self.tokenizer.unreadable(int((ids == self.tokenizer.unknown).sum()), len(ids))

    def collate(self, encodings: Iterable[Encoding]) -> dict[str, torch.Tensor]:
        """Make the targets of a batch of sequences, in their order; none if gold is missing."""
        targets = Encodings.of(encodings).targets
        return {} if targets is None else self._targets(targets)

    @abstractmethod
    def _targets(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        """The targets of a batch from those of its sequences."""

    @abstractmethod
    def head(self, folder: str | Path | None = None) -> Any:
        """Make a new model on the configured encoder, or load the model saved in a folder."""

    @abstractmethod
    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the sum of the losses and the number to divide it by.

        Args:
            logits: The output of the head: a tensor or a named tuple of tensors.
            batch: A batch with targets.
        """

    @abstractmethod
    def decode(self, logits: Any, batch: Batch) -> list[Partial]:
        """Turn the logits of a batch into one partial result for each sequence."""

    @abstractmethod
    def finish(
        self,
        example: Any,
        partials: Sequence[Partial],
        *,
        keep_log_probabilities: bool = False,
    ) -> Any:
        """Make the prediction for an example from the partial results of its sequences.

        ``keep_log_probabilities`` stores the log-probabilities of all tags in a
        ``TokenPrediction``. Predictions of other kinds always have their scores.
        """

    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Compute metrics by name.

        Args:
            gold: Examples. Those without gold are left out; without any the result is empty.
            predicted: Their predictions, in the same order.
        """
        pairs = zip(gold, predicted, strict=True)
        scored = [pair for pair in pairs if self._gold(pair[0]) is not None]
        return self._score(*map(list, zip(*scored, strict=True))) if scored else {}

    @abstractmethod
    def _gold(self, example: Any) -> Any:
        """The gold of an example, None if it has none."""

    @abstractmethod
    def _score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Metrics of examples that all have gold."""

    def calibrate(self, gold: Sequence[Any], predicted: Sequence[Any]) -> Calibrated | None:
        """Fit a temperature or thresholds on the validation split, if the configuration asks."""
        return None

    @contextlib.contextmanager
    def _pretrained(self) -> Iterator[dict[str, Any]]:
        """Name and options of the checkpoint that a new model starts from, while in the block."""
        config = self.record.config
        trusted = {"trust_remote_code": config.trust_remote_code}
        if self._warm_start is None:
            yield {"name": config.model, "revision": config.revision, **trusted}
            return
        with self._warm_start.checkpoint() as folder:
            yield {"name": folder, "revision": None, **trusted}


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Stop Python from searching millions of new lists for reference cycles: there are none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load_tokenizer(
    config: TrainConfig, warm_start: WarmStart | None, words: bool
) -> SubwordTokenizer:
    if warm_start is not None:
        return SubwordTokenizer.saved(warm_start.source, words=words, **warm_start.options)
    return SubwordTokenizer.from_pretrained(
        config.model,
        words=words,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )


def starting_config(config: TrainConfig, warm_start: WarmStart | None = None) -> Any:
    """The Hugging Face configuration of the encoder that a new model starts from."""
    if warm_start is None and config.init_from is not None:
        warm_start = find_warm_start(config, "", (), None)
    if warm_start is not None:
        return warm_start.config
    return load_config(
        config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
    )


def _limited(data: Dataset, limit: int) -> Dataset:
    """Keep the first training examples."""
    train = data.splits["train"]
    if limit >= len(train):
        return data
    note = f"the first {limit:,} of {len(train):,} training examples are used (--limit)"
    used, labels = (
        {e.label for e in rows if isinstance(e, TextExample)} for rows in (train[:limit], train)
    )
    if len(used) == 1 < len(labels):
        note += f"; all of them are {next(iter(used))!r}: the data are sorted, shuffle them"
    return replace(data, splits={**data.splits, "train": train[:limit]}, notes=[*data.notes, note])
