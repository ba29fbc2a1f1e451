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
from benchmarks.measure import Case, environment, measure, peak_memory, table
from benchmarks.subject import SIZES, Settings, model_of, subject_of
from benchmarks.synthetic import LIKE, SHAPES
from finetune.runtime.launch import make_accelerator
from finetune.runtime.memory import MMAP_THRESHOLD, TRIM_THRESHOLD, malloc_options
from finetune.types import UserError

CASES = {
    "train": training.cases_of,
    "predict": prediction.cases_of,
    "onnx": prediction.exported_cases,
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
    made.add_argument("phases", nargs="+", choices=(*CASES, "pretrain", "shapes"), metavar="PHASE")
    made.add_argument("--run", help="trained run to measure in the phase onnx, instead of --model")
    made.add_argument("--model", default="minilm", help="encoder (%(default)s)")
    made.add_argument("--shape", choices=SHAPES, help="random weights of this shape, no download")
    made.add_argument("--task", choices=LIKE, default="classify", help="task (%(default)s)")
    made.add_argument("--data", default="", help="texts to use instead of random ones")
    made.add_argument("--columns", nargs="+", default=(), help="columns of --data: ROLE=COLUMN …")
    made.add_argument("--size", choices=SIZES, help="amount of work; default: by the device")
    made.add_argument("--batch-size", type=_positive, help="examples per training step")
    made.add_argument("--rounds", type=_positive, help="turns of each arm")
    made.add_argument("--threads", type=_positive, help="threads of torch")
    made.add_argument("--json", action="store_true", help="print one JSON object, no tables")
    return made


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def cases_of(phases: Sequence[str], settings: Settings) -> Iterator[Case]:
    """Yield the cases of the phases in the given order."""
    with ExitStack() as stack:
        if settings.run is not None:
            yield from prediction.exported_run(settings)
            return
        if "shapes" in phases:
            yield from shapes.cases_of(settings)
            return
        model, subject = stack.enter_context(model_of(settings)), None
        for phase in phases:
            if phase == "pretrain":
                yield training.pretraining_case(model, settings)
                continue
            subject = subject or stack.enter_context(subject_of(settings, model))
            yield from CASES[phase](subject)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the phases; print a table for each case, or one JSON object."""
    options = vars(parser().parse_args(arguments))
    phases, as_json = options.pop("phases"), options.pop("json")
    threads, before = options.pop("threads"), torch.get_num_threads()
    device = make_accelerator().device
    settings = Settings.of(device, **options)
    torch.set_num_threads(threads or before)
    rows = []
    try:
        if settings.run is not None and phases != ["onnx"]:
            raise UserError("--run applies to the phase onnx alone: leave the others out.")
        for case in cases_of(phases, settings):
            print(f"{case.phase}: {case.name}: {len(case.arms)} arms", file=sys.stderr)
            case.arms[0].heaviest()  # the first call fills shared caches
            with memory_returned():  # memory first, which also warms up
                peaks = [peak_memory(arm.heaviest, device) for arm in case.arms]
            measured = measure(case, settings.size.rounds, peaks)
            rows += measured
            if not as_json:
                print(table(measured))
        machine = environment(device)
    except UserError as error:
        parser().error(str(error))
    finally:
        torch.set_num_threads(before)
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "environment": machine}))
    else:
        print("; ".join(f"{name}: {value}" for name, value in machine.items()))


if __name__ == "__main__":
    main()
