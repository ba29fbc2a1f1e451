"""Training steps of this toolkit and of Trainer, on the same texts and from the same weights.

A turn of an arm makes an optimizer, takes one step that does not count, and then steps over all
texts. Texts are encoded before. ``trainer-pad128-fp32`` takes some batches only: they are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from finetune.batching import micro_batches, pack
from finetune.bench.clock import now
from finetune.bench.rows import Arm, Case, Work
from finetune.bench.subject import Subject
from finetune.bench.trainer import Peer
from finetune.encodings import Encoded
from finetune.optimization import make_optimizer
from finetune.step import Step
from finetune.types import Encoding
from finetune.vocabulary import Vocabulary

FORWARD_AND_BACKWARD = 3
"""How many times the operations of a forward pass training takes: backward goes through the
inputs and through the weights."""


def case_of(subject: Subject) -> Case:
    """Ours and Trainer's arms; DeBERTa has none that pads to 128, which takes minutes."""
    peer, best, work = Peer(subject), subject.precision, subject.work
    assert work.operations is not None
    work = replace(work, operations=FORWARD_AND_BACKWARD * work.operations)
    mixed, grouped = subject.mixed, subject.grouped

    def ours(name: str, precision: str, active_vocabulary: str) -> Arm:
        return _arm(
            name, precision, work, mixed, subject,
            lambda batches: seconds(subject, batches, precision, active_vocabulary),
        )  # fmt: skip

    def theirs(name: str, precision: str, batches: Sequence[Sequence[int]], padded: bool) -> Arm:
        bf16, part = precision == "bf16", work.times(len(batches) / len(mixed))
        return _arm(
            name, precision, part, batches, subject,
            lambda batches: peer.seconds(batches, bf16=bf16, padded=padded),
        )  # fmt: skip

    arms = [
        ours("finetune", best, "auto"),
        ours("finetune-whole-vocabulary", best, "off"),
        ours("finetune-fp32", "fp32", "auto"),
        theirs("trainer-best", best, grouped, False),
        theirs("trainer-dynamic-fp32", "fp32", mixed, False),
    ]
    if not subject.head.encoder.model.config.model_type.startswith("deberta"):
        arms.append(theirs("trainer-pad128-fp32", "fp32", mixed[: subject.size.num_padded], True))
    return Case("train", subject.case, tuple(arms))


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
    subject: Subject, batches: Sequence[Sequence[int]], precision: str, active_vocabulary: str
) -> float:
    """How long our steps over the batches take, after a first one that does not count."""
    task, head = subject.task, subject.head
    config = replace(task.config, active_vocabulary=active_vocabulary)
    vocabulary = Vocabulary(
        head, config.active_vocabulary, [Encoded.of(part) for part in subject.occurring]
    )
    optimizer = vocabulary.follow(make_optimizer(head, config))
    step = Step(task, head, optimizer, config, subject.accelerator, precision)
    with vocabulary:
        take(step, [subject.encoded[place] for place in batches[0]])
        begin = now(subject.device)
        for batch in batches:
            take(step, [subject.encoded[place] for place in batch])
        return now(subject.device) - begin


def take(step: Step, examples: Sequence[Sequence[Encoding]]) -> None:
    """One optimizer step, from the sequences of the batch's examples."""
    encodings = [encoding for windows in examples for encoding in windows]
    groups = micro_batches(encodings, step.config.tokens_on(step.device.type))
    step([pack(group, step.task.collate(group)) for group in groups], weight=1.0, rate=1.0)
