"""``log.jsonl``: how a run went, a line per stretch of training and per evaluation."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from finetune.training import checkpoint
from finetune.types import UserError


class Diverged(UserError):
    """The loss is no number any more."""


class RunLog:
    """``log.jsonl``: a line per stretch of training and per evaluation."""

    def __init__(self, path: Path, accelerator: Any, step: int) -> None:
        self.path, self.accelerator = path, accelerator
        self.losses: list[torch.Tensor] = []
        self.norms: list[torch.Tensor] = []
        self.examples, self.begin, self.since = 0, time.monotonic(), step
        if accelerator.is_main_process:
            self._cut(step)

    def _cut(self, step: int) -> None:
        """Drop lines from after the checkpoint that the run continues from, and one that was cut
        when the run was killed."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        checkpoint.write_text(self.path, "".join(line + "\n" for line in kept))

    def add(self, loss: torch.Tensor, norm: torch.Tensor, examples: int) -> None:
        """Note one step's mean loss and gradient norm, without waiting for the device."""
        self.losses.append(loss)
        self.norms.append(norm)
        self.examples += examples

    def flush(self, step: int, total: int, optimizer: torch.optim.Optimizer) -> str:
        """Write the mean since the last line; Diverged if the loss is no number any more."""
        if not self.losses:
            return ""
        loss = float(torch.stack(self.losses).mean())
        norm = float(torch.stack(self.norms).max())
        rate = max(group["lr"] for group in optimizer.param_groups)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise Diverged(
                f"the loss is no longer a number (between steps {self.since + 1} and {step}): "
                "lower --lr, raise --warmup, or write --precision fp32. Anything saved "
                "before stands."
            )
        seconds = time.monotonic() - self.begin
        line = {
            "step": step,
            "loss": round(loss, 6),
            "lr": rate,
            "gradient_norm": round(norm, 4),
            "examples_per_second": round(self.examples / max(seconds, 1e-9), 1),
        }
        self._write(line)
        self.losses, self.norms, self.examples = [], [], 0
        self.begin, self.since = time.monotonic(), step
        return f"loss {loss:.4f}, {line['examples_per_second']} examples/s"

    def evaluation(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Write the metrics of an evaluation."""
        self._write({"step": step, "split": split, **metrics})
        self.begin = time.monotonic()

    def _write(self, line: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.accelerator.log_with:
            values = {n: v for n, v in line.items() if isinstance(v, int | float) and n != "step"}
            self.accelerator.log(values, step=line["step"])
