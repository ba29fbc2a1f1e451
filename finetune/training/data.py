"""The data of a training run: its splits as sequences, and the part of each step that a process
computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from finetune.config.tasks import TrainConfig
from finetune.data import Dataset
from finetune.preprocessing.batching import micro_batches, pack, share
from finetune.preprocessing.encodings import Encoded
from finetune.preprocessing.prefetch import ahead
from finetune.tasks.base import Task
from finetune.training import cache as encoding_cache
from finetune.training.cache import is_kept
from finetune.training.optimizer import Schedule
from finetune.types import Batch, Example

Part = tuple[list[Batch], float, int]
"""A process's part of an optimizer batch, the weight of its loss, and the batch's examples."""


class TrainingData:
    """What a task's splits come to for one process of a run.

    ``train`` are the training examples and ``encoded`` their sequences; ``say`` is told what a
    person should know about them; ``device`` is the kind that the parts are for; ``in_turn`` lets
    one process go first, so that the others find in the cache what it has made.
    """

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        config: TrainConfig,
        say: Callable[[str], None],
        *,
        rank: int = 0,
        world_size: int = 1,
        device: str = "cpu",
        in_turn: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.in_turn, self.splits = in_turn, dataset.splits
        self.task, self.max_tokens, self.say = task, config.tokens_on(device), say
        self.rank, self.world_size = rank, world_size
        self.train = self.splits["train"]
        self.plan = Schedule.from_config(config, len(self.train))
        self.encoded = self._encode("train", self.train)
        self.lengths = self.encoded.lengths.tolist()
        self.validation = next(iter(validation_splits(list(self.splits))), None)
        """The split that selects the best model (of MNLI's two the matched one), or None."""
        self.kept: tuple[Sequence[Example], Encoded] | None = None
        if self.validation is not None:
            examples = self.splits[self.validation]
            self.kept = examples, self._encode(self.validation, examples)

    def split(self, name: str) -> tuple[Sequence[Example], Encoded]:
        """A split's examples and their sequences."""
        if name == self.validation and self.kept is not None:
            return self.kept
        examples = self.splits[name]
        return examples, self._encode(name, examples)

    def read(self) -> list[Encoded]:
        """All sequences that the model reads while it is trained."""
        return [self.encoded, *([self.kept[1]] if self.kept else [])]

    def parts(self, first_step: int) -> Iterator[Part]:
        """This process's part of each step from ``first_step`` on, made while the one before it is
        computed; to be closed."""
        return ahead(map(self.part, range(first_step, self.plan.num_steps)))

    def part(self, step: int) -> Part:
        """This process's part of a step. A process without examples gets one of weight 0."""
        examples = self.plan.batch(step)
        mine = share(examples, self.rank, self.world_size, self.lengths)
        rows = self.encoded.rows(mine or examples[:1])
        batches = [
            pack(group, self.task.collate(group))
            for group in micro_batches(self.encoded.sequences, self.max_tokens, rows)
        ]
        return batches, 1.0 if mine else 0.0, len(examples)

    def _encode(self, split: str, examples: Sequence[Example]) -> Encoded:
        turns = self.in_turn if is_kept(examples) else contextlib.nullcontext
        with turns():
            encoded = encoding_cache.encoded(self.task, examples)
        for number, what in (
            (
                int((encoded.num_windows > 1).sum()),
                "are over --max-length: read in several windows",
            ),
            (encoded.num_cut, "(texts, or single words) are cut to fit --max-length"),
        ):
            if number:
                self.say(f"{number:,} of {split} {what}")
        for line in encoded.notes:
            self.say(f"{split}: {line}")
        return encoded


def validation_splits(splits: Sequence[str]) -> list[str]:
    """The validation splits by name."""
    return sorted(name for name in splits if name.startswith("validation"))
