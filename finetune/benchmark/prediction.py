"""Prediction of this toolkit and of transformers' pipelines, from raw texts to labels.

Both load the same saved model. Their predictions are compared before any of them is timed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import pipeline

from finetune.benchmark.measure import Arm, Case, seconds
from finetune.benchmark.subject import Subject
from finetune.inference.loop import predict
from finetune.models.loading import quiet
from finetune.types import TextExample

Predicted = tuple[str, float] | None
"""A label and its probability; None for a word without subwords in a pipeline."""

TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}
"""Largest difference of two probabilities, by precision."""


def case_of(subject: Subject) -> Case:
    """Return the arms; AssertionError if their predictions differ."""
    task, best, work = subject.task, subject.precision, subject.work
    texts = [subject.texts[place] for batch in subject.mixed for place in batch]  # in random order
    head = task.head(subject.folder).to(subject.device)
    pipe = _pipeline(subject, texts, torch.float32)

    def ours(precision: str) -> list[Predicted]:
        found: list[Any] = predict(task, head, texts, subject.accelerator, precision=precision)
        if task.description.words:
            return [pair for p in found for pair in zip(p.tags, p.scores, strict=True)]
        return [(p.label, p.score) for p in found]

    expected = pipe(1)
    for precision in {"fp32", best}:
        compare(expected, ours(precision), TOLERANCE[precision], 0.1 * task.description.words)

    runs: list[tuple[str, str, Callable[[], object]]] = [
        ("finetune", best, lambda: ours(best)),
        ("finetune-fp32", "fp32", lambda: ours("fp32")),
        ("pipeline-default", "fp32", lambda: pipe(1)),
        ("pipeline-batch32", "fp32", lambda: pipe(32)),
    ]
    if subject.device.type == "cuda" and best == "bf16":
        half = _pipeline(subject, texts, torch.bfloat16)
        runs.append(("pipeline-batch32-bf16", "bf16", lambda: half(32)))
    arms = [
        Arm(name, precision, work, functools.partial(seconds, run, subject.device), run)
        for name, precision, run in runs
    ]
    return Case("predict", subject.case, tuple(arms))


def _pipeline(
    subject: Subject, texts: Sequence[Any], kind_of_weights: torch.dtype
) -> Callable[[int], list[Predicted]]:
    """Return a function that runs a pipeline over all texts with a batch size."""
    kind: Any = "token-classification" if subject.task.description.words else "text-classification"
    with quiet():
        pipe = pipeline(
            kind, model=str(subject.folder), device=subject.device, dtype=kind_of_weights
        )
    inputs = [_input(example) for example in texts]
    settings: dict[str, Any] = {"ignore_labels": []} if subject.task.description.words else {}
    if not subject.task.description.words:
        settings = {"truncation": True, "max_length": subject.task.record.max_length}

    def run(batch_size: int) -> list[Predicted]:
        with quiet():
            found = pipe(inputs, batch_size=batch_size, **settings)
        if not subject.task.description.words:
            return [(each["label"], each["score"]) for each in found]
        pairs = zip(texts, found, strict=True)
        return [label for example, labels in pairs for label in _at_words(example, labels)]

    return run


def _input(example: Any) -> Any:
    """Return an example in the form that a pipeline takes."""
    if not isinstance(example, TextExample):
        return " ".join(example.words)
    if example.pair is None:
        return example.text
    return {"text": example.text, "text_pair": example.pair}


def _at_words(example: Any, labels: Sequence[dict[str, Any]]) -> list[Predicted]:
    """Return the label of the first subword of each word, which may start with a space."""
    by_start = {each["start"]: (each["entity"], each["score"]) for each in labels}
    found, start = [], 0
    for word in example.words:
        found.append(by_start.get(start - 1) or by_start.get(start))
        start += len(word) + 1
    return found


def compare(
    expected: Sequence[Predicted], found: Sequence[Predicted], tolerance: float, rarely: float = 0.0
) -> None:
    """Raise AssertionError if two lists of predictions differ.

    One label in ten may differ, where two are almost equally probable. The fraction ``rarely`` of
    the probabilities may exceed the tolerance: words can have other subwords in running text.
    """
    assert len(found) == len(expected), f"{len(found)} predictions for {len(expected)}"
    pairs = [(a, b) for a, b in zip(expected, found, strict=True) if a and b]
    apart = sum(abs(one[1] - other[1]) > tolerance for one, other in pairs)
    assert apart <= rarely * len(expected), f"{apart} of {len(pairs)} probabilities differ"
    differing = sum(one[0] != other[0] for one, other in pairs)
    assert differing <= len(pairs) / 10, f"{differing} of {len(pairs)} labels differ"
