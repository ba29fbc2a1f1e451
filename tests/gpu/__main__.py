"""Test and measure the paths of a GPU, and write the table for docs/performance.md.

    python -m tests.gpu OUTPUT                 # about six minutes on one CUDA device
    python -m tests.gpu OUTPUT --device cpu    # a rehearsal, with the smallest work

``OUTPUT/table.md`` has the table, and one file beside it the output of each part. A part that fails
or takes too long is named in the table, and the others run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import small_data
from tests.tiny import save_tiny_checkpoint

ROOT = Path(__file__).parents[2]
TESTS = ("gpu", "models/test_attention.py", "models/test_deberta.py")
"""The tests that need a device."""
BENCH = ["--shape", "roberta-base", "--task", "nli", "--json"]
SMALL = ["--shape", "minilm", "--size", "small", "--json"]
SIDES = {
    "trainer-best": "Trainer at its best",
    "trainer-dynamic-fp32": "Trainer, dynamic padding",
    "pipeline-default": "pipeline",
    "pipeline-batch32": "pipeline, batch 32",
}


class Parts:
    """Runs commands, and collects the rows of the table."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.rows: list[str] = []

    def add(self, *cells: str) -> None:
        """Add a row, and write the table."""
        self.rows.append(f"| {' | '.join(cells)} |")
        head = "| what | value |\n| --- | --- |\n"
        (self.output / "table.md").write_text(head + "\n".join(self.rows) + "\n", encoding="utf-8")

    def run(self, name: str, words: list[str], seconds: int, **variables: str) -> str | None:
        """Run a Python command, and return what it prints; None if it fails, which is a row."""
        print(f"{time.strftime('%H:%M:%S')} {name}: {' '.join(words)}", flush=True)
        try:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=ROOT,
                env={**os.environ, **variables},
                text=True,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.add(name, f"FAILED: more than {seconds} s")
            return None
        (self.output / f"{name}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            self.add(name, f"FAILED: {''.join(last):.200}")
            return None
        return done.stdout


def measured(text: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a benchmark's JSON: speed and memory of each arm."""
    for row in json.loads(text)["rows"]:
        memory = row["peak_memory_bytes"]
        value = f"{row['examples_per_second']:,.0f} examples/s"
        value += "" if memory is None else f", {memory / 2**30:.2f} GiB"
        if row["arm"] in SIDES and row["ratio"] is not None:
            value += f"; finetune is {row['ratio']:.2f}x"
        arm = SIDES.get(row["arm"], row["arm"])
        yield f"{row['phase']}, {arm} ({row['precision']})", value


def two_processes(parts: Parts, device: str) -> None:
    """Train a tiny model in one process and in two, which share the device if there is one."""
    with tempfile.TemporaryDirectory() as workdir:
        model = save_tiny_checkpoint(Path(workdir) / "model", "bert", dropout=0.1)
        data = small_data.sentiment(Path(workdir) / "data")
        words = ["--model", str(model), "--data", str(data), "--steps", "20", "--eval-every", "10"]
        words += ["--max-length", "48", "--lr", "1e-3", "--precision", "fp32"]
        losses: dict[str, list[float]] = {}
        for name, launch in (
            ("one process", []),
            ("two processes", ["-m", "torch.distributed.run", "--nproc_per_node", "2"]),
        ):
            out = Path(workdir) / name.replace(" ", "-")
            entry = ["-m", "tests.gpu.launched", device, "classify", *words, "--out", str(out)]
            if parts.run(name, [*launch, *entry], 180) is None:
                return
            lines = (out / "log.jsonl").read_text(encoding="utf-8").splitlines()
            losses[name] = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
        one, two = losses.values()
        apart = max(abs(a - b) for a, b in zip(one, two, strict=True))
        parts.add("DDP: losses of one and of two processes, largest difference", f"{apart:.1e}")


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=main.__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    asked: Any = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    on_gpu, begin = asked.device == "cuda", time.monotonic()
    parts = Parts(asked.output)
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "gpu"]
    if on_gpu and (text := parts.run("tests", [*tests, *(f"tests/{n}" for n in TESTS)], 240)):
        parts.add("tests of the GPU's paths", text.strip().splitlines()[-1])
    probe = ["-m", "tests.gpu.probe", *([] if on_gpu else ["--device", "cpu"])]
    for line in (parts.run("probe", probe, 180) or "").splitlines():
        if line.startswith("| ") and "---" not in line:
            parts.add(*(cell.strip() for cell in line.strip("|").split("|")))
    two_processes(parts, asked.device)
    for size in ("32", "128"):
        phases = ["train", "predict"] if size == "32" else ["train"]
        more = ["--rounds", "3", "--batch-size", size]
        words = ["-m", "benchmarks", *phases, *([*BENCH, *more] if on_gpu else SMALL)]
        if text := parts.run(f"benchmarks {size}", words, 300):
            for what, value in measured(text):
                parts.add(f"batch {size}, {what}", value)
    parts.add("minutes of all parts", f"{(time.monotonic() - begin) / 60:.1f}")
    print((asked.output / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
