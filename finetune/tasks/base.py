"""The interface of tasks: how data make one, encoding, loss, decoding and scores.

A task is immutable and holds no data. ``Any`` in a signature is the configuration, record, example
or prediction class of the task, or the output of its head: subclasses narrow it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from finetune.config.description import TaskDescription
from finetune.config.tasks import TrainConfig, column_map
from finetune.data import Dataset, read_text_file
from finetune.data.reading import read_examples
from finetune.data.tables import Table
from finetune.evaluation.prediction_types import DEFAULT_METRICS, TYPES, score
from finetune.models.warm_start import ReusableHead, WarmStart
from finetune.preprocessing.encodings import Array, Encoded, Encodings, Ragged, whole
from finetune.preprocessing.texts import Input, as_example, check_pair
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.runtime.memory import without_garbage_collection
from finetune.tasks.decoding import Decoder
from finetune.types import (
    Batch,
    Encoding,
    Example,
    LabelSet,
    Partial,
    Sequences,
    TokenExample,
    UserError,
)

if TYPE_CHECKING:
    import torch

    from finetune.tasks.explained import Explained
    from finetune.tasks.soft_losses import SoftLoss

M = TypeVar("M")

OVERLAP = 64
CHUNK = 8192
"""Number of examples to tokenize at a time."""
BLOCK = 2**24
"""Number of token ids to look at together."""
FITTED: Mapping[str, Any] = {"temperature": None, "thresholds": {}, "decisions": {}}
"""Fields of records that are fitted on the validation split after training; their defaults."""


EncodeChunk = Callable[[int], Encoded]
"""Encodes the chunk of examples that begins with an index."""
Gather = Callable[[EncodeChunk, Sequence[int]], Encoded]
"""Calls an ``EncodeChunk`` for all chunks, and joins the results."""

CoupledLoss = Callable[[Any, "torch.Tensor", Sequences], tuple["torch.Tensor", "torch.Tensor"]]
"""Returns the sum of the losses of an optimizer batch, and the number to divide it by, from the
head, the vectors [N, H] and their sequences."""


def joined(encode_chunk: EncodeChunk, starts: Sequence[int]) -> Encoded:
    """Encode all chunks, and join them in memory."""
    return Encoded.joined(map(encode_chunk, starts))


@dataclass(frozen=True, kw_only=True)
class TaskRecord(Decoder):
    """Everything that is saved with a model in order to use it again (``finetune.json``).

    Each task adds the fields that it derives from training data or fits on validation data.
    """

    config: TrainConfig
    labels: LabelSet
    max_length: int  # in tokens, special tokens included
    pairs: bool | None = None
    """Whether examples are pairs of texts; None for words and for data of both kinds."""
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """What `finetune thresholds` saved, as ``Decisions.record`` returns it."""

    @property
    def kind(self) -> str:
        """The kind of predictions, as in ``DEFAULT_METRICS``: a label, if not said otherwise."""
        return "label"

    reads_rows: ClassVar[bool] = False
    """Whether an input is a row whose columns have roles of their own, and not a text or words."""

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
        return read_text_file(
            source, usual_columns=self.usual_columns, pair=self.pairs, labels=False, **options
        )

    def example(self, index: int, item: Input, where: str = "") -> Example:
        """Return an input as an example; raise UserError if that is impossible."""
        return self.checked(as_example(index, item, words=False, pairs=self.pairs, where=where))

    def checked(self, example: Example) -> Example:
        """Return an example with its place; raise UserError if the model cannot read it."""
        if not example.where:
            example = replace(example, where=f"input {example.id}")
        self.config.description.require_examples(type(example), f"{example.where}: the examples")
        return example if isinstance(example, TokenExample) else check_pair(example, self.pairs)

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best model (higher is better)."""
        return self.config.metric or DEFAULT_METRICS[self.kind]

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

    @property
    def long_text(self) -> str | None:
        """The treatment of whole texts that are too long; None for words and contexts."""
        return None

    @property
    def threshold_labels(self) -> Sequence[str]:
        """The labels whose lowest probabilities, ``thresholds``, may be changed later."""
        return ()

    def extra_fields(self) -> dict[str, Any]:
        """Return the fields under ``extra`` in ``finetune.json``."""
        values = {field.name: getattr(self, field.name) for field in extra_fields(type(self))}
        if values.get("temperature", 1.0) is None:  # not fitted
            del values["temperature"]
        if not values["decisions"]:
            del values["decisions"]
        return values

    def unfitted(self) -> Self:
        """Return the record without the values fitted by an earlier training run."""
        own = self.extra_fields()
        return replace(self, **{name: value for name, value in FITTED.items() if name in own})


