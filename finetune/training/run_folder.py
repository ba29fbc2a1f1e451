"""The folder of a run: its name, its files (written by the main process, each whole) and its log.

A run folder holds ``config.json``, ``log.jsonl``, ``metrics.json``, ``predictions.<split>.jsonl``,
the best model in ``best/`` and the last checkpoint in ``last/``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from finetune.config.tasks import TrainConfig, settings
from finetune.evaluation.predictions import to_row
from finetune.evaluation.subgroups import VOCABULARY_FILE, TrainingVocabulary
from finetune.runtime.launch import on_main_process
from finetune.tasks import save_task
from finetune.tasks.base import Task
from finetune.training import checkpoint
from finetune.training.checkpoint import TrainerState
from finetune.types import Example, Prediction, UserError

RUNS = Path("runs")
"""Parent of the run folders that are chosen without --out."""


def with_run_folder(config: TrainConfig, task: str, name: str | None = None) -> TrainConfig:
    """Return the configuration with ``out`` set to its run folder, the same on every process.

    Without ``config.out`` it is ``name``, by default one of task, model, data and seed. With
    ``config.resume`` it must hold a run, without it must not.
    """
    return replace(config, out=str(on_main_process(lambda: _run_folder(config, task, name))))


def run_name(config: TrainConfig, task: str) -> str:
    """Return the name that runs share if they differ in their seed alone: task, model and data."""
    model = config.init_from or config.model or ""
    return "-".join(_plain_name(text) for text in (task, model, config.data))


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, finished or not."""
    return (folder / "config.json").is_file()


def require_writable(folder: Path) -> None:
    """Raise UserError if a folder cannot be created or written."""
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir():
        raise UserError(f"--out {folder}: {parent} is a file, not a folder: choose another.")
    if not os.access(parent, os.W_OK):
        raise UserError(f"--out {folder}: {parent} cannot be written to: choose another folder.")


def require_empty(folder: Path) -> None:
    """Raise UserError if a new run would overwrite a model in this folder."""
    if any((folder / name).exists() for name in ("best", "last", "best.old", "last.old")):
        raise UserError(
            f"--out {folder} holds a run already: add --resume to continue it, or choose another."
        )


def _run_folder(config: TrainConfig, task: str, name: str | None) -> Path:
    if config.out is not None:
        folder = Path(config.out)
        require_writable(folder)
        if not config.resume:
            require_empty(folder)
        elif not is_run(folder):
            raise UserError(f"--resume: there is no run in {folder} to continue.")
        return folder
    base = RUNS / (name or f"{run_name(config, task)}-seed{config.seed}")
    folders = [base, *(base.with_name(f"{base.name}-{n}") for n in range(2, 10_000))]
    if not config.resume:
        return next(folder for folder in folders if not folder.exists())
    runs = [folder for folder in folders if is_run(folder)]
    if not runs:
        raise UserError(f"--resume: there is no run {base} to continue; name it with --out.")
    return runs[-1]


def _plain_name(text: str) -> str:
    """Return the last part of a name or path, with plain characters only."""
    last = text.rstrip("/").split("=")[-1].split("/")[-1]
    return re.sub(r"[^\w.-]+", "_", last) or "data"


