"""Prediction on the CPU by torch, an exported graph, and the graph in int8.

Texts are predicted one by one, for the latency of each, and all at once, for the throughput; from
raw texts or words to predictions, with tokenization and decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from finetune.benchmark.commands import Bench
from finetune.benchmark.measure import Arm, Case, Work, seconds
from finetune.benchmark.subject import Size, subject_of
from finetune.deployment.onnx import export_onnx, validation_examples
from finetune.deployment.onnx_int8 import quantize
from finetune.deployment.onnx_model import OnnxModel
from finetune.inference.loop import predict
from finetune.models.half_precision import keep_cast_weights
from finetune.runtime.device import resolve_precision
from finetune.tasks import model_folder, saved_task
from finetune.tasks.base import Task

CPU = torch.device("cpu")
ONE_BY_ONE = 4
"""Every N-th text is predicted alone, to measure latency."""


def cases_of_run(settings: Bench, size: Size) -> Iterator[Case]:
    """Yield the cases of a trained run on texts of its validation split."""
    run = settings.folder or ""
    folder = model_folder(run)
    task = saved_task(folder)
    texts = validation_examples(task, folder, settings.data or None)
    yield from _cases(task, folder, texts[: size.num_batches * size.batch_size], run)


def cases_of(settings: Bench, model: str, size: Size) -> Iterator[Case]:
    """Yield the cases of a model with a new head."""
    with subject_of(settings, model, size) as subject:
        texts = [subject.texts[place] for batch in subject.mixed for place in batch]
        yield from _cases(subject.task, subject.folder, texts, subject.source)


def _cases(task: Task, folder: Path, texts: Sequence[Any], source: str) -> Iterator[Case]:
    head = task.head(folder).eval()
    best = resolve_precision(task.record.config, CPU)
    keep_cast_weights(head, best)  # as in a `Predictor`
    lengths = torch.from_numpy(task.encode(texts).lengths)
    with TemporaryDirectory() as temporary:
        graphs = Path(temporary) / "fp32", Path(temporary) / "int8"
        for graph in graphs:
            export_onnx(folder, graph)
        quantize(graphs[1], texts)
        runs: dict[str, tuple[str, Callable[[Sequence[Any]], object]]] = {
            "finetune": (best, lambda rows: predict(task, head, rows, precision=best, device=CPU)),
            "finetune-fp32": (
                "fp32",
                lambda rows: predict(task, head, rows, precision="fp32", device=CPU),
            ),
        }
        for precision, graph in zip(("fp32", "int8"), graphs, strict=True):
            model = OnnxModel(graph, threads=torch.get_num_threads())
            name = "onnx" if precision == "fp32" else "onnx-int8"
            runs[name] = (precision, model.predict_examples)
        if best == "fp32":
            del runs["finetune-fp32"]
        for how, each in (("one by one", texts[::ONE_BY_ONE]), ("in batches", texts)):
            own = lengths[::ONE_BY_ONE] if how == "one by one" else lengths
            counts = own.tolist()
            work = Work(len(each), sum(counts))
            arms = [
                _arm(name, precision, work, partial(run), each, alone=how == "one by one")
                for name, (precision, run) in runs.items()
            ]
            title = f"{task.name}, {len(each)} texts of {source}, {own.float().mean():.1f} tokens"
            yield Case("onnx", f"{title} each, {how}", tuple(arms))


def _arm(
    name: str,
    precision: str,
    work: Work,
    run: Callable[[Sequence[Any]], object],
    texts: Sequence[Any],
    *,
    alone: bool,
) -> Arm:
    """Return an arm that predicts texts, one by one if ``alone``."""
    groups = [[text] for text in texts] if alone else [texts]
    times: list[float] = []

    def turn() -> float:
        found = [seconds(partial(run, group), CPU) for group in groups]
        times.extend(found)
        return sum(found)

    return Arm(name, precision, work, turn, partial(run, groups[-1]), times if alone else None)
