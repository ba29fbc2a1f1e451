"""Prediction from raw texts: by this toolkit, transformers' pipelines, and exported graphs.

All load the same saved model. The predictions of pipelines are compared with ours before any of
them is timed. Torch, a graph and the graph in int8 run on the CPU: texts one by one, for the
latency of each, and all at once, for the throughput.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import pipeline

from benchmarks.measure import Variant, Work, Workload, seconds
from benchmarks.measured_model import MeasuredModel, Settings
from finetune.deployment.onnx import export_onnx, validation_examples
from finetune.deployment.onnx_int8 import quantize
from finetune.deployment.onnx_model import OnnxModel
from finetune.inference.loop import predict
from finetune.models.loading import quiet
from finetune.models.master_weights import cast_weights
from finetune.runtime.device import resolve_precision
from finetune.tasks import model_folder, saved_task
from finetune.tasks.base import Task
from finetune.types import TextExample

Predicted = tuple[str, float] | None
"""A label and its probability; None for a word without subwords in a pipeline."""

CPU = torch.device("cpu")
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}
"""Largest difference of two probabilities, by precision."""
ONE_BY_ONE = 4
"""Every N-th text is predicted alone, to measure latency."""


def workloads_of(measured: MeasuredModel) -> Iterator[Workload]:
    """Yield the variants beside pipelines; AssertionError if their predictions differ."""
    best, texts = measured.precision, _texts(measured)
    heads = models_by_precision(measured.task.model(measured.folder).to(measured.device), best)
    words = measured.task.description.words
    pipe = _pipeline(measured, texts, torch.float32)

    def ours(precision: str) -> list[Predicted]:
        found: list[Any] = predict(
            measured.task, heads[precision], texts, measured.accelerator, precision=precision
        )
        if words:
            return [pair for p in found for pair in zip(p.tags, p.scores, strict=True)]
        return [(p.label, p.score) for p in found]

    expected = pipe(1)
    for precision in {"fp32", best}:
        compare(expected, ours(precision), TOLERANCE[precision], 0.1 * words)
    runs: list[tuple[str, str, Callable[[], object]]] = [
        ("finetune", best, partial(ours, best)),
        ("finetune-fp32", "fp32", partial(ours, "fp32")),
        ("pipeline-default", "fp32", partial(pipe, 1)),
        ("pipeline-batch32", "fp32", partial(pipe, 32)),
    ]
    if measured.device.type == "cuda" and best == "bf16":
        half = _pipeline(measured, texts, torch.bfloat16)
        runs.append(("pipeline-batch32-bf16", "bf16", partial(half, 32)))
    work = measured.work_of(measured.mixed)
    variants = [
        Variant(name, precision, work, partial(seconds, run, measured.device), run)
        for name, precision, run in runs
    ]
    yield Workload("predict", measured.workload, variants)


def models_by_precision(model: Any, best: str) -> dict[str, Any]:
    """Copy a model for the best precision and for float32, with the weights of a `Predictor`."""
    models = {precision: copy.deepcopy(model) for precision in {best, "fp32"}}
    cast_weights(models[best], best)
    return models


def _texts(measured: MeasuredModel) -> list[Any]:
    return [measured.texts[index] for batch in measured.mixed for index in batch]


def _pipeline(
    measured: MeasuredModel, texts: Sequence[Any], dtype: torch.dtype
) -> Callable[[int], list[Predicted]]:
    words = measured.task.description.words
    task: Any = "token-classification" if words else "text-classification"
    with quiet():
        pipe = pipeline(task, model=str(measured.folder), device=measured.device, dtype=dtype)
    settings: dict[str, Any] = {"truncation": True, "max_length": measured.task.state.max_length}
    settings = {"ignore_labels": []} if words else settings
    inputs = [_input(example) for example in texts]

    def run(batch_size: int) -> list[Predicted]:
        with quiet():
            found = pipe(inputs, batch_size=batch_size, **settings)
        if not words:
            return [(each["label"], each["score"]) for each in found]
        pairs = zip(texts, found, strict=True)
        return [label for example, labels in pairs for label in _at_words(example, labels)]

    return run


def _input(example: Any) -> Any:
    if not isinstance(example, TextExample):
        return " ".join(example.words)
    if example.pair is None:
        return example.text
    return {"text": example.text, "text_pair": example.pair}


def _at_words(example: Any, labels: Sequence[dict[str, Any]]) -> list[Predicted]:
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


def exported_run(settings: Settings) -> Iterator[Workload]:
    """Yield the workloads of a trained run on texts of its validation split."""
    run, size = settings.run or "", settings.size
    folder = model_folder(run)
    task = saved_task(folder)
    texts = validation_examples(task, folder, settings.data or None)
    yield from _exported(task, folder, texts[: size.num_batches * size.batch_size], run)


def exported_workloads(measured: MeasuredModel) -> Iterator[Workload]:
    """Yield the workloads of a model with a new head."""
    yield from _exported(measured.task, measured.folder, _texts(measured), measured.source)


def _exported(task: Task, folder: Path, texts: Sequence[Any], source: str) -> Iterator[Workload]:
    best = resolve_precision(task.state.config, CPU)
    models = models_by_precision(task.model(folder).eval(), best)

    def torch_in(precision: str) -> Callable[[Sequence[Any]], object]:
        model = models[precision]
        return lambda rows: predict(task, model, rows, precision=precision, device=CPU)

    with TemporaryDirectory() as temporary:
        full, small = Path(temporary) / "fp32", Path(temporary) / "int8"
        for graph in (full, small):
            export_onnx(folder, graph)
        quantize(small, texts)
        graphs = [OnnxModel(graph, threads=torch.get_num_threads()) for graph in (full, small)]
        runs: list[tuple[str, str, Callable[[Sequence[Any]], object]]] = [
            ("finetune", best, torch_in(best)),
            *([("finetune-fp32", "fp32", torch_in("fp32"))] if best != "fp32" else []),
            ("onnx", "fp32", graphs[0].predict_examples),
            ("onnx-int8", "int8", graphs[1].predict_examples),
        ]
        for how, groups in (
            ("one by one", [[text] for text in texts[::ONE_BY_ONE]]),
            ("in batches", [texts]),
        ):
            own = [text for group in groups for text in group]
            work = Work(len(own), int(task.encode(own).lengths.sum()))
            mean = work.tokens / work.examples
            title = f"{task.name}, {len(own)} texts of {source}, {mean:.1f} tokens each, {how}"
            variants = [
                _in_groups(name, precision, work, run, groups) for name, precision, run in runs
            ]
            yield Workload("onnx", title, variants)


def _in_groups(
    name: str,
    precision: str,
    work: Work,
    run: Callable[[Sequence[Any]], object],
    groups: Sequence[Sequence[Any]],
) -> Variant:
    times: list[float] = []

    def repetition() -> float:
        found = [seconds(partial(run, group), CPU) for group in groups]
        times.extend(found)
        return sum(found)

    largest_batch = partial(run, groups[-1])
    return Variant(
        name, precision, work, repetition, largest_batch, times if len(groups[0]) == 1 else None
    )
