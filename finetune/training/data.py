"""The data of a training run: the sequences of each split, and the batches of one process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from accelerate import Accelerator
from torch import Tensor

from finetune.config.tasks import TrainConfig
from finetune.data import Dataset, split_at_gold
from finetune.data.collecting import transformed
from finetune.data.example_store import column
from finetune.preprocessing.batching import (
    balanced_shares,
    micro_batches,
    pack,
    process_shard,
    step_seed,
)
from finetune.preprocessing.encodings import Encoded, Encodings
from finetune.runtime.workers import ahead
from finetune.tasks.base import Task
from finetune.tasks.capabilities import BalancedSampling, GroupedSequences, sequences_of_epoch
from finetune.training import cache
from finetune.training.optimizer import Schedule
from finetune.types import Batch, Example, TokenExample, quantity


class StepBatch(NamedTuple):
    """The shard of an optimizer batch that one process computes."""

    micro_batches: list[Batch]
    weight: float
    """1, or 0 if the process has no examples and computes a sequence of another one."""
    num_examples: int
    """Examples of the whole optimizer batch."""


class TrainingData:
    """The sequences and batches of a run, for one process.

    ``encoded`` has the sequences that the model reads during training, by split; ``validation`` is
    the split that selects the best model (of MNLI's two the matched one), None to keep the last.
    """

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        config: TrainConfig,
        accelerator: Accelerator,
        report: Callable[[str], None],
    ) -> None:
        """Encode all splits, and call ``report`` with notes on them."""
        train = dataset.splits["train"]
        if isinstance(train[0], TokenExample) and any(column(train, "unreachable")):
            train = transformed(train, split_at_gold)
        self.task, self.splits = task, {**dataset.splits, "train": train}
        self.name = dataset.name
        self.accelerator, self.report, self.seed = accelerator, report, config.seed
        self.max_tokens = config.tokens_on(accelerator.device.type)
        self.schedule = Schedule.from_config(config, len(self.splits["train"]))
        self.together = task.capability(GroupedSequences) is not None
        self.shares: Tensor | None = None
        if (sampling := task.capability(BalancedSampling)) is not None:
            classes = list(map(sampling.classes, train))
            self.shares = balanced_shares(classes, sampling.strength)
        self.train = self._encode("train")
        self.lengths = self.train.lengths
        names = sorted(name for name in self.splits if name.startswith("validation"))
        self.validation = names[0] if names and config.validation != "none" else None
        self.encoded = {"train": self.train}
        if self.validation is not None:
            self.encoded[self.validation] = self._encode(self.validation)
        # before the first step, so that nothing in them ends a finished training
        self._scored_later = {
            split: self._encode(split) for split in self.splits if split not in self.encoded
        }

    def split(self, name: str) -> tuple[Sequence[Example], Encoded]:
        """Return the examples of a split and their sequences."""
        return self.splits[name], {**self.encoded, **self._scored_later}[name]

    def batches(self, first_step: int) -> Generator[StepBatch]:
        """Yield the batch of each step, made while the previous step is computed; close it."""
        return ahead(map(self.batch, range(first_step, self.schedule.num_steps)))

    def batch(self, step: int) -> StepBatch:
        """Return this process's shard of the batch of a step."""
        examples = self.schedule.batch(step, self.shares)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        shard = process_shard(examples, rank, world, self.lengths)
        seed = step_seed(self.seed, step)
        epoch = step // self.schedule.steps_per_epoch
        sequences = sequences_of_epoch(
            self.task,
            self.train.sequences,
            self.seed,
            epoch,
            self.train.rows(shard or examples[:1]),
        )
        batches = [
            pack(group, self.targets(group), seed)
            for group in micro_batches(sequences, self.max_tokens, together=self.together)
        ]
        return StepBatch(batches, 1.0 if shard else 0.0, len(examples))

    def targets(self, sequences: Encodings) -> dict[str, Tensor]:
        """Return the targets of a micro-batch."""
        return self.task.collate(sequences)

    def _encode(self, split: str) -> Encoded:
        """Encode a split, and report windows, cut texts and the notes of the task."""
        examples = self.splits[split]
        title = f"{self.name}, {split}: {self.task.name}"
        encoded = cache.encode(self.task, examples, title, for_training=split == "train")
        windows = int((encoded.num_windows > 1).sum())
        if windows and self.task.description.windows:
            counted = quantity(windows, "example")
            self.report(f"{counted} of {split} over --max-length: read in several windows")
        if encoded.num_cut:
            noun = "word" if self.task.description.words else "text"
            self.report(f"{quantity(encoded.num_cut, noun)} of {split} cut to fit --max-length")
        for note in encoded.notes:
            self.report(f"{split}: {note}")
        return encoded
