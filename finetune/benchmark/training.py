"""Training steps of this toolkit and of transformers' Trainer, with the same texts and weights.

All arms compute the same random batches, except ``trainer-best``, whose batches have texts of
similar length. A turn of an arm creates an optimizer, takes some steps that do not count, and then
steps over all of its batches. Texts are encoded before, and packed by a thread as in training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import Any, Literal

from finetune.benchmark.measure import WARM_STEPS, Arm, Case, now
from finetune.benchmark.subject import Subject
from finetune.benchmark.transformers_trainer import TrainerRun
from finetune.models.dropout import fast_dropout
from finetune.models.sparse_embedding import SparseEmbeddings
from finetune.preprocessing.batching import micro_batches, pack, step_seed
from finetune.preprocessing.encodings import Encoded
from finetune.runtime.memory import memory_kept
from finetune.runtime.workers import ahead
from finetune.training.optimizer import make_optimizer
from finetune.training.step import Step, begin_step
from finetune.types import Batch


def case_of(subject: Subject) -> Case:
    """Return the arms."""
    trainer, best = TrainerRun.of(subject), subject.precision
    mixed, grouped = subject.mixed, subject.grouped

    def ours(name: str, precision: str, vocabulary: Literal["auto", "off"]) -> Arm:
        steps = partial(_seconds, subject, precision=precision, sparse_embeddings=vocabulary)
        return _arm(name, precision, mixed, steps)

    def theirs(name: str, precision: str, batches: Sequence[Sequence[int]]) -> Arm:
        bf16 = precision == "bf16"
        return _arm(name, precision, batches, lambda own: trainer.seconds(own, bf16=bf16))

    def _arm(
        name: str,
        precision: str,
        batches: Sequence[Sequence[int]],
        steps: Callable[[Sequence[Sequence[int]]], float],
    ) -> Arm:
        """Return an arm of steps; the batch with the longest text needs most memory."""
        heaviest = max(batches, key=lambda batch: max(map(subject.length, batch)))
        work = subject.work_of(batches)
        return Arm(name, precision, work, lambda: steps(batches), lambda: steps([heaviest]))

    arms = (
        ours("finetune", best, "auto"),
        ours("finetune-whole-vocabulary", best, "off"),
        ours("finetune-fp32", "fp32", "auto"),
        theirs("trainer-best", best, grouped),
        theirs("trainer-dynamic-fp32", "fp32", mixed),
    )
    return Case("train", f"{subject.case}, batches of {subject.size.batch_size}", arms)


def _seconds(
    subject: Subject,
    batches: Sequence[Sequence[int]],
    *,
    precision: str,
    sparse_embeddings: Literal["auto", "off"],
) -> float:
    """Return the seconds of this toolkit's steps over the batches, after some that do not count."""
    task, head = subject.task, subject.head
    config = replace(task.record.config, sparse_embeddings=sparse_embeddings)
    read = [Encoded.of(part).sequences.ids.values for part in subject.occurring]
    vocabulary = SparseEmbeddings(head, config.sparse_embeddings, read)
    optimizer = vocabulary.attach(make_optimizer(head, config))
    step = begin_step(task, head, optimizer, config, subject.accelerator, precision)
    with vocabulary:
        return seconds_of_steps(step, head, Encoded.of(subject.encoded), batches)


def seconds_of_steps(
    step: Step, head: Any, encoded: Encoded, batches: Sequence[Sequence[int]]
) -> float:
    """Return the seconds of steps over batches, after some that do not count."""
    with memory_kept(), fast_dropout(head):
        take_steps(step, encoded, batches[:WARM_STEPS])
        begin = now(step.device)
        take_steps(step, encoded, batches)
        return now(step.device) - begin


def take_steps(step: Step, encoded: Encoded, batches: Iterable[Sequence[int]]) -> None:
    """Take a step for each batch of examples, packed ahead by a thread."""
    max_tokens = step.config.tokens_on(step.device.type)

    def packed(number: int, examples: Sequence[int]) -> list[Batch]:
        rows = encoded.rows(examples)
        sequences = step.task.sequences_of_epoch(encoded.sequences, number, 0, rows)
        groups = micro_batches(sequences, max_tokens)
        seed = step_seed(step.config.seed, number)
        return [pack(group, step.task.collate(group), seed) for group in groups]

    with contextlib.closing(ahead(starmap(packed, enumerate(batches)))) as ready:
        for each in ready:
            step(each, weight=1.0, lr_factor=1.0)
