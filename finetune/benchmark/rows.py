"""What is measured of an arm, and how it is shown."""

from __future__ import annotations

import dataclasses
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers


@dataclass(frozen=True, slots=True)
class Work:
    """What one turn of an arm does: examples, real tokens (padding does not count), and the
    floating point operations of the encoder on them (None where an arm has no encoder)."""

    examples: float
    tokens: float
    operations: float | None = None

    def times(self, factor: float) -> Work:
        """The same kind of work, ``factor`` times as much of it."""
        scaled = None if self.operations is None else self.operations * factor
        return Work(self.examples * factor, self.tokens * factor, scaled)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to do the work of a case. ``turn`` does it once and returns the seconds it took,
    without those of its preparation; ``heaviest`` does the part that needs most memory."""

    name: str
    precision: str
    work: Work
    turn: Callable[[], float]
    heaviest: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    """The measurement of one arm, over all rounds.

    ``examples_per_second`` is the median, ``lowest`` and ``highest`` are the spread.
    ``tokens_per_second`` are real tokens (of the span head: words). ``ratio`` is how many times as
    many of them as this arm ``finetune`` does in a second: the median over the rounds.
    ``peak_share`` is the rate of the encoder's operations on real tokens over the measured rate of
    matrix products in the arm's precision; None where there is no encoder. ``peak_memory_bytes`` is
    the highest that memory grows to in a turn beyond what is there before (training: the weights):
    on a GPU what torch allocates, else the resident set; None where that cannot be taken. ``spans``
    are candidates.
    """

    phase: str
    arm: str
    case: str
    precision: str
    examples_per_second: float
    lowest: float
    highest: float
    tokens_per_second: float
    ratio: float | None
    peak_share: float | None
    peak_memory_bytes: int | None
    milliseconds: float
    representation: str | None = None
    spans: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Arms that are compared: ``name`` says on what, ``representation`` and ``spans`` are those of
    a span head."""

    phase: str
    name: str
    arms: tuple[Arm, ...]
    representation: str | None = None
    spans: int | None = None


def measured(
    case: Case, rounds: int, memory: Sequence[int | None], peaks: Mapping[str, float]
) -> list[Row]:
    """One row for each arm; the arms take turns. ``peaks`` are operations per second by
    precision, ``memory`` the peak of each arm.

    Every other round goes backwards: an arm is slower behind one that leaves much memory behind.
    """
    rates: list[list[float]] = [[] for _ in case.arms]
    for number in range(rounds):
        for arm, column in list(zip(case.arms, rates, strict=True))[:: -1 if number % 2 else 1]:
            column.append(arm.work.tokens / arm.turn())
    ours = next((r for a, r in zip(case.arms, rates, strict=True) if a.name == "finetune"), None)
    return [
        _row(case, arm, found, ours, most, peaks)
        for arm, found, most in zip(case.arms, rates, memory, strict=True)
    ]


def _row(
    case: Case,
    arm: Arm,
    rates: Sequence[float],  # tokens per second
    ours: Sequence[float] | None,
    memory: int | None,
    peaks: Mapping[str, float],
) -> Row:
    rate, work = statistics.median(rates), arm.work
    examples = work.examples / work.tokens
    ratio = share = None
    if ours is not None:
        ratio = statistics.median(a / b for a, b in zip(ours, rates, strict=True))
    if work.operations is not None:
        share = rate / work.tokens * work.operations / peaks[arm.precision]
    return Row(
        phase=case.phase,
        arm=arm.name,
        case=case.name,
        precision=arm.precision,
        examples_per_second=rate * examples,
        lowest=min(rates) * examples,
        highest=max(rates) * examples,
        tokens_per_second=rate,
        ratio=ratio,
        peak_share=share,
        peak_memory_bytes=memory,
        milliseconds=1e3 * work.tokens / rate,
        representation=case.representation,
        spans=case.spans,
    )


COLUMNS = (
    "arm", "precision", "examples/s", "spread", "tokens/s", "finetune is", "of peak", "MiB",
    "ms",
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """The arms of one case as a Markdown table under its name."""
    first = rows[0]
    title = f"{first.phase}: {first.case}"
    if first.representation is not None:
        title += f", {first.representation}, {first.spans:,} spans"
    rule = "|---|---|" + "--:|" * (len(COLUMNS) - 2)
    return "\n".join([title, "", _line(COLUMNS), rule, *(_line(_cells(row)) for row in rows), ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row) -> list[str]:
    memory = row.peak_memory_bytes
    return [
        row.arm,
        row.precision,
        _short(row.examples_per_second),
        f"{_short(row.lowest)} to {_short(row.highest)}",
        f"{row.tokens_per_second:,.0f}",
        "" if row.ratio is None else f"{row.ratio:.2f}x",
        "" if row.peak_share is None else f"{row.peak_share:.0%}",
        "" if memory is None else f"{memory / 2**20:,.1f}",
        f"{row.milliseconds:,.1f}",
    ]


def _short(rate: float) -> str:
    """At least three digits that count."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The rows as plain values."""
    return [dataclasses.asdict(row) for row in rows]


def environment(device: torch.device, peaks: Mapping[str, float]) -> dict[str, object]:
    """Where the numbers were taken; ``peaks`` are operations per second by precision."""
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
        "peak_operations_per_second": dict(peaks),
    }
