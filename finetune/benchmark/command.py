"""`finetune bench`: the phases, one after the other, as tables or as one JSON object."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch

from finetune.benchmark import nested, prediction, spans, training
from finetune.benchmark.measure import (
    Case,
    Row,
    as_json,
    environment,
    freed_memory_returned,
    matmul_peak,
    measure,
    modules_not_collected,
    peak_memory,
    table,
)
from finetune.benchmark.settings import BenchSettings
from finetune.benchmark.subject import SIZES, Size, model_of, subject_of
from finetune.runtime.launch import make_accelerator


def run(command: BenchSettings) -> None:
    """Measure what a command says and print it; raises ValueError for what cannot be."""
    with threads(command.threads), modules_not_collected():
        device = make_accelerator().device
        which = command.size or ("large" if device.type == "cuda" else "default")
        size = SIZES[which]
        size = replace(size, batch_size=command.batch_size or size.batch_size)
        rounds = command.rounds or size.rounds
        peaks = {
            precision: matmul_peak(precision, device, size.matrix) for precision in ("fp32", "bf16")
        }
        found: list[Row] = []
        for case in _cases(command, which, size, device):
            rows = _rows(case, rounds, device, peaks)
            found += rows
            if not command.json:
                print(table(rows), flush=True)
        where = environment(device, peaks)
    if command.json:
        print(json.dumps({"rows": as_json(found), "environment": where}))
    else:
        print("; ".join(f"{name}: {value}" for name, value in where.items()))


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """So many threads meanwhile; None leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rows(case: Case, rounds: int, device: torch.device, peaks: Mapping[str, float]) -> list[Row]:
    """Memory first (and so, warm-up), then times. The first call makes what is kept for all."""
    print(f"{case.phase}: {case.name}: {len(case.arms)} arms", file=sys.stderr, flush=True)
    case.arms[0].heaviest()
    with freed_memory_returned():
        most = [peak_memory(arm.heaviest, device) for arm in case.arms]
    return measure(case, rounds, most, peaks)


def _cases(command: BenchSettings, which: str, size: Size, device: torch.device) -> Iterator[Case]:
    """The cases of the phases, in the order asked for."""
    phases = command.chosen_phases
    texts = {"train": training.case_of, "predict": prediction.case_of}
    with model_of(command) as model:
        if any(phase in texts for phase in phases):
            with subject_of(command, model, size) as subject:
                for phase in phases:
                    if phase in texts:
                        yield texts[phase](subject)
                        gc.collect()
        if "span" in phases:
            yield from spans.cases_of(which, device)
            with nested.subject_of(model, size) as subject:
                yield nested.case_of(subject)
