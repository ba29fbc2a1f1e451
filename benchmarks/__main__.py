"""`python -m benchmarks train`, `predict`, `pretrain`, `onnx` and `shapes`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict

import torch

from benchmarks import prediction, shapes, training
from benchmarks.measure import Workload, environment, measure, peak_memory, table
from benchmarks.measured_model import SIZES, Settings, measured_model, model_of
from benchmarks.synthetic import LIKE, SHAPES
from finetune.runtime.launch import make_accelerator
from finetune.runtime.memory import MMAP_THRESHOLD, TRIM_THRESHOLD, malloc_options
from finetune.types import UserError

WORKLOADS = {
    "train": training.workloads_of,
    "predict": prediction.workloads_of,
    "onnx": prediction.exported_workloads,
}
"""The phases that measure a task on texts."""


def memory_returned() -> contextlib.AbstractContextManager[None]:
    """Context in which freed blocks of 64 KiB and more are returned at once, which is slow.

    By default glibc keeps blocks of up to 32 MiB, which hides the memory that a call needs again.
    """
    return malloc_options(
        {MMAP_THRESHOLD: 2**16, TRIM_THRESHOLD: 2**17},
        {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26},
    )


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    phases = (*WORKLOADS, "pretrain", "shapes")
    made.add_argument("phases", nargs="+", choices=phases, metavar="PHASE")
    made.add_argument("--run", help="trained run to measure in the phase onnx, instead of --model")
    made.add_argument("--model", default="minilm", help="encoder (%(default)s)")
    made.add_argument("--shape", choices=SHAPES, help="random weights of this shape, no download")
    made.add_argument("--task", choices=LIKE, default="classify", help="task (%(default)s)")
    made.add_argument("--data", default="", help="texts to use instead of random ones")
    made.add_argument("--columns", nargs="+", default=(), help="columns of --data: ROLE=COLUMN …")
    made.add_argument("--size", choices=SIZES, help="amount of work; default: by the device")
    made.add_argument("--batch-size", type=_positive, help="examples per training step")
    made.add_argument("--rounds", type=_positive, help="repetitions of each variant")
    made.add_argument("--threads", type=_positive, help="threads of torch")
    made.add_argument("--variants", nargs="+", help="only the variants of these names")
    made.add_argument("--json", action="store_true", help="print JSON objects, no tables")
    return made


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def workloads_of(phases: Sequence[str], settings: Settings) -> Iterator[Workload]:
    """Yield the workloads of the phases in the given order."""
    with ExitStack() as stack:
        if settings.run is not None:
            yield from prediction.exported_run(settings)
            return
        if "shapes" in phases:
            yield from shapes.workloads_of(settings)
            return
        model, measured = stack.enter_context(model_of(settings)), None
        for phase in phases:
            if phase == "pretrain":
                yield training.pretraining_workload(model, settings)
                continue
            measured = measured or stack.enter_context(measured_model(settings, model))
            yield from WORKLOADS[phase](measured)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the phases; print a table for each workload, or a JSON object on one line."""
    options = vars(parser().parse_args(arguments))
    phases, as_json = options.pop("phases"), options.pop("json")
    threads, before = options.pop("threads"), torch.get_num_threads()
    names = options.pop("variants")
    device = make_accelerator().device
    settings = Settings.of(device, **options)
    torch.set_num_threads(threads or before)
    machine = environment(device)
    try:
        if settings.run is not None and phases != ["onnx"]:
            raise UserError("--run applies to the phase onnx alone: leave the others out.")
        for workload in workloads_of(phases, settings):
            variants = [v for v in workload.variants if names is None or v.name in names]
            if not variants:
                known = ", ".join(variant.name for variant in workload.variants)
                raise UserError(f"--variants {' '.join(names)}: {workload.phase} has {known}.")
            workload = workload._replace(variants=variants)
            print(f"{workload.phase}: {workload.name}: {len(variants)} variants", file=sys.stderr)
            variants[0].largest_batch()  # the first call fills shared caches
            with memory_returned():  # memory first, which also warms up
                peaks = [peak_memory(variant.largest_batch, device) for variant in variants]
            rows = measure(workload, settings.size.rounds, peaks)
            if as_json:
                print(json.dumps({"rows": list(map(asdict, rows)), "environment": machine}))
            else:
                print(table(rows), flush=True)
    except UserError as error:
        parser().error(str(error))
    finally:
        torch.set_num_threads(before)
    if not as_json:
        print("; ".join(f"{name}: {value}" for name, value in machine.items()))


if __name__ == "__main__":
    main()
