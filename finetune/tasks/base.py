"""The interface of tasks: how data make one, encoding, loss, decoding and scores.

A task is immutable and holds no data. ``Any`` in a signature is the configuration, example or
prediction class of the task, or the output of its model: subclasses narrow it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from finetune.config.description import ECE_METRICS, TaskDescription
from finetune.data import Dataset
from finetune.evaluation.metrics import ECE, score
from finetune.evaluation.prediction_types import TYPES
from finetune.models.warm_start import ReusableHead, WarmStart
from finetune.preprocessing.encodings import Array, EncodedExamples, FlatSequences
from finetune.preprocessing.preparation import read_examples
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.runtime.memory import without_garbage_collection
from finetune.tasks.state import TaskState
from finetune.types import Batch, Example, TokenSequence, WindowOutput

M = TypeVar("M")

ENCODE_CHUNK = 8192
"""Number of examples to tokenize at a time."""
IDS_AT_A_TIME = 2**24
"""Number of token ids to look at together."""

EncodeChunk = Callable[[int], EncodedExamples]
"""Encodes the chunk of examples that begins with an index."""
Gather = Callable[[EncodeChunk, Sequence[int]], EncodedExamples]
"""Calls an ``EncodeChunk`` for all chunks, and joins the results."""

SequencesOfExamples = tuple[list[list[TokenSequence]], int]
"""The sequences of each example, and how many texts or words were cut."""
Windows = Sequence[TokenSequence]
"""The sequences of one example."""
WindowTargets = Sequence[Mapping[str, Sequence[float]]] | None
"""The target of each window: numbers by name."""
Fitted = tuple[dict[str, Any], str]
"""Fitted fields of a state, and a note about them."""
Scores = dict[str, float]
"""Metrics by name."""
BatchLoss = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""Computes the sum of the losses of an optimizer batch, and the number to divide it by.

Its arguments are the model, the vectors [N, H] of the sequences, the numbers of their examples and
windows (``Sequence[tuple[int, int]]``), and their targets [N, ...] by name."""


def encode_all(encode_chunk: EncodeChunk, starts: Sequence[int]) -> EncodedExamples:
    """Encode all chunks, and join them in memory."""
    return EncodedExamples.joined(map(encode_chunk, starts))


