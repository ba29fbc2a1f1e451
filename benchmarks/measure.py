"""Measure time and memory of variants that take turns, and show the results.

A variant is one way to do the work of a workload. Peak memory on a GPU is the most that torch
allocates, on the CPU the growth of the resident set, which needs Linux with glibc. While it is
measured, glibc returns freed tensors at once; this is slow, so no times are taken then.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers

WARM_STEPS = 3
"""Training steps before those that count: the first ones wait for memory that later ones reuse."""
CLEAR = Path("/proc/self/clear_refs")


class Work(NamedTuple):
    """Work of one repetition of a variant: examples, and tokens without padding."""

    examples: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to do the work of a workload.

    ``repetition`` does the work once and returns its seconds, without preparation.
    ``largest_batch`` does the part that needs most memory. Repetitions add the seconds of each text
    to ``latencies``, if texts are predicted one by one.
    """

    name: str
    precision: str
    work: Work
    repetition: Callable[[], float]
    largest_batch: Callable[[], object]
    latencies: list[float] | None = None


class Workload(NamedTuple):
    """Variants to compare."""

    phase: str
    name: str
    variants: Sequence[Variant]


@dataclass(frozen=True, slots=True)
class Row:
    """The measurement of one variant, over all rounds.

    ``examples_per_second`` is the median, ``lowest`` and ``highest`` are the spread.
    ``tokens_per_second`` are real tokens. ``ratio`` is the speed of the first variant
    (``finetune``, or the first shape) over the speed of this variant: the median over the rounds.
    ``peak_memory_bytes`` is the largest growth of memory in a repetition (in training, beyond the
    weights): on a GPU torch's allocations, else the resident set; None if it cannot be measured.
    ``p50_milliseconds`` and ``p95_milliseconds`` are percentiles of the latencies.
    """

    phase: str
    variant: str
    workload: str
    precision: str
    examples_per_second: float
    lowest: float
    highest: float
    tokens_per_second: float
    ratio: float
    peak_memory_bytes: int | None
    milliseconds: float
    p50_milliseconds: float | None = None
    p95_milliseconds: float | None = None


def measure(workload: Workload, rounds: int, memory: Sequence[int | None]) -> list[Row]:
    """Time the variants of a workload in alternation.

    Every other round is in reverse order: a variant is slower after one that leaves much memory.

    Args:
        workload: the variants.
        rounds: number of repetitions of each variant.
        memory: peak memory of each variant in bytes, None if unknown.

    Returns:
        One row per variant.
    """
    rates = {variant.name: list[float]() for variant in workload.variants}
    for number in range(rounds):
        for variant in workload.variants[:: -1 if number % 2 else 1]:
            rates[variant.name].append(variant.work.tokens / variant.repetition())
    rows = []
    for variant, most in zip(workload.variants, memory, strict=True):
        own = np.array(rates[variant.name])
        rate, examples = float(np.median(own)), variant.work.examples / variant.work.tokens
        latencies = 1e3 * np.percentile(variant.latencies, [50, 95]) if variant.latencies else None
        rows.append(
            Row(
                phase=workload.phase,
                variant=variant.name,
                workload=workload.name,
                precision=variant.precision,
                examples_per_second=rate * examples,
                lowest=float(own.min()) * examples,
                highest=float(own.max()) * examples,
                tokens_per_second=rate,
                ratio=float(np.median(rates[workload.variants[0].name] / own)),
                peak_memory_bytes=most,
                milliseconds=1e3 * variant.work.tokens / rate,
                p50_milliseconds=None if latencies is None else float(latencies[0]),
                p95_milliseconds=None if latencies is None else float(latencies[1]),
            )
        )
    return rows


COLUMNS = ("variant", "precision", "examples/s", "spread", "tokens/s", "first is", "MiB", "ms")


def table(rows: Sequence[Row]) -> str:
    """Return the variants of one workload as a Markdown table under its name."""
    columns = [*COLUMNS, *(["p50 ms", "p95 ms"] if rows[0].p50_milliseconds else [])]
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *map(_cells, rows))]
    lines.insert(1, "|---|---|" + "--:|" * (len(columns) - 2))
    return "\n".join([f"{rows[0].phase}: {rows[0].workload}", "", *lines, ""])


def _cells(row: Row) -> list[str]:
    memory = row.peak_memory_bytes
    return [
        row.variant,
        row.precision,
        _short(row.examples_per_second),
        f"{_short(row.lowest)} to {_short(row.highest)}",
        f"{row.tokens_per_second:,.0f}",
        f"{row.ratio:.2f}x",
        "" if memory is None else f"{memory / 2**20:,.1f}",
        f"{row.milliseconds:,.1f}",
        *(f"{p:,.2f}" for p in (row.p50_milliseconds, row.p95_milliseconds) if p is not None),
    ]


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def environment(device: torch.device) -> dict[str, object]:
    """Return versions and machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(models, platform.processor() or platform.machine())
    if device.type == "cuda":
        processor = f"{torch.cuda.get_device_name(device)}, {processor}"
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": device.type,
        "processor": processor,
        "threads": torch.get_num_threads(),
    }


def now(device: torch.device) -> float:
    """Return the time in seconds after the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a call takes."""
    begin = now(device)
    run()
    return now(device) - begin


def peak_memory(run: Callable[[], object], device: torch.device) -> int | None:
    """Return the bytes that a call adds to memory at its peak; None if they cannot be measured."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or not measures_resident_set():
        run()
        return None
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5", encoding="ascii")  # reset the peak
    before = _resident("VmRSS")
    run()
    return max(0, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measures_resident_set() -> bool:
    """Return whether the system reports the peak of the resident set (Linux, most containers)."""
    return CLEAR.exists() and platform.libc_ver()[0] == "glibc"
