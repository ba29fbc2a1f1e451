"""The data of a training run: the sequences of each split, and the batches of one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from finetune.config.tasks import TrainConfig
from finetune.data import Dataset
from finetune.preprocessing.batching import micro_batches, pack, share
from finetune.preprocessing.encodings import Encoded
from finetune.preprocessing.prefetch import ahead
from finetune.tasks.base import Task
from finetune.training import cache
from finetune.training.optimizer import Schedule
from finetune.types import Batch, Example


class StepBatch(NamedTuple):
    """The shard of an optimizer batch that one process computes.

    Attributes:
        micro_batches: the shard, divided into forward passes.
        weight: 1, or 0 if the process has no examples and computes a sequence of another one.
        num_examples: examples of the whole optimizer batch.
    """

    micro_batches: list[Batch]
    weight: float
    num_examples: int


class TrainingData:
    """The sequences and batches of a run, for one process.

    Attributes:
        schedule: the steps of the run.
        encoded: the sequences of the training examples.
        validation: the split that selects the best model (of MNLI's two the matched one), or None.
    """

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        config: TrainConfig,
        report: Callable[[str], None],
        *,
        rank: int = 0,
        world_size: int = 1,
        device: str = "cpu",
        main_process_first: Callable[
            [], contextlib.AbstractContextManager[Any]
        ] = contextlib.nullcontext,
    ) -> None:
        """Encode the training and the validation split.

        Args:
            task: the task.
            dataset: the prepared data.
            config: batch size, schedule and ``max_tokens``.
            report: called with notes for the user.
            rank: number of this process.
            world_size: number of processes.
            device: type of the device that computes the batches.
            main_process_first: context in which the other processes wait for the main process, so
                that they find in the cache what it encoded.
        """
        self.task, self.splits, self.report = task, dataset.splits, report
        self.max_tokens, self.main_process_first = config.tokens_on(device), main_process_first
        self.rank, self.world_size = rank, world_size
        self.schedule = Schedule.from_config(config, len(self.splits["train"]))
        self.encoded = self._encode("train")
        self.lengths = self.encoded.lengths.tolist()
        self.validation = next(iter(validation_splits(list(self.splits))), None)
        self._encoded_validation = self._encode(self.validation) if self.validation else None

    def split(self, name: str) -> tuple[Sequence[Example], Encoded]:
        """Return the examples of a split and their sequences."""
        if name == self.validation and self._encoded_validation is not None:
            return self.splits[name], self._encoded_validation
        return self.splits[name], self._encode(name)

    def encoded_splits(self) -> list[Encoded]:
        """Return all sequences that the model reads while it is trained."""
        return [self.encoded, *([self._encoded_validation] if self._encoded_validation else [])]

    def batches(self, first_step: int) -> Iterator[StepBatch]:
        """Yield the batch of each step, made while the previous step is computed; close it."""
        return ahead(map(self.batch, range(first_step, self.schedule.num_steps)))

    def batch(self, step: int) -> StepBatch:
        """Return this process's shard of the batch of a step."""
        examples = self.schedule.batch(step)
        shard = share(examples, self.rank, self.world_size, self.lengths)
        rows = self.encoded.rows(shard or examples[:1])
        batches = [
            pack(group, self.task.collate(group))
            for group in micro_batches(self.encoded.sequences, self.max_tokens, rows)
        ]
        return StepBatch(batches, 1.0 if shard else 0.0, len(examples))

    def _encode(self, split: str) -> Encoded:
        """Encode a split and report what a user should know about it."""
        examples = self.splits[split]
        first = self.main_process_first if cache.is_cached(examples) else contextlib.nullcontext
        with first():
            encoded = cache.encode(self.task, examples)
        windows = int((encoded.num_windows > 1).sum())
        for number, note in (
            (windows, "are over --max-length: read in several windows"),
            (encoded.num_cut, "(texts, or single words) are cut to fit --max-length"),
        ):
            if number:
                self.report(f"{number:,} of {split} {note}")
        for note in encoded.notes:
            self.report(f"{split}: {note}")
        return encoded


def validation_splits(splits: Sequence[str]) -> list[str]:
    """Return the validation splits by name."""
    return sorted(name for name in splits if name.startswith("validation"))