@dataclass(eq=False)
class Task(ABC):
    """The base class of all tasks.

    The class methods say how settings and data make a task (``finetune.tasks.definition``). What
    ``read``, ``prepare`` and ``derive`` return for data larger than memory depends on settings of
    data and task, ``seed`` and ``overlap`` alone: later runs with other models and training
    settings take it from the cache.
    """

    state: TaskState
    tokenizer: SubwordTokenizer
    warm_start: WarmStart | None = None
    """The trained model that a new model begins with."""

    # Required members, with the defaults of some texts.

    state_class: ClassVar[type[TaskState]] = TaskState
    gold: ClassVar[attrgetter[Any]] = attrgetter("label")
    """The gold of an example, None if it has none."""

    @classmethod
    @abstractmethod
    def derive(cls, config: Any, data: Dataset) -> dict[str, Any]:
        """Derive the fields of the state from the training data: ``labels`` and those it adds."""

    @abstractmethod
    def _sequences(self, examples: Sequence[Any]) -> SequencesOfExamples:
        """Tokenize examples into sequences, and count the texts or words that were cut."""

    @abstractmethod
    def model(self, folder: str | Path | None = None) -> Any:
        """Make a new model on the configured encoder, or load the model saved in a folder."""

    @abstractmethod
    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the sum of the losses of a batch, and the number to divide it by."""

    @abstractmethod
    def decode(self, logits: Any, batch: Batch) -> list[Any]:
        """Decode the logits of a batch to a value of each sequence."""

    def _window_targets(self, example: Any, windows: Windows) -> WindowTargets:
        """Targets without gold add nothing to the loss; None keeps those of ``_sequences``."""
        return None

    def postprocess(self, example: Any, outputs: Sequence[WindowOutput]) -> Any:
        """Make the prediction for an example from the outputs of its windows in order.

        The state makes it if it is a decoder.
        """
        decoder: Any = self.state
        return decoder.postprocess(example, outputs)

    # What the required members give.

    @property
    def description(self) -> TaskDescription:
        """The task in words, and the type of its examples and models."""
        return self.state.config.description

    @property
    def name(self) -> str:
        """The name of the command, as in ``TASKS``."""
        return self.description.name

    def notes(self, data: Dataset) -> list[str]:
        """The notes on its data, and on the model that a new one begins with."""
        return [*data.notes, *([] if self.warm_start is None else [self.warm_start.note])]

    def _load(self, load: Callable[..., M], folder: str | Path | None, **settings: Any) -> M:
        # a new model for the labels, or the saved one
        if folder is not None:
            return load(str(folder))
        model = load(labels=list(self.state.labels), **settings, **starting_model(self))
        if self.warm_start is not None:
            self.warm_start.copy_head(model)
        return model

    def collate(self, sequences: Iterable[TokenSequence]) -> dict[str, torch.Tensor]:
        """Make the targets of a batch of sequences, in their order; none if gold is missing."""
        flat = FlatSequences.of(sequences)
        return {} if flat.targets is None else self._targets(flat)

    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Compute metrics by name from predictions of examples in order; none without gold."""
        pairs = zip(gold, predicted, strict=True)
        scored = [pair for pair in pairs if self.gold(pair[0]) is not None]
        return self._score(*map(list, zip(*scored, strict=True))) if scored else {}

    # Optional members.

    reusable_head: ClassVar[ReusableHead | None] = None
    """The class of heads that ``--init-from`` can reuse."""

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
        self,
        examples: Sequence[Example],
        gather: Gather = encode_all,
        *,
        for_training: bool = False,
    ) -> EncodedExamples:
        """Turn examples into sequences of token ids: one for each example, or several windows.

        Args:
            examples: The examples.
            gather: Gets a function that encodes a chunk of the examples, and the first indices of
                all chunks; returns their sequences together.
            for_training: Leave out what ``sequences_of_epoch`` adds. Examples without gold have
                targets, too, which add nothing to the loss.
        """

        def encode_chunk(start: int) -> EncodedExamples:
            with without_garbage_collection():
                return self._encode_chunk(examples[start : start + ENCODE_CHUNK], for_training)

        encoded = gather(encode_chunk, range(0, len(examples), ENCODE_CHUNK))
        return replace(encoded, notes=tuple(self._encoding_notes(examples, encoded)))

    def _encode_chunk(self, examples: Sequence[Any], for_training: bool) -> EncodedExamples:
        examples = list(examples)
        encoded, num_cut = self._sequences(examples)
        for example, windows in zip(examples, encoded, strict=True):
            if not for_training and self.gold(example) is None:
                continue
            if (targets := self._window_targets(example, windows)) is not None:
                pairs = zip(windows, targets, strict=True)
                windows[:] = [replace(window, target=target) for window, target in pairs]
        return EncodedExamples.of(encoded, num_cut, self.tokenizer.id_dtype)

    def _targets(self, sequences: FlatSequences) -> dict[str, torch.Tensor]:
        """Whole numbers become int64, as torch's losses need them."""
        arrays = {name: target.values for name, target in (sequences.targets or {}).items()}
        return {
            name: torch.from_numpy(values.astype(np.int64) if values.dtype.kind in "iu" else values)
            for name, values in arrays.items()
        }

    def _encoding_notes(self, examples: Sequence[Any], encoded: EncodedExamples) -> list[str]:
        ids, unknown = encoded.sequences.ids.values, self.tokenizer.unknown
        blocks = (ids[start : start + IDS_AT_A_TIME] for start in range(0, len(ids), IDS_AT_A_TIME))
        number = sum(int((block == unknown).sum()) for block in blocks)
        return self.tokenizer.unreadable(number, len(ids))

    def _score(self, gold: Sequence[Any], predicted: Sequence[Any], **fields: Any) -> Scores:
        type = TYPES[self.state.prediction_type]
        tables = type.tables_of(gold, predicted, **fields)
        if self.state.temperature is None:
            return score(tables)
        uncalibrated = [prediction.without_temperature() for prediction in predicted]
        both = tables, type.tables_of(gold, uncalibrated, **fields)
        return score(tables) | dict(zip(ECE_METRICS, map(ECE["ece"].score, both), strict=True))

    @property
    def calibrated(self) -> bool:
        """True if values of the state are fitted on the validation split after training."""
        return bool(vars(self.state.config).get("calibrate", "none") != "none")

    def fit(self, gold: Sequence[Any], predicted: Sequence[Any]) -> Fitted:
        """Fit fields of the state to examples with gold and their predictions, with a note.

        ``decide`` of the state applies them to a prediction by an uncalibrated model.
        """
        raise NotImplementedError

    def sequences_of_epoch(
        self, sequences: FlatSequences, seed: int, epoch: int, rows: Array | None = None
    ) -> FlatSequences:
        """Make the training sequences that the model reads in an epoch: some rows, or all."""
        return sequences if rows is None else sequences.take(rows)

    def added_ids(self) -> Sequence[int]:
        """The ids of subwords that ``sequences_of_epoch`` adds."""
        return ()

    @property
    def batch_loss(self) -> BatchLoss | None:
        """A loss over all sequences of an optimizer batch, in place of ``loss``; None without one.

        The model returns a named tuple with ``vectors``; weights of the model that the loss uses
        itself are trained too.
        """
        return None

    @property
    def loss_counts(self) -> Callable[[Batch], torch.Tensor] | None:
        """A function that counts K losses of a batch on the CPU [K]; None for a single loss.

        Each loss is divided by its own count: ``loss`` returns K sums and K numbers.
        """
        return None

    fit_classifier: ClassVar[Callable[..., None] | None] = None
    """Fit weights of the model in place before each evaluation, from the model, the training
    examples, and the vectors that it computes for them [N, H]."""


def starting_model(task: Task) -> dict[str, Any]:
    """The arguments of ``from_pretrained`` that name the weights of a new model."""
    config, start = task.state.config, task.warm_start
    name = config.model if start is None else start.source
    return {"name": name} | ({"bilstm": True} if config.bilstm else {})