def extra_fields(record: type[TaskRecord]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a class of records besides ``config``, ``labels`` and ``max_length``."""
    common = ("config", "labels", "max_length")
    return [field for field in dataclasses.fields(record) if field.name not in common]


@dataclass(eq=False)
class Task(ABC):
    """The base class of all tasks.

    The class methods say how settings and data make a task (``finetune.tasks.definition``). What
    ``read``, ``prepare`` and ``derive`` return for data larger than memory depends on settings of
    data and task, ``seed`` and ``overlap`` alone: later runs with other models and training
    settings take it from the cache.
    """

    record: TaskRecord
    tokenizer: SubwordTokenizer
    warm_start: WarmStart | None = None
    """The trained model that a new model begins with."""

    # Required members.

    record_class: ClassVar[type[TaskRecord]]
    gold: ClassVar[attrgetter[Any]]
    """Return the gold of an example, None if it has none."""

    @classmethod
    @abstractmethod
    def derive(cls, config: Any, data: Dataset) -> dict[str, Any]:
        """Derive the record's fields from the training data: ``labels`` and those it adds."""

    @abstractmethod
    def _sequences(self, examples: Sequence[Any]) -> tuple[list[list[Encoding]], int]:
        """Return the sequences of each example, and how many texts or words were cut to fit."""

    @abstractmethod
    def _targets(self, rows: Mapping[str, Ragged], sequences: Encodings) -> dict[str, torch.Tensor]:
        """Make the targets of a batch from its sequences, and from their targets in ``rows``."""

    @abstractmethod
    def head(self, folder: str | Path | None = None) -> Any:
        """Make a new model on the configured encoder, or load the model saved in a folder."""

    @abstractmethod
    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the losses of a batch, and the number to divide it by."""

    @abstractmethod
    def decode(self, logits: Any, batch: Batch) -> list[Partial]:
        """Turn the logits of a batch into one partial result for each sequence."""

    def finish(
        self, example: Any, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> Any:
        """Make the prediction for an example from the partial results of its sequences in order.

        A record that is a decoder makes it.
        """
        decoder: Any = self.record
        return decoder.finish(example, partials)

    # What the required members give.

    @property
    def description(self) -> TaskDescription:
        """The task in words, and the kind of its examples and models."""
        return self.record.config.description

    @property
    def name(self) -> str:
        """The name of the command, as in ``TASKS``."""
        return self.description.name

    def collate(self, encodings: Iterable[Encoding]) -> dict[str, torch.Tensor]:
        """Make the targets of a batch of sequences, in their order; none if gold is missing."""
        sequences = Encodings.of(encodings)
        return {} if sequences.targets is None else self._targets(sequences.targets, sequences)

    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Compute metrics by name from predictions of examples in order; none without gold."""
        pairs = zip(gold, predicted, strict=True)
        scored = [pair for pair in pairs if self.gold(pair[0]) is not None]
        return self._score(*map(list, zip(*scored, strict=True))) if scored else {}

    # Optional members.

    skipped_checks: ClassVar[Collection[str]] = ()
    """The data checks that do not apply."""
    reusable_head: ClassVar[ReusableHead | None] = None
    """The class of heads that ``--init-from`` can reuse."""
    explained: ClassVar[type[Explained] | None] = None
    """What words explain in its predictions."""

    @classmethod
    def read(cls, config: Any, source: Any) -> Dataset:
        """Read the data that ``config.data`` names, or data in memory."""
        return read_examples(config, source)

    @classmethod
    def prepare(cls, config: Any, data: Dataset) -> Dataset:
        """Convert labels for the task; drop rows without gold and count them in the notes."""
        return data

    def complete(self, data: Dataset) -> Dataset:
        """Check the prepared data, and add notes and what scores need."""
        return data

    def encode(
        self, examples: Sequence[Example], gather: Gather = joined, *, for_training: bool = False
    ) -> Encoded:
        """Turn examples into sequences of token ids: one for each example, or several windows.

        Args:
            examples: The examples.
            gather: Gets a function that encodes a chunk of the examples, and the first indices of
                all chunks; returns their sequences together.
            for_training: Leave out what ``sequences_of_epoch`` adds.
        """
        widths = self.tokenizer.id_kind, whole(2 * self.record.max_length)  # two texts of a pair

        def encoded_chunk(start: int) -> Encoded:
            with without_garbage_collection():
                chunk = list(examples[start : start + CHUNK])
                return Encoded.of(*self._sequences(chunk), *widths)

        encoded = gather(encoded_chunk, range(0, len(examples), CHUNK))
        return replace(encoded, notes=tuple(self._encoding_notes(examples, encoded)))

    def _encoding_notes(self, examples: Sequence[Any], encoded: Encoded) -> list[str]:
        ids, unknown = encoded.sequences.ids.values, self.tokenizer.unknown
        blocks = (ids[start : start + BLOCK] for start in range(0, len(ids), BLOCK))
        number = sum(int((block == unknown).sum()) for block in blocks)
        return self.tokenizer.unreadable(number, len(ids))

    def _score(self, gold: Sequence[Any], predicted: Sequence[Any], **facts: Any) -> dict[str, Any]:
        """Compute metrics for examples with gold, and ``facts`` of the prediction type."""
        return score(TYPES[self.record.kind].tables_of(gold, predicted, **facts))

    @property
    def graph_refusal(self) -> str | None:
        """The reason why an exported graph cannot replace the model.

        It is empty if a graph can: the record then decodes its logits, as a class of
        ``finetune.tasks.decoding``. None if no model of the task is exported.
        """
        return None

    @property
    def calibrated(self) -> bool:
        """True if values of the record are fitted on the validation split after training."""
        return False

    def fit(self, gold: Sequence[Any], predicted: Sequence[Any]) -> tuple[dict[str, Any], str]:
        """Return fitted fields of the record for gold and predictions, and a note about them."""
        raise NotImplementedError

    def apply_fitted(self, example: Any, prediction: Any) -> Any:
        """Apply the fitted values to an example's prediction by an uncalibrated model."""
        raise NotImplementedError

    def sequences_of_epoch(
        self, sequences: Encodings, seed: int, epoch: int, rows: Array | None = None
    ) -> Encodings:
        """Return training sequences as the model reads them in an epoch: some rows, or all."""
        return sequences if rows is None else sequences.take(rows)

    def added_ids(self) -> Sequence[int]:
        """Return the ids of subwords that ``sequences_of_epoch`` adds."""
        return ()

    @property
    def coupled_loss(self) -> CoupledLoss | None:
        """A loss over all sequences of an optimizer batch, in place of ``loss``; None without one.

        The head returns a named tuple with ``vectors``; weights of it that the loss uses itself are
        trained too.
        """
        return None

    @property
    def loss_counts(self) -> Callable[[Batch], torch.Tensor] | None:
        """Return the counts [K] of K losses for a batch on the CPU; None for a single loss.

        Each loss is divided by its own count: ``loss`` returns K sums and K numbers.
        """
        return None

    fit_classifier: ClassVar[Callable[..., None] | None] = None
    """Fit weights of the model in place before each evaluation, from the model, the training
    examples, and a function that returns what a task predicts for them."""

    soft_loss: ClassVar[type[SoftLoss] | None] = None
    """The loss against a teacher; None if the task cannot be distilled."""


def labeled_model(
    task: Task, load: Callable[..., M], folder: str | Path | None, /, **settings: Any
) -> M:
    """Make a new model for the labels of a task by ``load`` with settings, or load one saved."""
    batching = task.record.config.batching
    if folder is not None:
        return load(str(folder), batching=batching)
    labels = list(task.record.labels)
    model = load(labels=labels, batching=batching, **settings, **starting_model(task))
    if task.warm_start is not None:
        task.warm_start.copy_head(model)
    return model


def starting_model(task: Task) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that name what a new model begins with."""
    config, start = task.record.config, task.warm_start
    name = config.model if start is None else start.source
    return {"name": name} | ({"bilstm": True} if config.bilstm else {})
