"""Test and measure the paths of a GPU, and write the table for docs/performance.md.

    python -m tests.gpu OUTPUT                          # all parts, on one CUDA device
    python -m tests.gpu OUTPUT --parts tests probe      # some of them
    python -m tests.gpu OUTPUT --seconds 540            # those that the time allows
    python -m tests.gpu OUTPUT --device cpu             # a rehearsal, with the smallest work

``OUTPUT/table.md`` has the table, which grows with each result, and ``OUTPUT/log.txt`` all that the
parts print. A part that fails or takes too long is named in the table, and the others run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests import small_data
from tests.tiny import save_tiny_checkpoint

ROOT = Path(__file__).parents[2]
TESTS = ("gpu", "models/test_attention.py", "models/test_deberta.py")
"""The tests that need a device."""
SMALL = ["--shape", "minilm", "--size", "small", "--batch-size", "4"]
"""The work of a rehearsal, in place of that of a benchmark."""
BENCHMARKS = {
    "batch-32": ["train", "predict", "--shape", "roberta-base", "--task", "nli"],
    "batch-128": ["train", "--shape", "roberta-base", "--task", "nli", "--batch-size", "128"],
    "long-texts": ["train", "predict", "--shape", "modernbert-base", "--task", "reviews"],
    "compiled": ["train", "--shape", "roberta-base", "--task", "nli"],
}
"""The workload of each benchmark."""
VARIANTS = [
    "finetune",
    "finetune-without-graphs",
    "finetune-fp32",
    "trainer-best",
    "trainer-dynamic-fp32",
    "pipeline-batch32",
    "pipeline-batch32-bf16",
]
"""Variants of all benchmarks but ``compiled``."""
FEWEST_SECONDS = 30
"""With less time a part is not begun."""
COMPILED = ["finetune", "trainer-best", "trainer-compiled"]
"""Variants of the benchmark ``compiled``: to compile takes minutes."""
NAMES = {
    "trainer-best": "Trainer at its best",
    "trainer-compiled": "Trainer at its best, compiled",
    "trainer-dynamic-fp32": "Trainer, dynamic padding",
    "pipeline-batch32": "pipeline, batch 32",
    "pipeline-batch32-bf16": "pipeline, batch 32",
}


TWO_PROCESSES = ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
"""They share the device if there is one."""


class Parts:
    """Runs commands for some seconds in all, and collects the rows of the table."""

    def __init__(self, output: Path, seconds: float) -> None:
        self.output, self.end = output, time.monotonic() + seconds
        self.rows: list[str] = []

    @property
    def seconds_left(self) -> float:
        """The seconds that are left for all parts."""
        return self.end - time.monotonic()

    def add(self, *cells: str) -> None:
        """Add a row, and write the table."""
        self.rows.append(f"| {' | '.join(cells)} |")
        head = "| what | value |\n| --- | --- |\n"
        (self.output / "table.md").write_text(head + "\n".join(self.rows) + "\n", encoding="utf-8")

    def run(self, name: str, words: list[str], seconds: float) -> tuple[bool, str]:
        """Run a Python command; return whether it succeeds, and what it prints.

        A failure is a row.
        """
        print(f"{time.strftime('%H:%M:%S')} {name}: {' '.join(words)}", flush=True)
        seconds = max(1.0, min(seconds, self.seconds_left))
        with (self.output / "log.txt").open("a+", encoding="utf-8", errors="replace") as log:
            log.write(f"\n== {name}: {' '.join(words)}\n")
            log.flush()
            begin = log.tell()
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                failure = f"code {code}" if (code := process.wait(seconds)) else ""
            except subprocess.TimeoutExpired:
                failure = f"more than {seconds:.0f} s"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.seek(begin)
            text = log.read()
        if failure:
            lines = [line for line in text.splitlines() if "rror" in line] or [""]
            self.add(name, f"FAILED: {failure} {lines[-1].strip():.300}")
        return not failure, text


def measured(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of a benchmark's JSON: speed and memory of each variant."""
    for row in result["rows"]:
        memory, variant = row["peak_memory_bytes"], row["variant"]
        value = f"{row['examples_per_second']:,.0f} examples/s"
        value += "" if memory is None else f", {memory / 2**30:.2f} GiB"
        if variant in NAMES:
            value += f"; finetune is {row['ratio']:.2f}x"
        yield f"{row['phase']}, {NAMES.get(variant, variant)} ({row['precision']})", value


