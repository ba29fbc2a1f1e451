"""The one loop without gradients, and predictions with it: encode, batch, forward, decode, order.

``values_of_examples`` serves embeddings, explanations, perplexity and ranking, and through
``predict`` validation, ``Predictor`` and the pipelines.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from finetune.config.tasks import default_max_tokens
from finetune.models.encoder import Encoder
from finetune.models.graphs import replayed_passes
from finetune.models.master_weights import casting
from finetune.models.shapes import RowShape
from finetune.preprocessing.batching import grouped, pack
from finetune.preprocessing.encodings import Array, EncodedExamples, FlatSequences
from finetune.runtime.device import batch_to_device, resolve_precision
from finetune.runtime.launch import make_accelerator
from finetune.runtime.progress import Reporter
from finetune.runtime.workers import ahead
from finetune.tasks.base import Task
from finetune.types import Batch, Example, Prediction, TokenPrediction, WindowOutput

T = TypeVar("T")
R = TypeVar("R")

CPU_TOKENS = 1024
"""Largest number of tokens in a forward pass on a CPU: more do not fit into its caches."""
CHUNK = 4096
"""Number of examples of a stream to sort by length together."""


def predict(
    task: Task,
    head: Any,
    examples: Sequence[Example],
    accelerator: Accelerator | None = None,
    *,
    encoded: EncodedExamples | None = None,
    keep_log_probabilities: bool = False,
    device: torch.device | None = None,
    **options: Any,
) -> list[Prediction]:
    """Predict every example, in the order of the examples, on every process.

    A blank text has no label, whatever the model says.

    Args:
        task: The task of the model.
        head: The model, on the accelerator's device.
        examples: The examples.
        accelerator: The device and the processes that divide the work.
        encoded: The sequences of the examples, to save encoding them.
        keep_log_probabilities: Store the log-probabilities of all tags in predictions of words.
        device: Compute everything in this process, on this device, without an accelerator.
        options: Arguments of ``values_of_examples``, such as ``reporter``, or a ``precision`` and
            ``max_tokens`` in place of those of the task.
    """
    index, num_processes = 0, 1
    if device is None:
        accelerator = accelerator or make_accelerator()
        device, num_processes = accelerator.device, accelerator.num_processes
        index = accelerator.process_index
    mine = examples
    if num_processes > 1:
        shard = slice(index, None, num_processes)
        mine, encoded = examples[shard], None if encoded is None else encoded[shard]
    encoded = task.encode(mine) if encoded is None else encoded
    windows, offsets = encoded.sequences.window.tolist(), encoded.offsets.tolist()
    options = pass_options(task, device) | options
    if task.description.reads_targets:
        options["targets"] = task.collate
    predicted: list[Any] = [None] * len(mine)
    values = values_of_examples(head, encoded, task.decode, **options)
    with contextlib.closing(values):
        for number, of_windows in values:
            start, end = offsets[number : number + 2]
            prediction = task.state.of_blank(mine[number])
            if prediction is None:
                outputs = list(map(WindowOutput, windows[start:end], of_windows))
                prediction = task.postprocess(mine[number], outputs)
            if isinstance(prediction, TokenPrediction) and not keep_log_probabilities:
                prediction = replace(prediction, log_probabilities=None)
            predicted[number] = prediction
    if num_processes == 1:
        return predicted
    of_all = gather_object([predicted])
    return [of_all[n % num_processes][n // num_processes] for n in range(len(examples))]


def pass_options(task: Task, device: torch.device) -> dict[str, Any]:
    """The arguments of ``values_of_examples`` for a model of a task on a device."""
    max_tokens = task.state.config.max_tokens
    return {"device": device, "precision": precision_on(task, device), "max_tokens": max_tokens}


def precision_on(task: Task, device: torch.device) -> str:
    """The precision of predictions on a device."""
    precision = resolve_precision(task.state.config, device)
    # on a CPU float16 is slower, and less precise
    return "fp32" if precision == "fp16" and device.type == "cpu" else precision


def values_of_examples(
    model: Any, encoded: EncodedExamples, decode: Callable[[Any, Batch], Any], **options: Any
) -> Generator[tuple[int, list[Any]]]:
    """Compute a value for each sequence, without gradients and dropout.

    Yields the number of each example, in no order, and the values of its sequences, in theirs.
    Close the generator, which ends the thread that makes batches in advance.

    Args:
        model: A head or an encoder, on the device.
        encoded: The sequences of the examples.
        decode: Returns a value for each sequence of a batch from the output (in at least float32)
            and the batch.
        options: ``device``, that of the model; ``forward``, which returns the output of a batch, by
            default the model's; ``targets``, which returns the targets of sequences, if the model
            reads them; ``precision``: ``bf16``, ``fp16`` or ``fp32``, the default; ``max_tokens``
            of a forward pass, by default what suits the device (on a CPU there are at most
            ``CPU_TOKENS``); and ``reporter``, which shows the progress in batches under ``title``.
    """
    bounds = encoded.offsets.tolist()
    missing = encoded.num_windows.tolist()  # the number of values that an example still lacks
    yield from ((number, []) for number, count in enumerate(missing) if not count)
    example_of = np.repeat(np.arange(len(missing)), missing).tolist()
    values: list[Any] = [None] * len(encoded.sequences)
    with contextlib.closing(_passes(model, encoded.sequences, decode, **options)) as passes:
        for rows, of_batch in passes:
            for row, value in zip(rows.tolist(), of_batch, strict=True):
                values[row], number = value, example_of[row]
                missing[number] -= 1
                if not missing[number]:
                    start, end = bounds[number : number + 2]
                    yield number, values[start:end]
                    values[start:end] = [None] * (end - start)


def _passes(
    model: Any,
    sequences: FlatSequences,
    decode: Callable[[Any, Batch], R],
    *,
    device: torch.device,
    forward: Callable[[Batch], Any] | None = None,
    targets: Callable[[FlatSequences], dict[str, torch.Tensor]] | None = None,
    precision: str = "fp32",
    max_tokens: int | None = None,
    reporter: Reporter | None = None,
    title: str = "predicting",
) -> Generator[tuple[Array, R]]:
    lengths, budget = sequences.lengths, max_tokens or default_max_tokens(device.type)
    groups = grouped(lengths, min(budget, CPU_TOKENS) if device.type == "cpu" else budget)
    if any(module.training for module in model.modules()):  # `eval()` takes longer
        model.eval()
    if reporter:
        reporter.start(title, len(groups), unit="batch")

    packed = (pack(chosen, targets and targets(chosen)) for chosen in map(sequences.take, groups))
    batches = ahead(packed) if len(groups) > 1 else packed
    encoder = model if isinstance(model, Encoder) else model.encoder
    # outputs are copied on another stream, to decode a batch while the device computes the next
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    waiting: deque[tuple[Array, Batch, Any, Any]] = deque()

    def decoded() -> tuple[Array, R]:
        rows, batch, output, computed = waiting.popleft()
        with torch.cuda.stream(stream), torch.autocast(device.type, enabled=False):
            if stream is not None:
                stream.wait_event(computed)
            result = decode(output, batch)
        if stream is not None:
            stream.synchronize()  # the memory of the output is free now
        return rows, result

    of_groups = map(lengths.__getitem__, groups)
    replaying = replayed_passes(
        encoder, lambda: [RowShape(int(of.sum()), len(of), int(of.max())) for of in of_groups]
    )
    in_precision = casting(model, precision, device)
    with torch.no_grad(), in_precision, replaying, contextlib.closing(batches):
        for done, (rows, batch) in enumerate(zip(groups, batches, strict=True), 1):
            batch = batch_to_device(batch, device)
            output = full_precision((forward or model)(batch))
            computed = None if stream is None else torch.cuda.current_stream(device).record_event()
            waiting.append((rows, batch, output, computed))
            if device.type == "cpu" or len(waiting) > 1:
                yield decoded()
            if reporter:
                reporter.update(done)
        while waiting:
            yield decoded()
    if reporter:
        reporter.stop()


def chunks(
    items: Iterable[T],
    most: int = CHUNK,
    size_of: Callable[[T], int] = lambda item: 0,
    most_size: int = 1,
) -> Iterator[list[T]]:
    """Yield lists of ``most`` items, or of fewer whose sizes add up to ``most_size``."""
    chunk, size = list[T](), 0
    for item in items:
        chunk.append(item)
        size += size_of(item)
        if len(chunk) == most or size >= most_size:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def full_precision(logits: Any) -> Any:
    """Convert logits in half precision, a tensor or a named tuple of tensors, to float32."""
    if isinstance(logits, tuple):
        return type(logits)(*map(full_precision, logits))
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
