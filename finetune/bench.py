"""Measurements of what the toolkit computes in its own way, against the plain way to compute it.

``python -m finetune.bench`` times forward and backward of the span scorers on the CPU and takes
their peak memory. Three arms share weights and input: the naive form, which gathers a vector for
each candidate and puts it through the network; ours, which factorises the first layer; and ours
with the hidden activations recomputed in the backward pass. Their scores are compared before any
of them is timed. The arms take turns in one process and the fastest of all rounds counts, so that
a busy machine slows all of them or none.

Peak memory is what the resident set grows by, at its highest, in one forward and backward pass.
It needs Linux with glibc, whose allocator is told to give freed tensors back at once meanwhile.
Further phases may join ``span`` here.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import itertools
import json
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from finetune.batching import pack
from finetune.heads import span_scoring
from finetune.heads.span_scoring import BiaffineScorer, FactorisedScorer, SpanLayout
from finetune.types import Batch, Encoding

NUM_CLASSES = 6
REPRESENTATIONS = ("boundary", "attention", "biaffine")
DIRECT, RECOMPUTED = 2**60, 0
"""Budgets in bytes with which nothing, and everything, is recomputed."""

TOLERANCE = 1e-3
"""Largest legal difference of two scores; the naive mean is of prefix sums, which cancel."""

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Numbers of two settings of glibc's ``mallopt``."""

CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of sequences of ``lengths`` words, vectors of ``width``, spans of ``max_width``."""

    name: str
    lengths: tuple[int, ...]
    max_width: int
    width: int


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to the scores [S, C], with the bytes of activations that it may keep."""

    name: str
    scores: Callable[[], Tensor]
    budget: int

    def run(self) -> Tensor:
        """Go forward and backward; returns the scores [S, C]."""
        with activation_budget(self.budget):
            scores = self.scores()
            scores.sum().backward()
        return scores.detach()


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; ``peak_memory_bytes`` is None where it cannot be taken."""

    phase: str
    arm: str
    case: str
    representation: str
    spans: int
    milliseconds: float
    peak_memory_bytes: int | None


def cases(which: str) -> list[Case]:
    """The cases called ``all``, or the one called ``small``, which only shows that all works."""
    if which == "small":
        return [Case("2 tiny w4 d16", (3, 7), 4, 16)]
    mixed = tuple(map(random.Random(0).randint, [4] * 32, [40] * 32))
    batches = {"4x128": (128,) * 4, "1x512": (512,)}
    found = [
        Case(f"{name} w{max_width} d{width}", lengths, max_width, width)
        for name, lengths in batches.items()
        for max_width in (12, 20)
        for width in (384, 768)
    ]
    return [*found, Case("32 mixed 4-40 w12 d384", mixed, 12, 384)]


def naive_scores(scorer: FactorisedScorer, words: Tensor, layout: SpanLayout) -> Tensor:
    """Scores [S, C] from vectors of words [W, H], with a vector [2h + H] of each candidate."""
    starts = scorer.start_network(words)[layout.start]  # [S, h]
    ends = scorer.end_network(words)[layout.start + layout.width - 1]
    content = _content(scorer, words, layout)  # [S, H]
    weight = torch.cat([scorer.start.weight, scorer.end.weight, scorer.content.weight], 1)
    inner = F.linear(torch.cat([starts, ends, content], 1), weight, scorer.start.bias)  # [S, h]
    return scorer.output(F.gelu(inner + scorer.width(layout.width - 1)))


def _content(scorer: FactorisedScorer, words: Tensor, layout: SpanLayout) -> Tensor:
    """Mean or attended vectors [S, H] of the candidates' words; L words of each are gathered."""
    start, width = layout.start, layout.width
    if scorer.attention is None:  # the cheapest gather
        sums = F.pad(words.cumsum(0), (0, 0, 1, 0))  # [W + 1, H]
        return (sums[start + width] - sums[start]) / width[:, None]
    offsets = torch.arange(layout.widest)
    windows = words[(start[:, None] + offsets).clamp(max=len(words) - 1)]  # [S, L, H]
    outside = offsets >= width[:, None]
    shares = scorer.attention(windows)[..., 0].masked_fill(outside, -torch.inf).softmax(-1)
    return (shares[:, None] @ windows)[:, 0]


