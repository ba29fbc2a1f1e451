"""Prediction with any task's model: every example answered once, in the examples' order."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from finetune.preprocessing.batching import grouped, pack
from finetune.preprocessing.encodings import Encoded, Encodings
from finetune.preprocessing.prefetch import ahead
from finetune.runtime.launch import make_accelerator
from finetune.runtime.precision import autocast, resolve_precision
from finetune.runtime.progress import Reporter
from finetune.runtime.transfer import batch_to_device
from finetune.tasks import Task
from finetune.types import Batch, Example, Partial, Prediction

T = TypeVar("T")

PREDICT_TOKENS = 1024
"""Tokens per forward pass in prediction on a CPU: more no longer fits its caches."""
CHUNK = 4096
"""Examples of a stream that are sorted by length, and looked through for repetitions, together."""


def predict(
    task: Task,
    head: Any,
    examples: Sequence[Example],
    accelerator: Accelerator | None = None,
    *,
    encoded: Encoded | None = None,
    precision: str | None = None,
    reporter: Reporter | None = None,
    title: str = "predicting",
) -> list[Prediction]:
    """One prediction for every example, in the examples' order, on every process.

    Sequences that occur several times are computed once. Raises RuntimeError if a prediction is
    missing.
    """
    accelerator = accelerator or make_accelerator()
    encoded = task.encode(examples) if encoded is None else encoded
    mine = range(accelerator.process_index, len(examples), accelerator.num_processes)
    answers = _Answers(task, [examples[index] for index in mine], encoded.num_windows[mine])
    sequences = encoded.sequences.take(encoded.rows(mine))
    first, copies = distinct(sequences)
    device = accelerator.device
    precision = precision or resolve_precision(task.config, device)
    budget = task.config.tokens_on(device.type)
    if device.type == "cpu":
        budget = min(budget, PREDICT_TOKENS)
    groups = grouped(sequences.lengths[first], budget)
    head.eval()
    if reporter:
        reporter.start(title, len(groups), unit="batch")
    batches = (pack(sequences.take(first[group])) for group in groups)
    # autocast casts the weights once where one context holds all batches; in inference mode never
    casting = autocast(precision, device)
    with torch.no_grad(), casting, contextlib.closing(ahead(batches)) as ready:
        answered = _answered(task, head, ready, device)
        for done, (group, partials) in enumerate(zip(groups, answered, strict=True)):
            for number, partial in zip(group, partials, strict=True):
                for row in copies[number]:
                    example, word = sequences.example[row], sequences.first_word[row]
                    answers.add(partial._replace(example=int(example), first_word=int(word)))
            if reporter:
                reporter.update(done + 1)
    if reporter:
        reporter.stop()
    by_id = {answer.id: answer for answer in gather_object(answers.finished)}
    if len(by_id) != len(examples):
        raise RuntimeError(f"{len(by_id)} predictions for {len(examples)} examples")
    return [by_id[example.id] for example in examples]


def _answered(
    task: Task, head: Any, batches: Iterable[Batch], device: torch.device
) -> Iterator[list[Partial]]:
    """What the sequences of each batch say. Of a GPU the answers to a batch are read while it
    computes the next."""
    aside = _aside(device)
    waiting: deque[tuple[Any, Batch, Any]] = deque()
    for batch in batches:
        head.encoder.check(batch)  # on the CPU, where looking at ids costs no wait
        batch = batch_to_device(batch, device)
        logits = full_precision(head(batch))
        waiting.append((logits, batch, aside and aside.mark()))
        if len(waiting) > (aside is not None):
            yield _decoded(task, *waiting.popleft(), aside)
    while waiting:
        yield _decoded(task, *waiting.popleft(), aside)


def _decoded(
    task: Task, logits: Any, batch: Batch, mark: Any, aside: _Aside | None
) -> list[Partial]:
    with torch.autocast(batch.input_ids.device.type, enabled=False):
        if aside is None:
            return task.decode(logits, batch)
        return aside.run(lambda: task.decode(logits, batch), mark)


class _Aside:
    """A stream of a GPU beside the current one: to read a tensor is to wait for all that its stream
    was told to do, and the current one has the next batch already."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def mark(self) -> Any:
        """A point that the current stream has yet to reach."""
        return torch.cuda.current_stream(self.device).record_event()

    def run(self, action: Callable[[], T], mark: Any) -> T:
        """What an action returns that begins at a mark, when it is done."""
        self.stream.wait_event(mark)
        with torch.cuda.stream(self.stream):
            result = action()
        self.stream.synchronize()  # memory that it read may go to the next batch from now on
        return result


@functools.cache
def _aside(device: torch.device) -> _Aside | None:
    """A stream for answers, where computing does not wait for them; one for all, as each keeps
    memory of its own."""
    return _Aside(device) if device.type == "cuda" else None


class _Answers:
    """Predictions of examples, each made as soon as all its sequences have been answered."""

    def __init__(self, task: Task, examples: Sequence[Example], num_windows: np.ndarray) -> None:
        self.task = task
        self.waiting = {
            example.id: (example, int(number), list[Partial]())
            for example, number in zip(examples, num_windows, strict=True)
        }
        self.finished: list[Prediction] = []

    def add(self, partial: Partial) -> None:
        example, number, partials = self.waiting[partial.example]
        partials.append(partial)
        if len(partials) == number:
            self.finished.append(self.task.finish(example, partials))
            del self.waiting[partial.example]


def distinct(sequences: Encodings) -> tuple[np.ndarray, list[list[int]]]:
    """The rows of different sequences, and all rows that are the same as each of them."""
    rows: dict[bytes, list[int]] = {}
    ids, segments, words = sequences.ids, sequences.segments, sequences.words
    for row in range(len(sequences)):
        start, end = ids.offsets[row : row + 2]
        word, last = words.offsets[row : row + 2]
        parts = [ids.values[start:end], words.values[word:last]]
        if segments is not None:
            parts.append(segments[start:end])
        content = np.concatenate(([end - start], *parts)).tobytes()
        rows.setdefault(content, []).append(row)
    copies = list(rows.values())
    return np.array([same[0] for same in copies], dtype=np.int64), copies


def predict_stream(
    task: Task, head: Any, examples: Iterable[Example], chunk: int = CHUNK, **options: Any
) -> Iterator[Prediction]:
    """Predictions for a stream of any length, in order and in bounded memory."""
    stream = iter(examples)
    parts = iter(lambda: list(islice(stream, chunk)), [])
    for part, encoded in ahead(((part, task.encode(part)) for part in parts), most=1):
        yield from predict(task, head, part, encoded=encoded, **options)


def full_precision(logits: Any) -> Any:
    """Logits (a tensor, or a named tuple of them) in float32 at least: losses are not computed in
    half precision."""
    if isinstance(logits, tuple):
        return type(logits)(*map(full_precision, logits))
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