class RunFolder:
    """The files of one run.

    The main process writes while the others wait; if it fails, all processes raise its error.
    """

    def __init__(self, path: Path, accelerator: Any) -> None:
        self.path, self.accelerator = path, accelerator
        self.best, self.last = path / "best", path / "last"
        if accelerator.is_main_process:
            checkpoint.recover_folder(self.best)
            checkpoint.recover_folder(self.last)
        accelerator.wait_for_everyone()

    def write_start(self, task: Task, config: TrainConfig, **facts: Any) -> None:
        """Write the resolved configuration to ``config.json``, before training starts."""
        content = {"task": task.name, **settings(config), **facts}
        self._write("config.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def save_best(self, task: Task, head: Any) -> None:
        """Save model, tokenizer and task file to ``best/``."""

        def write() -> None:
            with checkpoint.replace_folder(self.best) as fresh:
                head.save_pretrained(fresh)
                save_task(task, fresh)

        on_main_process(write)

    def save_last(self, task: Task, head: Any, optimizer: Optimizer, state: TrainerState) -> None:
        """Save the checkpoint to ``last/``; every process adds its random state."""
        random_states = self.path / "random.new"
        random_states.mkdir(parents=True, exist_ok=True)
        checkpoint.save_random_state(random_states, self.accelerator.process_index)
        self.accelerator.wait_for_everyone()

        def write() -> None:
            try:
                with checkpoint.replace_folder(self.last) as fresh:
                    head.save_pretrained(fresh)
                    save_task(task, fresh)
                    checkpoint.save_training_state(fresh, optimizer, state)
                    for file in random_states.iterdir():
                        file.rename(fresh / file.name)
            finally:
                shutil.rmtree(random_states, ignore_errors=True)

        on_main_process(write)

    def write_predictions(
        self, split: str, examples: Sequence[Example], predicted: Sequence[Prediction]
    ) -> None:
        """Write ``predictions.<split>.jsonl``: prediction and gold of each example."""
        rows = (to_row(*pair) for pair in zip(predicted, examples, strict=True))
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self._write(f"predictions.{split}.jsonl", "".join(lines))

    def write_vocabulary(self, train: Sequence[Example]) -> None:
        """Write the vocabulary of the training data, for scores on seen and unseen words."""
        self._write(VOCABULARY_FILE, TrainingVocabulary.of(train).to_json())

    def write_metrics(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Write the metrics of each split to ``metrics.json``."""
        self._write("metrics.json", json.dumps(metrics, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        on_main_process(lambda: checkpoint.write_text(self.path / name, text))


class Diverged(UserError):
    """The loss is not finite."""


class RunLog:
    """``log.jsonl``: one line per interval of training steps and one per evaluation."""

    def __init__(self, path: Path, accelerator: Any, step: int) -> None:
        """Open the log of a run that starts or continues after ``step`` steps."""
        self.path, self.accelerator = path, accelerator
        self.losses: list[torch.Tensor] = []
        self.norms: list[torch.Tensor] = []
        self.examples, self.start_time, self.start_step = 0, time.monotonic(), step
        if accelerator.is_main_process:
            # drop lines after the checkpoint, and one that a killed run wrote in part
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            kept = [
                each for each in lines if each.endswith("}") and json.loads(each)["step"] <= step
            ]
            checkpoint.write_text(path, "".join(line + "\n" for line in kept))

    def add(self, loss: torch.Tensor, norm: torch.Tensor, examples: int) -> None:
        """Record one step's mean loss and gradient norm, without waiting for the device."""
        self.losses.append(loss)
        self.norms.append(norm)
        self.examples += examples

    def flush(self, step: int, optimizer: Optimizer) -> str:
        """Write the means since the last line, and return them as text for the progress bar."""
        if not self.losses:
            return ""
        loss = float(torch.stack(self.losses).mean())
        norm = float(torch.stack(self.norms).max())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise Diverged(
                f"the loss is not finite (between steps {self.start_step + 1} and {step}): lower "
                "--lr, raise --warmup, or use --precision fp32. Models saved before are intact."
            )
        seconds = time.monotonic() - self.start_time
        line = {
            "step": step,
            "loss": round(loss, 6),
            "lr": max(group["lr"] for group in optimizer.param_groups),
            "gradient_norm": round(norm, 4),
            "examples_per_second": round(self.examples / max(seconds, 1e-9), 1),
        }
        self._write(line)
        self.losses, self.norms, self.examples = [], [], 0
        self.start_time, self.start_step = time.monotonic(), step
        return f"loss {loss:.4f}, {line['examples_per_second']} examples/s"

    def evaluation(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Write the metrics of an evaluation."""
        self._write({"step": step, "split": split, **metrics})
        self.start_time = time.monotonic()

    def _write(self, line: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.accelerator.log_with:
            values = {n: v for n, v in line.items() if isinstance(v, int | float) and n != "step"}
            self.accelerator.log(values, step=line["step"])