def naive_biaffine_scores(scorer: BiaffineScorer, words: Tensor, layout: SpanLayout) -> Tensor:
    """Scores [S, C] from vectors of words [W, H], with a product U s_i [C, h] of each candidate."""
    starts = scorer.start_network(words)[layout.start]  # [S, h]
    ends = scorer.end_network(words)[layout.start + layout.width - 1]
    left = scorer.product(starts).unflatten(1, (NUM_CLASSES, -1))  # [S, C, h]
    return torch.einsum("sch,sh->sc", left, ends) + scorer.start(starts) + scorer.end(ends)


def arms_of(case: Case, representation: str, words: Tensor, layout: SpanLayout) -> list[Arm]:
    """The arms of one representation over the same vectors [W, H]; the naive one comes first.

    The biaffine scorer has no [S, h] of activations that it could recompute.
    """
    if representation == "biaffine":
        biaffine = BiaffineScorer(case.width, span_scoring.BIAFFINE_WIDTH, NUM_CLASSES, 0.0)
        return [
            Arm("naive", lambda: naive_biaffine_scores(biaffine, words, layout), DIRECT),
            Arm("finetune", lambda: biaffine(words, layout), DIRECT),
        ]
    sizes = (case.width, case.width, NUM_CLASSES, case.max_width)
    scorer = FactorisedScorer(representation, *sizes, dropout=0.0)
    return [
        Arm("naive", lambda: naive_scores(scorer, words, layout), DIRECT),
        Arm("finetune", lambda: scorer(words, layout), DIRECT),
        Arm("finetune-recomputed", lambda: scorer(words, layout), RECOMPUTED),
    ]


def prepared(case: Case, representation: str) -> tuple[list[Arm], SpanLayout]:
    """The arms of a case; raises AssertionError where their scores differ."""
    torch.manual_seed(0)
    layout = SpanLayout(_batch(case.lengths), case.max_width)
    words = torch.randn(sum(case.lengths), case.width, requires_grad=True)
    arms = arms_of(case, representation, words, layout)
    compare(arms)
    return arms, layout


def peaks(case: Case, representation: str) -> list[int | None]:
    """The peak memory of each arm, the smaller of two; within ``freed_memory_returned``."""
    arms, _ = prepared(case, representation)
    return [min((_peak(arm), _peak(arm)), key=lambda found: found or 0) for arm in arms]


def measured(
    case: Case, representation: str, rounds: int, memory: Sequence[int | None]
) -> list[Row]:
    """One row for each arm, whose peak memory is known."""
    arms, layout = prepared(case, representation)
    times = [[_seconds(arm) for arm in arms] for _ in range(rounds)]  # arms take turns
    return [
        Row("span", arm.name, case.name, representation, layout.size, 1e3 * min(seconds), peak)
        for arm, seconds, peak in zip(arms, zip(*times, strict=True), memory, strict=True)
    ]


def _batch(lengths: Sequence[int]) -> Batch:
    """Sequences of so many words, one piece each, between two special tokens."""
    ids_and_starts = [([0] * (length + 2), [*range(1, length + 2)]) for length in lengths]
    return pack([Encoding(n, ids, None, starts) for n, (ids, starts) in enumerate(ids_and_starts)])


def compare(arms: Sequence[Arm]) -> None:
    """Raise AssertionError unless all arms have the scores of the first; also warms them up."""
    expected = arms[0].run()
    for arm in arms[1:]:
        say = f"{arm.name} differs from {arms[0].name}: ".__add__
        torch.testing.assert_close(arm.run(), expected, rtol=0, atol=TOLERANCE, msg=say)