def run_tests(parts: Parts, on_gpu: bool) -> None:
    """Run the tests that need a device; without one they are skipped."""
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "gpu"]
    tests += ["--durations", "10"]
    succeeded, text = parts.run("tests", [*tests, *(f"tests/{name}" for name in TESTS)], 240)
    lines = text.strip().splitlines()
    for line in lines:
        if not succeeded and line.startswith(("FAILED ", "ERROR ")):
            parts.add("test", f"{line:.300}")
    parts.add("tests of the GPU's paths", *lines[-1:])


def probe(parts: Parts, on_gpu: bool) -> None:
    """Measure attention and steps."""
    words = ["-m", "tests.gpu.probe", *([] if on_gpu else ["--device", "cpu"])]
    for line in parts.run("probe", words, 180)[1].splitlines():
        if line.startswith("| ") and "---" not in line:
            parts.add(*(cell.strip() for cell in line.strip("|").split("|")))


def benchmark(parts: Parts, on_gpu: bool, name: str) -> None:
    """Measure a workload beside its alternatives."""
    words = [*BENCHMARKS[name], *(["--rounds", "3"] if on_gpu else SMALL)]
    words += ["--variants", *(COMPILED if name == "compiled" else VARIANTS)]
    for line in parts.run(name, ["-m", "benchmarks", *words, "--json"], 300)[1].splitlines():
        if line.startswith('{"rows"'):
            for what, value in measured(json.loads(line)):
                parts.add(f"{name}, {what}", value)


def launches(parts: Parts, on_gpu: bool) -> None:
    """Train a tiny model in one process and in two, and in one that is killed and continues."""
    device = "cuda" if on_gpu else "cpu"
    with tempfile.TemporaryDirectory() as workdir:
        data = small_data.sentiment(Path(workdir) / "data")
        words = ["--data", str(data), "--steps", "300", "--eval-every", "50", "--max-length", "48"]
        losses: dict[str, list[float]] = {}
        for name, launch, precision, dropout in (
            ("one process", [], "fp32", 0.0),
            ("two processes", TWO_PROCESSES, "fp32", 0.0),  # which draw other masks
            ("whole", [], "auto", 0.1),
            ("killed", [], "auto", 0.1),
        ):
            out = Path(workdir) / name.replace(" ", "-")
            model = save_tiny_checkpoint(
                Path(workdir) / f"model-{dropout}", "bert", dropout=dropout
            )
            entry = [*launch, "-m", "tests.gpu.launched", device, "classify", *words]
            entry += ["--model", str(model), "--precision", precision, "--out", str(out)]
            if name == "killed":
                killed_after_a_checkpoint(out, [sys.executable, *entry])
                entry.append("--resume")
            if not parts.run(f"launches, {name}", entry, 120)[0]:
                return
            lines = (out / "log.jsonl").read_text(encoding="utf-8").splitlines()
            losses[name] = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
    for first, second in (("one process", "two processes"), ("whole", "killed")):
        pairs = zip(losses[first], losses[second], strict=True)
        apart = max(abs(one - other) for one, other in pairs)
        parts.add(f"losses of the runs {first} and {second}, largest difference", f"{apart:.1e}")


def killed_after_a_checkpoint(out: Path, command: list[str]) -> None:
    """Start a run, and kill it by SIGKILL when it has a checkpoint."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (out / "last").exists():
            time.sleep(0.01)
        process.kill()


PARTS: dict[str, Callable[[Parts, bool], None]] = {
    "tests": run_tests,
    "probe": probe,
    **{name: partial(benchmark, name=name) for name in ("batch-32", "batch-128")},
    "launches": launches,
    **{name: partial(benchmark, name=name) for name in ("long-texts", "compiled")},
}
"""All parts; the first ones matter most."""


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=main.__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all parts together")
    options: Any = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    parts = Parts(options.output, options.seconds)
    for name in options.parts:
        if parts.seconds_left < FEWEST_SECONDS:
            parts.add(name, "not run: no time is left")
            continue
        begin = time.monotonic()
        PARTS[name](parts, options.device == "cuda")
        parts.add(f"{name}: seconds", f"{time.monotonic() - begin:.0f}")
    print((options.output / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
