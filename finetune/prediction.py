"""Prediction with any task's model: every example answered once, in the examples' order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from finetune.batching import micro_batches, pack
from finetune.launch import make_accelerator
from finetune.optimization import autocast, precision_of
from finetune.progress import Reporter
from finetune.tasks import Task
from finetune.types import Encoding, Example, Partial, Prediction

PREDICT_TOKENS = 1024
"""Tokens per forward pass in prediction on a CPU: more no longer fits its caches."""


def predict(
    task: Task,
    head: Any,
    examples: Sequence[Example],
    accelerator: Accelerator | None = None,
    *,
    encoded: Sequence[Sequence[Encoding]] | None = None,
    precision: str | None = None,
    reporter: Reporter | None = None,
    title: str = "predicting",
) -> list[Prediction]:
    """One prediction for every example, in the examples' order, on every process.

    Raises RuntimeError if a prediction is missing.
    """
    accelerator = accelerator or make_accelerator()
    device = accelerator.device
    precision = precision or precision_of(task.config, device)
    mine = range(accelerator.process_index, len(examples), accelerator.num_processes)
    encoded = encoded if encoded is not None else task.encode(examples)
    budget = PREDICT_TOKENS if device.type == "cpu" else task.config.max_tokens
    groups = micro_batches([e for index in mine for e in encoded[index]], budget)
    partials: dict[int, list[Partial]] = {}
    head.eval()
    if reporter:
        reporter.start(title, len(groups), unit="batch")
    for done, group in enumerate(groups):
        batch = pack(group).to(device)
        with torch.inference_mode(), autocast(precision, device):
            logits = head(batch)
        for partial in task.decode(full_precision(logits), batch):
            partials.setdefault(partial.example, []).append(partial)
        if reporter:
            reporter.update(done + 1)
    if reporter:
        reporter.stop()
    answers = [task.finish(examples[i], partials[examples[i].id]) for i in mine]
    by_id = {answer.id: answer for answer in gather_object(answers)}
    if len(by_id) != len(examples):
        raise RuntimeError(f"{len(by_id)} predictions for {len(examples)} examples")
    return [by_id[example.id] for example in examples]


def predict_stream(
    task: Task, head: Any, examples: Iterable[Example], chunk: int = 2048, **options: Any
) -> Iterator[Prediction]:
    """Predictions for a stream of any length, in order and in bounded memory."""
    stream = iter(examples)
    while part := list(islice(stream, chunk)):
        yield from predict(task, head, part, **options)


def full_precision(logits: Any) -> Any:
    """Logits (a tensor, or a named tuple of them) in float32 at least: losses are not computed in
    half precision."""
    if isinstance(logits, tuple):
        return type(logits)(*map(full_precision, logits))
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
