"""Training steps of this toolkit and of Trainer, on texts of the same lengths and from the same
weights.

Ours and most of Trainer's are on the same random batches, Trainer at its best on batches of like
lengths. A turn of an arm makes an optimizer, takes one step that does not count, and then steps
over all of its batches. Texts are encoded before, and packed by a thread as in training.
``trainer-pad128-fp32`` takes some batches only: they are alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from finetune.benchmark.measure import Arm, Case, Work, now
from finetune.benchmark.subject import Subject
from finetune.benchmark.trainer import Peer
from finetune.models.dropout import fast_dropout
from finetune.preprocessing.batching import micro_batches, pack
from finetune.preprocessing.encodings import Encoded
from finetune.preprocessing.prefetch import ahead
from finetune.runtime.memory import memory_kept
from finetune.training.optimizer import make_optimizer
from finetune.training.sparse_embedding import SparseEmbeddings
from finetune.training.step import Step
from finetune.types import Batch

FORWARD_AND_BACKWARD = 3
"""How many times the operations of a forward pass training takes: backward goes through the
inputs and through the weights."""


def case_of(subject: Subject) -> Case:
    """Ours and Trainer's arms; DeBERTa has none that pads to 128, which takes minutes."""
    peer, best = Peer(subject), subject.precision
    mixed, grouped = subject.mixed, subject.grouped
    work = _work(subject, mixed)

    def ours(name: str, precision: str, sparse_embeddings: str) -> Arm:
        return _arm(
            name, precision, work, mixed, subject,
            lambda batches: seconds(subject, batches, precision, sparse_embeddings),
        )  # fmt: skip

    def theirs(
        name: str, precision: str, batches: Sequence[Sequence[int]], work: Work, padded: bool
    ) -> Arm:
        bf16 = precision == "bf16"
        return _arm(
            name, precision, work, batches, subject,
            lambda batches: peer.seconds(batches, bf16=bf16, padded=padded),
        )  # fmt: skip

    arms = [
        ours("finetune", best, "auto"),
        ours("finetune-whole-vocabulary", best, "off"),
        ours("finetune-fp32", "fp32", "auto"),
        theirs("trainer-best", best, grouped, _work(subject, grouped), False),
        theirs("trainer-dynamic-fp32", "fp32", mixed, work, False),
    ]
    if not subject.head.encoder.model.config.model_type.startswith("deberta"):
        part = mixed[: subject.size.num_padded]  # which take as long as any others
        mean = work.times(len(part) / len(mixed))
        arms.append(theirs("trainer-pad128-fp32", "fp32", part, mean, True))
    return Case("train", f"{subject.case}, batches of {subject.size.batch_size}", tuple(arms))


def _work(subject: Subject, batches: Sequence[Sequence[int]]) -> Work:
    """What training steps over batches are."""
    work = subject.work_of(batches)
    assert work.operations is not None
    return replace(work, operations=FORWARD_AND_BACKWARD * work.operations)


def _arm(
    name: str,
    precision: str,
    work: Work,
    batches: Sequence[Sequence[int]],
    subject: Subject,
    steps: Callable[[Sequence[Sequence[int]]], float],
) -> Arm:
    """An arm of steps over batches, of which the one with the longest text needs most memory."""
    heaviest = max(batches, key=lambda batch: max(map(subject.length, batch)))
    return Arm(name, precision, work, lambda: steps(batches), lambda: steps([heaviest]))


def seconds(
    subject: Subject,
    batches: Sequence[Sequence[int]],
    precision: str,
    sparse_embeddings: str,
) -> float:
    """How long our steps over the batches take, after one that does not count."""
    task, head = subject.task, subject.head
    config = replace(task.record.config, sparse_embeddings=sparse_embeddings)
    vocabulary = SparseEmbeddings(
        head, config.sparse_embeddings, [Encoded.of(part) for part in subject.occurring]
    )
    optimizer = vocabulary.attach(make_optimizer(head, config))
    step = Step(task, head, optimizer, config, subject.accelerator, precision)
    with memory_kept(), fast_dropout(head.encoder.model), vocabulary:
        parts = Parts(step, Encoded.of(subject.encoded))
        parts.take(step, batches[:1])
        begin = now(subject.device)
        parts.take(step, batches)
        return now(subject.device) - begin


class Parts:
    """The encoded examples of a task, in micro-batches as they are asked for."""

    def __init__(self, step: Step, encoded: Encoded) -> None:
        self.task, self.encoded = step.task, encoded
        self.max_tokens = step.config.tokens_on(step.device.type)

    def of(self, examples: Sequence[int]) -> list[Batch]:
        """The micro-batches of one step."""
        rows = self.encoded.rows(examples)
        groups = micro_batches(self.encoded.sequences, self.max_tokens, rows)
        return [pack(group, self.task.collate(group)) for group in groups]

    def take(self, step: Any, batches: Iterable[Sequence[int]]) -> None:
        """A step for each batch of examples."""
        with contextlib.closing(ahead(map(self.of, batches))) as parts:
            for part in parts:
                step(part, weight=1.0, lr_factor=1.0)
