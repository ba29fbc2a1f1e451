"""The interface of tasks: how data make one, encoding, loss, decoding and scores.

A task is immutable and holds no data. ``Any`` in a signature is the configuration, record, example
or prediction class of the task, or the output of its head: subclasses narrow it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from finetune.config.description import TaskDescription
from finetune.config.tasks import TrainConfig, column_map
from finetune.data import Dataset
from finetune.data.reading import read_examples
from finetune.evaluation.kinds import DEFAULT_METRICS, KINDS, score
from finetune.models.warm_start import ReusableHead, WarmStart
from finetune.preprocessing.encodings import Encoded, Encodings, Ragged, whole
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.runtime.memory import without_garbage_collection
from finetune.tasks.abilities import Abilities, EncodeChunk, Gather
from finetune.tasks.inputs import Inputs, TextInputs
from finetune.types import Batch, Encoding, Example, LabelSet, Partial, UserError

if TYPE_CHECKING:
    import torch

H = TypeVar("H")

OVERLAP = 64
CHUNK = 8192
"""Number of examples to tokenize at a time."""
BLOCK = 2**24
"""Number of token ids to look at together."""
FITTED: Mapping[str, Any] = {"temperature": None, "thresholds": {}, "decisions": {}}
"""Fields of records that are fitted on the validation split after training; their defaults."""


def joined(encode_chunk: EncodeChunk, starts: Sequence[int]) -> Encoded:
    """Encode all chunks, and join them in memory."""
    return Encoded.joined(map(encode_chunk, starts))


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
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

    @property
    def inputs(self) -> Inputs:
        """The inputs of the model: texts or pairs of texts, if a task does not say otherwise."""
        return TextInputs(column_map(self.config.columns), pairs=self.pairs)

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
class Task(Abilities, ABC):
    """The base class of all tasks.

    Class methods tell how settings and data make a task (``finetune.tasks.definition``). What
    ``read``, ``prepare`` and ``derive`` return for data larger than memory depends on settings of
    data and task, ``seed`` and ``overlap`` alone: later runs with other models and training
    settings take it from the cache.
    """

    record: TaskRecord
    tokenizer: SubwordTokenizer
    _warm_start: WarmStart | None = None

    record_class: ClassVar[type[TaskRecord]]
    gold: ClassVar[attrgetter[Any]]
    """Return the gold of an example, None if it has none."""
    skipped_checks: ClassVar[Collection[str]] = ()
    """The data checks that do not apply."""
    reusable_head: ClassVar[ReusableHead | None] = None
    """The class of heads that ``--init-from`` can reuse."""

    @classmethod
    def load(cls, config: Any, data: Any = None) -> tuple[Task, Dataset]:
        """Read and prepare data, and make the task (``finetune.tasks.load_task``)."""
        from finetune.tasks.definition import load_defined  # which imports this module

        return load_defined(cls, config, data)

    @classmethod
    def read(cls, config: Any, source: Any) -> Dataset:
        """Read the data that ``config.data`` names, or data in memory."""
        return read_examples(config, source)

    @classmethod
    def prepare(cls, config: Any, data: Dataset) -> Dataset:
        """Convert labels for the task; drop rows without gold and count them in the notes."""
        return data

    @classmethod
    @abstractmethod
    def derive(cls, config: Any, data: Dataset) -> dict[str, Any]:
        """Derive the record's fields from the training data: ``labels`` and those it adds."""

    @classmethod
    def of(
        cls, record: Any, tokenizer: SubwordTokenizer, warm_start: WarmStart | None = None
    ) -> Task:
        """Make the task of a record, a tokenizer, and the trained model to begin with."""
        return cls(record, tokenizer, warm_start)

    @classmethod
    def notes(cls, record: Any, data: Dataset) -> list[str]:
        """Return notes for the log on how the record and the data fit together."""
        return []

    def complete(self, data: Dataset) -> Dataset:
        """Check the data with the task, and add what scores need."""
        return data

    def __setattr__(self, name: str, value: object) -> None:
        if callable(getattr(type(self), name, None)):  # copies of the task would lose it
            raise UserError(
                f"the {name} of a task cannot be assigned: give a loss as `loss=` to "
                f"finetune.train, or derive a class from {type(self).__name__}."
            )
        super().__setattr__(name, value)

    @property
    def description(self) -> TaskDescription:
        """The task in words, and the kind of its examples and models."""
        return self.record.config.description

    @property
    def name(self) -> str:
        """The name of the command, as in ``TASKS``."""
        return self.description.name

    def encode(self, examples: Sequence[Example], gather: Gather = joined) -> Encoded:
        """Turn examples into sequences of token ids: one for each example, or several windows.

        ``gather`` gets a function that encodes a chunk of the examples, and the first indices of
        all chunks. It returns their sequences together.
        """

        def encoded_chunk(start: int) -> Encoded:
            with without_garbage_collection():
                return self._encoded_chunk(list(examples[start : start + CHUNK]))

        encoded = gather(encoded_chunk, range(0, len(examples), CHUNK))
        return replace(encoded, notes=tuple(self._encoding_notes(examples, encoded)))

    def _encoded_chunk(self, examples: Sequence[Any]) -> Encoded:
        """Return the sequences of some examples, which may be encoded in a process of its own."""
        kinds = self.tokenizer.id_kind, whole(2 * self.record.max_length)  # two texts of a pair
        return Encoded.of(*self._sequences(examples), *kinds)

    @abstractmethod
    def _sequences(self, examples: Sequence[Any]) -> tuple[list[list[Encoding]], int]:
        """Return the sequences of each example, and how many texts or words were cut to fit."""

    def _encoding_notes(self, examples: Sequence[Any], encoded: Encoded) -> list[str]:
        """Return notes for the log on parts of examples that the model cannot read or predict."""
        ids, unknown = encoded.sequences.ids.values, self.tokenizer.unknown
        blocks = (ids[start : start + BLOCK] for start in range(0, len(ids), BLOCK))
        number = sum(int((block == unknown).sum()) for block in blocks)
        return self.tokenizer.unreadable(number, len(ids))

    def collate(self, encodings: Iterable[Encoding]) -> dict[str, torch.Tensor]:
        """Make the targets of a batch of sequences, in their order; none if gold is missing."""
        targets = Encodings.of(encodings).targets
        return {} if targets is None else self._targets(targets)

    @abstractmethod
    def _targets(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        """Make the targets of a batch from the targets of its sequences."""

    @abstractmethod
    def head(self, folder: str | Path | None = None) -> Any:
        """Make a new model on the configured encoder, or load the model saved in a folder."""

    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the losses of a batch, and the number to divide it by.

        A task that always has a ``coupled_loss`` leaves this method out.
        """
        raise NotImplementedError

    @abstractmethod
    def decode(self, logits: Any, batch: Batch) -> list[Partial]:
        """Turn the logits of a batch into one partial result for each sequence."""

    @abstractmethod
    def finish(
        self, example: Any, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> Any:
        """Make the prediction for an example from the partial results of its sequences in order."""

    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Compute metrics by name from predictions of examples in order; none without gold."""
        pairs = zip(gold, predicted, strict=True)
        scored = [pair for pair in pairs if self.gold(pair[0]) is not None]
        return self._score(*map(list, zip(*scored, strict=True))) if scored else {}

    def _score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Compute metrics of examples that all have gold."""
        return score(KINDS[self.record.kind].scored(gold, predicted, **self._facts))

    @property
    def _facts(self) -> dict[str, Any]:
        """The facts of the model that scores of its kind need: labels, schemes, positive class."""
        return {}

    def _labeled_head(
        self, load: Callable[..., H], folder: str | Path | None, /, **settings: Any
    ) -> H:
        """Return a new model with ``settings``, or a saved one; ``load`` is ``from_pretrained``."""
        batching = self.record.config.batching
        if folder is not None:
            return load(str(folder), batching=batching)
        with self._pretrained() as checkpoint:
            labels = list(self.record.labels)
            head = load(labels=labels, batching=batching, **settings, **checkpoint)
            if self._warm_start is not None:
                self._warm_start.keep_rows(head)
            return head

    @contextlib.contextmanager
    def _pretrained(self) -> Iterator[dict[str, Any]]:
        """Provide name and options of the checkpoint that a new model starts from."""
        config = self.record.config
        trusted = {"trust_remote_code": config.trust_remote_code}
        trusted |= {"bilstm": True} if config.bilstm else {}
        if self._warm_start is None:
            yield {"name": config.model, **trusted}
            return
        if self._warm_start.whole:
            yield {"name": self._warm_start.source, **self._warm_start.options}
            return
        with self._warm_start.checkpoint() as folder:
            yield {"name": folder, **trusted}
