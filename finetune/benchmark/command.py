"""Measure the phases of the benchmark, one after the other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch

from finetune.benchmark import exported, nested, prediction, pretraining, spans, training
from finetune.benchmark.measure import (
    Case,
    Row,
    environment,
    freed_memory_returned,
    matmul_peak,
    measure,
    modules_not_collected,
    peak_memory,
)
from finetune.benchmark.settings import BenchSettings
from finetune.benchmark.subject import SIZES, Size, model_of, subject_of
from finetune.runtime.launch import make_accelerator


def run(
    settings: BenchSettings, on_case: Callable[[Case], None], on_rows: Callable[[list[Row]], None]
) -> tuple[list[Row], dict[str, object]]:
    """Measure all cases of the chosen phases.

    Args:
        settings: What to measure.
        on_case: Called before each case is measured.
        on_rows: Called with the rows of each case.

    Returns:
        All rows, and the environment of the measurements.

    Raises:
        UserError: If the model or data cannot be measured.
    """
    with threads(settings.threads), modules_not_collected():
        device = make_accelerator().device
        which = settings.size or ("large" if device.type == "cuda" else "default")
        size = SIZES[which]
        size = replace(size, batch_size=settings.batch_size or size.batch_size)
        peaks = {
            precision: matmul_peak(precision, device, size.matrix) for precision in ("fp32", "bf16")
        }
        found: list[Row] = []
        for case in _cases(settings, which, size, device):
            on_case(case)
            rows = _rows(case, settings.rounds or size.rounds, device, peaks)
            found += rows
            on_rows(rows)
        return found, environment(device, peaks)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Context with a number of torch threads; None leaves it unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rows(case: Case, rounds: int, device: torch.device, peaks: Mapping[str, float]) -> list[Row]:
    """Measure memory, which also warms up, then times. The first call fills shared caches."""
    case.arms[0].heaviest()
    with freed_memory_returned():
        most = [peak_memory(arm.heaviest, device) for arm in case.arms]
    return measure(case, rounds, most, peaks)


def _cases(settings: BenchSettings, which: str, size: Size, device: torch.device) -> Iterator[Case]:
    """Yield the cases of the phases, in the given order."""
    phases = settings.chosen_phases
    if settings.folder is not None:
        yield from exported.cases_of_run(settings, size)
        return
    texts = {"train": training.case_of, "predict": prediction.case_of}
    with model_of(settings) as model:
        if any(phase in texts for phase in phases):
            with subject_of(settings, model, size) as subject:
                for phase in phases:
                    if phase in texts:
                        yield texts[phase](subject)
                        gc.collect()
        if "onnx" in phases:
            yield from exported.cases_of(settings, model, size)
        if "pretrain" in phases:
            yield pretraining.case_of(model, size)
        if "span" in phases:
            yield from spans.cases_of(which, device)
            with nested.subject_of(model, size) as subject:
                yield nested.case_of(subject)