@contextlib.contextmanager
def activation_budget(size: int) -> Iterator[None]:
    """Let the scorers keep ``size`` bytes of activations meanwhile."""
    before = span_scoring.ACTIVATION_BUDGET
    span_scoring.ACTIVATION_BUDGET = size
    try:
        yield
    finally:
        span_scoring.ACTIVATION_BUDGET = before


def _seconds(arm: Arm) -> float:
    begin = time.perf_counter()
    arm.run()
    return time.perf_counter() - begin


def _peak(arm: Arm) -> int | None:
    """Bytes that forward and backward need, at their highest, beyond what was resident before."""
    if not _shows_memory():
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5", encoding="ascii")  # the peak starts anew
    before = _resident("VmRSS")
    arm.run()
    return max(0, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    """A size of this process in bytes, by its name in /proc/self/status, which counts KiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _shows_memory() -> bool:
    return CLEAR.exists() and platform.libc_ver()[0] == "glibc"  # Linux; not in all containers


@contextlib.contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Have freed blocks of 64 KiB and more go back to the system at once, where that can be had.

    Else glibc learns to keep blocks of up to 32 MiB, which hides what is needed again; it is left
    that way, as what it had learned cannot be asked for.
    """
    if not _shows_memory():
        yield
        return
    glibc = ctypes.CDLL(None)
    glibc.mallopt(MMAP_THRESHOLD, 64 * 2**10)
    glibc.mallopt(TRIM_THRESHOLD, 128 * 2**10)
    glibc.malloc_trim(0)
    try:
        yield
    finally:
        glibc.mallopt(MMAP_THRESHOLD, 32 * 2**20)
        glibc.mallopt(TRIM_THRESHOLD, 64 * 2**20)


def environment() -> dict[str, str | int]:
    """Where the numbers were taken."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(models, platform.processor() or platform.machine())
    return dict(torch=torch.__version__, processor=processor, threads=torch.get_num_threads())


HEADER = """\
| case | representation | spans | naive ms | finetune ms | recomputed ms | naive / finetune \
| naive MiB | finetune MiB | recomputed MiB |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"""


def table_line(rows: Sequence[Row]) -> str:
    """The arms of one case and representation as a line of the Markdown table."""
    by_arm = {row.arm: row for row in rows}
    arms = [by_arm.get(arm) for arm in ("naive", "finetune", "finetune-recomputed")]
    times = ["" if row is None else f"{row.milliseconds:.1f}" for row in arms]
    peaks = [None if row is None else row.peak_memory_bytes for row in arms]
    memory = ["" if peak is None else f"{peak / 2**20:.1f}" for peak in peaks]
    faster = f"{rows[0].milliseconds / rows[1].milliseconds:.1f}x"
    cells = [rows[0].case, rows[0].representation, str(rows[0].spans), *times, faster, *memory]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases and print a table, or one JSON object."""
    options = (parser := _parser()).parse_args(arguments)
    for name, number in (("--rounds", options.rounds), ("--threads", options.threads)):
        if number < 1:
            parser.error(f"{name} {number} is less than 1")
    torch.set_num_threads(options.threads)
    found, show = [], (lambda *_, **__: None) if options.json else print
    show(HEADER, flush=True)
    every = list(itertools.product(cases(options.cases), REPRESENTATIONS))
    with freed_memory_returned():  # all before any timing, which leaves holes in the heap
        memory = [peaks(*each) for each in every]
    for each, known in zip(every, memory, strict=True):
        rows = measured(*each, options.rounds, known)
        found += rows
        show(table_line(rows), flush=True)
    if options.json:
        rows = [dataclasses.asdict(row) for row in found]
        print(json.dumps({"rows": rows, "environment": environment()}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m finetune.bench", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="the fastest round counts")
    parser.add_argument("--threads", type=int, default=1, help="threads of one operation")
    parser.add_argument("--cases", choices=("small", "all"), default="all")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    return parser


if __name__ == "__main__":
    main()
