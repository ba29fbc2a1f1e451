"""Vectors that a trained model decides on, and the nearest training examples by them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from accelerate import Accelerator

from finetune.evaluation.predictions import gold_record
from finetune.inference.loop import forward_passes, precision_on
from finetune.preprocessing.batching import pack
from finetune.preprocessing.encodings import Array
from finetune.runtime.launch import make_accelerator
from finetune.tasks.base import Task
from finetune.types import Example, TokenExample


def decision_vectors(
    task: Task, head: Any, examples: Sequence[Example], accelerator: Accelerator | None = None
) -> Array:
    """Return the vector of each example that its head decides on: float32 [N, H].

    It is the last hidden state of the first token (or the pooled vector, as the model was trained)
    of texts and pairs, and the mean of the words of a sentence. The vector of an example of several
    windows is their mean, of words weighted by their number. Every process computes all.

    Args:
        task: The task of the model.
        head: The model, on the accelerator's device.
        examples: The examples. Their ids need not differ.
        accelerator: The device.
    """
    device = (accelerator or make_accelerator()).device
    encoded = task.encode(examples)
    sequences = encoded.sequences
    weights = np.maximum(sequences.num_words, 1) if task.description.words else None
    found: Array = np.zeros((0, 0), np.float32)
    passes = forward_passes(
        head,
        sequences.lengths,
        lambda rows: pack(sequences.take(rows)),
        lambda vectors, batch: vectors.cpu().numpy(),
        forward=head.vectors,
        device=device,
        precision=precision_on(task, device),
        max_tokens=task.record.config.max_tokens,
    )
    with contextlib.closing(passes):
        for rows, vectors in passes:
            if not len(found):
                found = np.zeros((len(sequences), vectors.shape[1]), np.float32)
            found[rows] = vectors
    means = np.zeros((len(examples), found.shape[1]), np.float32)
    for number, (start, end) in enumerate(zip(encoded.offsets, encoded.offsets[1:], strict=False)):
        if end > start:  # an example without words has no sequence
            own = None if weights is None else weights[start:end]
            means[number] = np.average(found[start:end], 0, own)
    return means


class Neighbor(NamedTuple):
    """A training example near another example, and the cosine of both vectors."""

    similarity: float
    example: Example

    def record(self) -> dict[str, Any]:
        """Return the training example with its gold as JSON values."""
        words = isinstance(self.example, TokenExample) and {"words": list(self.example.words)}
        return {"similarity": round(self.similarity, 6)} | (words or {}) | gold_record(self.example)
