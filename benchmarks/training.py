"""Training steps of this toolkit and of transformers' Trainer, with the same texts and weights.

All variants compute the same random batches, except ``trainer-best``, whose batches have texts of
similar length. A repetition creates an optimizer, takes some steps that do not count, and then
steps over all of its batches. Texts are encoded before, and packed by a thread as in training.

In masked language modeling the peer is transformers' run_mlm example. It encodes each line with
special tokens, joins all of them and cuts the result into rows of equal length (``run-mlm``), or
pads each line to the longest of its batch (``run-mlm-lines``); it masks with its collator, and
computes the logits of all positions. This toolkit packs whole lines, and computes logits of chosen
positions. Both read the same documents, with the same batch size and longest sequence; only tokens
of the text count.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, starmap
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from transformers import (
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from benchmarks.measure import WARM_STEPS, Variant, Work, Workload, now
from benchmarks.measured_model import MeasuredModel, Settings, longest
from benchmarks.synthetic import LIKE, Words
from finetune.data import Dataset
from finetune.data.examples import Examples
from finetune.models.dropout import fast_dropout
from finetune.models.graphs import FEWEST_STEPS, SIGHTINGS, replayed_passes
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.loading import load_config, load_weights, quiet
from finetune.models.master_weights import MasterWeights
from finetune.models.shapes import RowShape
from finetune.models.sparse_embedding import SparseEmbeddings
from finetune.preprocessing.batching import micro_batches, pack, pass_seed
from finetune.preprocessing.encodings import EncodedExamples
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.settings import PretrainConfig
from finetune.runtime.device import resolve_precision
from finetune.runtime.launch import make_accelerator
from finetune.runtime.memory import memory_kept
from finetune.runtime.workers import ahead
from finetune.tasks import load_task
from finetune.tasks.base import Task
from finetune.training.optimizer import adamw, default_learning_rate, parameter_groups
from finetune.training.step import Step
from finetune.types import IGNORED, Batch, TextExample, TokenSequence

LINE = replace(LIKE["classify"], name="prose", mean=25, deviation=12, vocabulary=0.6)
"""Lengths of lines in subwords, as of sentences of prose."""
NUM_LINES = 8
"""Lines of a document."""

Batches = Sequence[Sequence[int]]
"""The examples of each step."""


def workloads_of(measured: MeasuredModel) -> Iterator[Workload]:
    """Yield the variants of the task."""
    best, mixed = measured.precision, measured.mixed
    name, words = str(measured.folder), measured.task.description.words
    collator = DataCollatorForTokenClassification if words else DataCollatorWithPadding
    trainer = TrainerRun(
        load_weights(type(measured.head).auto_class, name, load_config(name), new_head=False).to(
            measured.device
        ),
        [_row(encoding) for (encoding, *_) in measured.encoded],
        collator(measured.task.tokenizer.tokenizer),
        measured.device,
        default_learning_rate(measured.head.encoder.width),
    )

    def variant(
        name: str, precision: str, steps: Callable[[Batches], float], batches: Batches = mixed
    ) -> Variant:
        """Return a variant of steps; the batch with the longest text needs most memory."""
        largest_batch = max(batches, key=lambda batch: max(map(measured.length, batch)))
        work = measured.work_of(batches)
        return Variant(
            name, precision, work, lambda: steps(batches), lambda: steps([largest_batch])
        )

    whole_vocabulary = partial(training_seconds, measured, best, whole=True)
    variants = [
        variant("finetune", best, partial(training_seconds, measured, best)),
        variant("finetune-whole-vocabulary", best, whole_vocabulary),
        variant("finetune-fp32", "fp32", partial(training_seconds, measured, "fp32")),
        variant("trainer-best", best, partial(trainer.seconds, best), measured.grouped),
        variant("trainer-dynamic-fp32", "fp32", partial(trainer.seconds, "fp32")),
    ]
    if measured.device.type == "cuda":
        plain = partial(training_seconds, measured, best, replayed=False)
        compiled = partial(trainer.seconds, best, compiled=True)
        variants += [
            variant("finetune-without-graphs", best, plain),
            variant("trainer-compiled", best, compiled, measured.grouped),
        ]
    yield Workload("train", f"{measured.workload}, batches of {measured.size.batch_size}", variants)


def training_seconds(
    measured: MeasuredModel,
    precision: str,
    batches: Batches,
    *,
    whole: bool = False,
    replayed: bool = True,
) -> float:
    """Return the seconds of steps over batches with a new optimizer."""
    task, head = measured.task, measured.head
    config = task.state.config
    occurring = () if whole else measured.occurring
    read = [EncodedExamples.of(part).sequences.ids.values for part in occurring]
    vocabulary = SparseEmbeddings(head, read)
    masters = MasterWeights(head, parameter_groups(head, config), precision)
    optimizer = adamw(masters.groups, config)
    step = Step(task, head, masters, optimizer, config, measured.accelerator)
    with vocabulary, masters:
        encoded = EncodedExamples.of(measured.encoded)
        return seconds_of_steps(step, task, head, encoded, batches, replayed=replayed)


def seconds_of_steps(
    step: Step,
    task: Task,
    head: Any,
    encoded: EncodedExamples,
    batches: Batches,
    *,
    replayed: bool = True,
) -> float:
    """Return the seconds of steps over batches, after some that do not count.

    On a GPU the passes of the encoder are replayed as in a long run, from recordings that the steps
    before have made; if they are not ``replayed``, rows have the same sizes.
    """
    max_tokens = step.config.tokens_on(step.device.type)

    def packed(number: int, examples: Sequence[int]) -> list[Batch]:
        rows = encoded.rows(examples)
        sequences = task.sequences_of_epoch(encoded.sequences, number, 0, rows)
        groups = micro_batches(sequences, max_tokens)
        seed = pass_seed(step.config.seed, number)
        return [pack(group, task.collate(group), seed) for group in groups]

    def take_steps(batches: Batches) -> None:
        with contextlib.closing(ahead(starmap(packed, enumerate(batches)))) as ready:
            for each in ready:
                step(each, weight=1.0, lr_factor=1.0)

    def shapes() -> list[RowShape]:
        groups = chain.from_iterable(starmap(packed, enumerate(batches)))
        return [RowShape.of(group) for group in groups]

    encoder, num_steps = head.encoder, FEWEST_STEPS if replayed else 0
    replaying = replayed_passes(encoder, shapes, num_steps, step.masters)
    with memory_kept(), fast_dropout(head), replaying:
        warm = batches[:WARM_STEPS] if encoder.graphs is None else [*batches] * SIGHTINGS
        take_steps(warm)
        begin = now(step.device)
        take_steps(batches)
        return now(step.device) - begin


def pretraining_workload(model: str, settings: Settings) -> Workload:
    """Return the variants of masked language modeling."""
    accelerator, size = make_accelerator(), settings.size
    device = accelerator.device
    length = longest(model, LINE.longest)
    config = PretrainConfig(
        model=model, data="random text", max_length=length, validation="none", lr=1e-4
    )
    tokenizer = SubwordTokenizer.from_pretrained(model)
    number = size.num_batches * size.batch_size
    words = Words(tokenizer, LINE.vocabulary, random.Random(0))
    documents = []
    for index in range(int(2 * number * length / (LINE.mean * NUM_LINES)) + 1):
        lines = (words.draw(LINE.draw(words.random)) for _ in range(NUM_LINES))
        documents.append(TextExample(index, "\n".join(map(" ".join, lines))))
    data = Dataset("random text", {"train": Examples(documents)}, fingerprint_of=lambda: "random")
    task, packed = load_task(config, "pretrain", data)
    blocks = packed.splits["train"][:number]
    encoded = task.encode(blocks)
    batches = [list(range(i, i + size.batch_size)) for i in range(0, number, size.batch_size)]
    best = resolve_precision(config, device)

    def variant(
        name: str, precision: str, tokens: int, steps: Callable[[Batches], float]
    ) -> Variant:
        work = Work(number, tokens)
        return Variant(name, precision, work, lambda: steps(batches), lambda: steps(batches[:1]))

    def ours(name: str, precision: str) -> Variant:
        torch.manual_seed(0)
        head = MaskedLanguageModel(task.model().model).to(device)
        masters = MasterWeights(head, parameter_groups(head, config), precision)
        step = Step(task, head, masters, adamw(masters.groups, config), config, accelerator)
        tokens = int(encoded.lengths.sum()) - number * tokenizer.single.num_special
        return variant(
            name, precision, tokens, partial(seconds_of_steps, step, task, head, encoded)
        )

    texts = [line for document in documents for line in document.text.split("\n")]
    separate = [tokenizer.build(line)[0] for line in tokenizer.text_subwords(texts)]
    joined = list(chain.from_iterable(separate))
    rows = [joined[start : start + length] for start in range(0, len(joined) - length, length)]
    model_of_hub = load_weights(AutoModelForMaskedLM, model, load_config(model)).to(device)
    collator = DataCollatorForLanguageModeling(tokenizer.tokenizer)

    def theirs(name: str, rows: Sequence[Sequence[int]], precision: str) -> Variant:
        used = [{"input_ids": list(row)} for row in rows[:number]]
        run = TrainerRun(model_of_hub, used, collator, device, config.lr or 0.0)
        special = {*tokenizer.single.prefix, *tokenizer.single.suffix}
        real = sum(id not in special for row in rows[:number] for id in row)
        return variant(name, precision, real, partial(run.seconds, precision))

    variants = [
        ours("finetune", best),
        *([ours("finetune-fp32", "fp32")] if best != "fp32" else []),
        *([theirs("run-mlm", rows, best)] if best != "fp32" else []),
        theirs("run-mlm-fp32", rows, "fp32"),
        theirs("run-mlm-lines-fp32", separate, "fp32"),
    ]
    name = f"{number} sequences of up to {length} tokens, batches of {size.batch_size}"
    return Workload("pretrain", name, tuple(variants))


@dataclass(frozen=True)
class TrainerRun:
    """A Hugging Face model with its usual attention, rows and a collator for Trainer."""

    model: Any
    rows: Sequence[Mapping[str, Any]]
    collator: Any
    device: torch.device
    lr: float

    def seconds(self, precision: str, batches: Batches, *, compiled: bool = False) -> float:
        """Return the seconds for batches of rows, after some that do not count."""
        warm = batches if compiled else batches[:WARM_STEPS]
        clock = Clock(self.device, len(warm))
        order = [index for batch in (*warm, *batches) for index in batch]
        with TemporaryDirectory() as folder, state_restored(), quiet():
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=len(batches[0]),
                max_steps=len(warm) + len(batches),
                learning_rate=self.lr,
                bf16=precision == "bf16",
                torch_compile=compiled,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                # grouping by length works poorly in small data: the order is as in large data
                train_sampling_strategy="sequential",
                use_cpu=self.device.type == "cpu",
                dataloader_pin_memory=self.device.type == "cuda",
            )
            arguments._n_gpu = min(1, arguments.n_gpu)
            trainer = Trainer(
                self.model,
                arguments,
                train_dataset=[self.rows[index] for index in order],
                data_collator=self.collator,
                callbacks=[clock],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return clock.end - clock.begin


class Clock(TrainerCallback):
    """The times at the end of the steps that do not count, and of the last step."""

    def __init__(self, device: torch.device, num_warm: int) -> None:
        self.device, self.num_warm, self.begin, self.end = device, num_warm, 0.0, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Read the clock only at these steps, as waiting for the device takes time."""
        if state.global_step == self.num_warm:
            self.begin = now(self.device)
        elif state.global_step == state.max_steps:
            self.end = now(self.device)


@contextlib.contextmanager
def state_restored() -> Iterator[None]:
    """Context that restores accelerate's process state, which Trainer's arguments replace."""
    classes = (PartialState, AcceleratorState)
    before = [dict(cls._shared_state) for cls in classes]
    try:
        yield
    finally:
        for cls, state in zip(classes, before, strict=True):
            cls._shared_state.clear()
            cls._shared_state.update(state)


def _row(encoding: TokenSequence) -> dict[str, Any]:
    target = encoding.target or {}
    row: dict[str, Any] = {
        "input_ids": encoding.input_ids,
        "attention_mask": [1] * len(encoding.input_ids),
    }
    if encoding.token_type_ids is not None:
        row["token_type_ids"] = encoding.token_type_ids
    if encoding.word_starts:
        row["labels"] = [IGNORED] * len(encoding.input_ids)
        firsts = encoding.word_starts[:-1]
        for start, tag in zip(firsts, target["tag"], strict=True):
            row["labels"][start] = tag
    else:
        (row["labels"],) = target["label"]
    return row
