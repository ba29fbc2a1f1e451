"""The data of a training run: the sequences of each split, and the batches of one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from accelerate import Accelerator
from torch import Tensor

from finetune.config.tasks import TrainConfig
from finetune.data import Dataset, split_at_gold
from finetune.models.shapes import RowShape
from finetune.preprocessing.batching import (
    balanced_copies,
    micro_batches,
    pack,
    pass_seed,
    process_shard,
)
from finetune.preprocessing.encodings import EncodedExamples, FlatSequences
from finetune.preprocessing.text_labels import names_of
from finetune.runtime.workers import ahead
from finetune.tasks.base import Task
from finetune.training import cache
from finetune.training.optimizer import Schedule
from finetune.types import Batch, Example, TokenExample, noun_of, quantity

SAMPLED_STEPS = 400
"""Number of steps whose batches choose the shapes of rows on a GPU."""


class StepBatch(NamedTuple):
    """The shard of an optimizer batch that one process computes."""

    micro_batches: list[Batch]
    weight: float
    """1, or 0 if the process has no examples and computes a sequence of another one."""
    num_examples: int
    """Examples of the whole optimizer batch."""
    task: str
    """The name of its task among several."""


class TrainingData:
    """The sequences and batches of a run, for one process; ``report`` gets notes on them.

    Attributes:
        splits: The examples of each split.
        encoded: Their sequences.
        lengths: Number of tokens of each training example: [E].
        copies: Expected copies of the training examples in an epoch [E]; None if all have one.
        validation: The split that selects the best model (of MNLI's two the matched one), None to
            keep the last.
        schedule: The planned steps.
    """

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        config: TrainConfig,
        accelerator: Accelerator,
        report: Callable[[str], None],
        name: str = "",
    ) -> None:
        self.task, self.accelerator, self.name = task, accelerator, name
        train = dataset.splits["train"]
        if train.are_words and any(train.column("misaligned")):
            train = train.map(lambda _, example: split_at_gold(example))
        self.splits = {**dataset.splits, "train": train}
        names = sorted(split for split in self.splits if split.startswith("validation"))
        self.validation = names[0] if names and config.validation != "none" else None
        # all of them before the first step, so that nothing in them ends a finished training
        first = [split for split in ("train", self.validation) if split is not None]
        self.encoded = {
            split: _encode(task, split, self.splits[split], report)
            for split in dict.fromkeys([*first, *self.splits])
        }
        self.lengths = self.encoded["train"].lengths
        self.copies: Tensor | None = None
        if vars(config).get("sampling") == "balanced":
            self.copies = balanced_copies([_classes(task, example) for example in train])
        self.schedule = Schedule.from_config(config, len(train))
        self.max_tokens = config.tokens_on(accelerator.device.type)

    @property
    def train(self) -> EncodedExamples:
        """The training sequences."""
        return self.encoded["train"]

    @property
    def read_in_training(self) -> list[EncodedExamples]:
        """The sequences that the model reads before the last step."""
        return [self.encoded[name] for name in ("train", self.validation) if name is not None]

    def batches(self, first_step: int) -> Generator[StepBatch]:
        """Yield the batch of each step, made while the previous step is computed; close it."""
        steps = self._steps(first_step, self.schedule.num_steps)
        return ahead(self.batch(step, order) for step, order in steps)

    def _steps(self, first: int, end: int) -> Iterator[tuple[int, Tensor]]:
        order = None
        for step in range(first, end):
            if order is None or step % self.schedule.steps_per_epoch == 0:
                order = self.schedule.order(step, self.copies)
            yield step, order

    def row_shapes(self, texts_per_sequence: int = 1) -> list[RowShape]:
        """The sizes of the micro-batches of the first steps, and one that bounds all later ones.

        ``texts_per_sequence`` is the number of texts that the model reads apart in a sequence.
        """
        shapes = list[RowShape]()
        for step, order in self._steps(0, min(self.schedule.num_steps, SAMPLED_STEPS)):
            for group in self._micro_batches(step, order)[0]:
                lengths = group.lengths
                number = texts_per_sequence * len(lengths)
                shapes.append(RowShape(int(lengths.sum()), number, int(lengths.max())))
        most = max(shape.num_tokens for shape in shapes)
        bound = min(most * 33 // 32, max(most, self.max_tokens))
        return [*shapes, RowShape(bound, 1, int(self.train.sequences.lengths.max()))]

    def batch(self, step: int, order: Tensor | None = None) -> StepBatch:
        """Read this process's shard of the batch of a step; ``order`` is the order of its epoch."""
        if order is None:
            order = self.schedule.order(step, self.copies)
        rank, batches = self.accelerator.process_index, []
        groups, weight, num_examples = self._micro_batches(step, order)
        for number, group in enumerate(groups):
            seed = pass_seed(self.schedule.seed, step, rank, number)
            batches.append(replace(pack(group, self.task.collate(group), seed), task=self.name))
        return StepBatch(batches, weight, num_examples, self.name)

    def _micro_batches(self, step: int, order: Tensor) -> tuple[list[FlatSequences], float, int]:
        # with weight and number of examples as in ``StepBatch``
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        examples = self.schedule.batch(step, order)
        shard = process_shard(examples, rank, world, self.lengths)
        epoch, rows = step // self.schedule.steps_per_epoch, self.train.rows(shard or examples[:1])
        encoded, seed = self.train.sequences, self.schedule.seed
        sequences = self.task.sequences_of_epoch(encoded, seed, epoch, rows)
        together = self.task.description.grouped
        groups = micro_batches(sequences, self.max_tokens, together=together)
        return groups, 1.0 if shard else 0.0, len(examples)


def _classes(task: Task, example: Any) -> Collection[str]:
    gold = task.gold(example)
    if not isinstance(example, TokenExample):
        return names_of(gold)
    if gold is example.tags and example.spans is not None:
        gold = example.spans  # which the tags spell
    return {item if isinstance(item, str) else item.label for item in gold or ()}


def _encode(
    task: Task, split: str, examples: Sequence[Example], report: Callable[[str], None]
) -> EncodedExamples:
    encoded = cache.encode(task, examples, for_training=split == "train")
    windows = int((encoded.num_windows > 1).sum())
    if windows and task.description.windows:
        counted = quantity(windows, "example")
        report(f"{counted} of {split} over --max-length: read in several windows")
    if encoded.num_cut:
        number = quantity(encoded.num_cut, noun_of(examples[0]))
        report(f"{number} of {split} cut to fit --max-length")
    for note in encoded.notes:
        report(f"{split}: {note}")
    return encoded
