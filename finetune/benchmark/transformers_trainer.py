"""Training with transformers' Trainer over padded batches, as in its examples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from datasets import Dataset
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from finetune.benchmark.measure import WARM_STEPS, now
from finetune.benchmark.subject import Subject
from finetune.models.loading import load_config, load_weights, quiet
from finetune.training.optimizer import default_learning_rate
from finetune.types import IGNORED, Encoding


@dataclass(frozen=True)
class TrainerRun:
    """A model, rows and a collator for Trainer."""

    model: Any
    rows: Any
    collator: Any
    device: torch.device
    lr: float

    @classmethod
    def of(cls, subject: Subject) -> TrainerRun:
        """Return the Hugging Face class inside the subject's head, and the same sequences.

        The model has its usual attention. Batches are padded to their longest text.
        """
        name, words = str(subject.folder), subject.task.description.words
        auto_class = type(subject.head).auto_class
        model = load_weights(auto_class, name, load_config(name), new_head=False)
        kind = DataCollatorForTokenClassification if words else DataCollatorWithPadding
        return cls(
            model.to(subject.device),
            Dataset.from_list([_row(encoding) for (encoding, *_) in subject.encoded]),
            kind(subject.task.tokenizer.tokenizer),
            subject.device,
            default_learning_rate(subject.head.encoder.width),
        )

    def seconds(self, batches: Sequence[Sequence[int]], *, bf16: bool) -> float:
        """Return the seconds for batches of rows, after some that do not count."""
        warm = batches[:WARM_STEPS]
        clock = Clock(self.device, len(warm))
        order = [place for batch in (*warm, *batches) for place in batch]
        with TemporaryDirectory() as folder, state_restored(), quiet():
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=len(batches[0]),
                max_steps=len(warm) + len(batches),
                learning_rate=self.lr,
                bf16=bf16,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=self.device.type == "cpu",
                dataloader_pin_memory=self.device.type == "cuda",
            )
            arguments._n_gpu = min(1, arguments.n_gpu)
            trainer = InOrder(
                order,
                model=self.model,
                args=arguments,
                train_dataset=self.rows,
                data_collator=self.collator,
                callbacks=[clock],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return clock.end - clock.begin


class InOrder(Trainer):
    """Trainer that reads examples in a given order.

    Trainer's sampler groups by length within a quarter of a small data set, and so poorly. The
    given order is as in a large data set.
    """

    def __init__(self, order: Sequence[int], **settings: Any) -> None:
        super().__init__(**settings)
        self.order = order

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return self.order


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
    kinds = (PartialState, AcceleratorState)
    before = [dict(kind._shared_state) for kind in kinds]
    try:
        yield
    finally:
        for kind, state in zip(kinds, before, strict=True):
            kind._shared_state.clear()
            kind._shared_state.update(state)


def _row(encoding: Encoding) -> dict[str, Any]:
    """Return a sequence with its label, or with the labels of words at their first subwords."""
    target = encoding.target or {}
    row: dict[str, Any] = {
        "input_ids": encoding.input_ids,
        "attention_mask": [1] * len(encoding.input_ids),
    }
    if encoding.segment_ids is not None:
        row["token_type_ids"] = encoding.segment_ids
    if encoding.word_starts:
        row["labels"] = [IGNORED] * len(encoding.input_ids)
        firsts = encoding.word_starts[:-1]
        for start, tag in zip(firsts, target["tag"], strict=True):
            row["labels"][start] = tag
    else:
        (row["labels"],) = target["label"]
    return row
