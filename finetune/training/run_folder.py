"""The folder of a run: its name, its files (written by the main process, each whole) and its log.

A run folder holds ``config.json``, ``log.jsonl``, ``metrics.json``, ``predictions.<split>.jsonl``,
the best model in ``best/`` and the last checkpoint in ``last/``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.optim import Optimizer

from finetune.config.recipes import changed
from finetune.config.tasks import CONFIGS, TrainConfig, settings
from finetune.data import Dataset
from finetune.data.json_files import parse_json
from finetune.data.sources import is_test
from finetune.evaluation.predictions import to_row
from finetune.evaluation.runs import CHECKSUMS, RunFolder, last_part
from finetune.models.adapters import adapters, export_adapter, plain_layers
from finetune.models.loading import is_hub_id, resolve_model
from finetune.runtime.files import (
    entries,
    is_free,
    lock_folder,
    recover,
    replace_folder,
    write_text,
)
from finetune.runtime.hub import pin_repository
from finetune.runtime.launch import make_accelerator, on_main_process
from finetune.runtime.processes import num_processes
from finetune.tasks import save_task
from finetune.tasks.base import Task
from finetune.training.optimizer import logged_learning_rates
from finetune.types import Example, Prediction, UserError, abbreviated, quantity

RUNS = Path("runs")
"""Parent of the run folders without --out."""


def with_run_folder(
    config: TrainConfig, task: str, name: str | None = None, of_run: Path | None = None
) -> TrainConfig:
    """Set ``out`` of a configuration to its run folder, the same on every process.

    Without ``config.out`` it is ``name``, by default one of task, model, data and seed. With
    ``config.resume`` it must hold a run, without it must not; ``"auto"`` becomes one of them.
    ``of_run`` is the run whose settings these are, if they are another's.
    """
    run = on_main_process(lambda: _choose_run(config, task, name, of_run))
    resume = bool(config.resume) and run.is_run
    if resume:
        pin_model(run, config)
    return replace(config, out=str(run.path), resume=resume)


def run_name(config: TrainConfig, task: str) -> str:
    """The name that runs share if they differ in their seed alone: task, model and data."""
    model = config.init_from or config.model or ""
    return "-".join(last_part(text) for text in (task, model, config.data))


def require_writable(folder: Path) -> None:
    """Raise UserError if a folder cannot be created or written."""
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir():
        raise UserError(f"--out {folder}: {parent} is a file, not a folder: choose another.")
    if not os.access(parent, os.W_OK):
        raise UserError(f"--out {folder}: {parent} cannot be written to: choose another folder.")


def require_free(run: RunFolder) -> None:
    """Raise UserError if a new run would overwrite a model or files of others in this folder."""
    require_writable(run.path)
    run.require_config()
    if not run.is_run:
        require_own(run.path, is_free(run.path))
    elif any((run.path / name).exists() for name in ("best", "last")):
        raise UserError(
            f"--out {run.path} holds a run already: add --resume to continue it, or choose another."
        )


def require_own(folder: Path, may_write: bool) -> None:
    """Raise UserError unless a folder is one that finetune may write to."""
    if not may_write:
        names = abbreviated(entries(folder), 3)
        raise UserError(f"--out {folder} holds other files ({names}): name a new or empty folder.")


def require_same_run(
    run: RunFolder,
    config: TrainConfig,
    fingerprint: str | None = None,
    training_fingerprint: str = "",
) -> None:
    """Raise UserError unless a command continues a run.

    Paths of data and models may be spelled in other ways. ``fingerprint`` is None if the data have
    not been read; test splits, which ``training_fingerprint`` leaves out, may change.
    """
    folder, saved = run.path, run.config
    if training_fingerprint and saved.get("training_fingerprint") == training_fingerprint:
        fingerprint = saved["fingerprint"]
    if CONFIGS[saved["task"]] is not type(config):
        raise UserError(
            f"{folder} holds a run of `finetune {saved['task']}`: continue it with that command, "
            "or use another --out."
        )
    before = {**settings(type(config)()), **saved}
    now = settings(config)
    for name in changed(saved, config):
        same_data = name == "data" and fingerprint in (None, saved["fingerprint"])
        if not same_data and not _same_path(name, before[name], now[name]):
            raise UserError(
                f"{folder}: was started with {name} = {_shown(before, name)}, now "
                f"{_shown(now, name)}: continue with the same settings (those in "
                "its config.json), or use another --out."
            )
    if fingerprint not in (None, saved["fingerprint"]):
        used = f", --data {saved['data_used']}" if saved.get("data_used") else ""
        raise UserError(
            f"{folder}: was started with other data than {config.data} has now: continue with the "
            f"same data{used}, or use another --out."
        )


def _loss(function: str | None) -> str:
    return f"loss={function}" if function else "the loss of its settings"


def _shown(values: Mapping[str, Any], name: str) -> str:
    if values[name] is not None:
        return repr(values[name])
    used = values.get(f"{name}_used")
    return "unset" if used is None else f"unset ({used:g})"


def pin_model(run: RunFolder, config: TrainConfig) -> None:
    """Read the hub model of a run at the commit that the run has started from."""
    name, commit = config.init_from or config.model, run.config.get("revision_used")
    if commit and name and is_hub_id(name):
        id, _, revision = resolve_model(name).partition("@")
        pin_repository("model", id, revision or None, commit)


def _same_path(name: str, before: Any, now: Any) -> bool:
    if name not in ("model", "init_from") or not before or not now or not Path(now).exists():
        return False
    if Path(before).exists():
        return Path(before).samefile(now)
    return Path(before).name == Path(now).resolve().name


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold a folder for the processes of this launch; UserError if another command uses it."""
    with contextlib.ExitStack() as held:
        on_main_process(lambda: held.enter_context(lock_folder(folder)))
        yield


def _choose_run(config: TrainConfig, task: str, name: str | None, of_run: Path | None) -> RunFolder:
    if config.out is not None:
        run = RunFolder.open(Path(config.out))
        if not config.resume or (config.resume == "auto" and not run.is_run):
            require_free(run)
        elif not run.is_run:
            run.require_config()
            raise UserError(f"--resume: there is no run in {run.path} to continue.")
        else:
            require_same_run(run, config)
        return run
    base = RUNS / (name or f"{run_name(config, task)}-seed{config.seed}")
    names = (base.name, *(f"{base.name}-{n}" for n in range(2, 10_000)))
    there = {path.name for path in base.parent.iterdir()} if base.parent.is_dir() else set()
    known = (RunFolder.open(base.with_name(name)) for name in names if name in there)
    runs = [run for run in known if run.is_run] if config.resume else []
    if not config.resume or (config.resume == "auto" and not runs):
        return RunFolder.open(base.with_name(next(name for name in names if name not in there)))
    if not runs and of_run is not None:
        raise UserError(
            f"--resume: no run with the settings of {of_run} has begun: add --out {of_run} to "
            f"continue {of_run} itself, or leave --resume out."
        )
    if not runs:
        raise UserError(f"--resume: there is no run {base} to continue; name it with --out.")
    return runs[-1]


@contextlib.contextmanager
def open_run(
    config: TrainConfig, accelerator: Accelerator | None = None, last: Path | None = None
) -> Iterator[RunWriter]:
    """Hold the run folder ``config.out`` for the processes of this launch, and open it for writing.

    The checkpoint is ``last``, by default ``last/`` in the folder. Raises UserError if another
    command uses the folder, or it cannot be written.
    """
    if config.out is None:
        raise UserError("--out must name the run folder.")
    accelerator = accelerator or make_accelerator(config)
    with hold(Path(config.out)):
        writer = RunWriter(RunFolder.open(Path(config.out)), accelerator, last)
        with contextlib.closing(writer):
            yield writer


class RunWriter:
    """A run folder that this launch holds and writes.

    The main process writes while the others wait; if it fails, all processes raise its error. A
    model or checkpoint replaces the one before once it is on disk. A thread waits for that, and the
    next save, or ``wait``, for the thread.
    """

    def __init__(self, run: RunFolder, accelerator: Accelerator, last: Path | None = None) -> None:
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._save: Future[None] | None = None
        self.run, self.path, self.accelerator = run, run.path, accelerator
        self.best, self.last = run.best, last or run.path / "last"
        self.adapter = run.path / "adapter"
        self.teacher: Mapping[str, Any] | None = None
        """The settings of a run of ``finetune distill``."""
        self.loss: str | None = None
        """The name of a function that replaces the loss of the settings."""

    def begin(self, config: TrainConfig, data: Dataset) -> tuple[bool, list[str]]:
        """Prepare the folder for a run; return whether it continues from a checkpoint, and notes.

        Raises UserError if the folder or its files belong to another run.
        """
        now = self.accelerator.num_processes

        def prepare() -> tuple[bool, list[str]]:
            notes = list[str]()
            recover(self.best, self.last, self.adapter)
            if not (config.resume and self.run.is_run):
                require_free(self.run)
                return False, notes
            require_same_run(self.run, config, data.fingerprint, data.training_fingerprint)
            self._require_same_teacher()
            if (before := self.run.config.get("loss_function")) != self.loss:
                raise UserError(
                    f"{self.path}: was started with {_loss(before)}, now {_loss(self.loss)}: "
                    "continue with the same loss, or use another out."
                )
            scored = self.run.metrics
            added = [split for split in data.splits if is_test(split) and split not in scored]
            if self.run.config["fingerprint"] != data.fingerprint and not (scored and added):
                notes.append("the test split has changed since the run was started")
            if (before := self.run.config.get("num_processes", now)) != now:
                notes.append(
                    f"the run had {quantity(before, 'process', 'processes')}, and now has {now}: "
                    "the weights will differ by rounding from an uninterrupted run, and by the "
                    "masks of dropout"
                )
            self.run.require_intact()
            _log_lines(self.path / "log.jsonl")  # a damaged log is refused before files change
            return self.last.is_dir(), notes

        result: tuple[bool, list[str]] = on_main_process(prepare)
        return result

    def _require_same_teacher(self) -> None:
        before, now = self.run.config.get("teacher") or {}, self.teacher or {}
        for name in {**before, **now}:
            if name != "folder" and before.get(name) != now.get(name):
                raise UserError(
                    f"{self.path}: `finetune distill` was started with {name} = "
                    f"{before.get(name)!r}, now {now.get(name)!r}: continue with the same command, "
                    "or use another --out."
                )

    @property
    def num_logged_steps(self) -> int:
        """The last step in the log."""
        return max((line["step"] for line in _log_lines(self.path / "log.jsonl")), default=0)

    def write_start(self, task: Task, config: TrainConfig, **metadata: Any) -> None:
        """Write the resolved configuration to ``config.json``, before training starts."""
        content = {"task": task.name, **settings(replace(config, resume=False)), **metadata}
        content["num_processes"] = self.accelerator.num_processes
        content |= {} if self.teacher is None else {"teacher": dict(self.teacher)}
        content |= {} if self.loss is None else {"loss_function": self.loss}
        on_main_process(lambda: (self.path / CHECKSUMS).unlink(missing_ok=True))
        self.write("config.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def require_shared(self) -> None:
        """Raise UserError on all processes if one does not see the files of the run."""
        if num_processes() == 1:
            return
        config, attempts = self.path / "config.json", 20
        while not config.is_file() and (attempts := attempts - 1):
            time.sleep(0.25)  # a network file system may be late
        seen = gather_object([config.is_file()])
        if not all(seen):
            raise UserError(
                f"--out {self.path}: process {seen.index(False)} does not see the files that "
                "process 0 writes there: name a folder that all machines share."
            )

    def save_best(self, task: Task, model: Any) -> None:
        """Save model, tokenizer and task file to ``best/``."""

        def write() -> None:
            with self.replacing(self.best) as fresh, plain_layers(model, merged=True):
                save_task(task, fresh)  # before the model, which adds a tokenizer if there is none
                model.save_pretrained(fresh)
            if task.state.config.tuning == "lora" and adapters(model):
                with self.replacing(self.adapter) as fresh:
                    export_adapter(model, task.state.config, fresh)

        on_main_process(write)

    @contextlib.contextmanager
    def replacing(self, folder: Path) -> Iterator[Path]:
        """Yield an empty folder that replaces one of the run once it is on disk.

        The main process alone calls it. The folder saved before is on disk by then.
        """
        self._wait()
        with replace_folder(folder, self._replace_later) as fresh:
            yield fresh

    def _replace_later(self, replace: Callable[[], None]) -> None:
        self._save = self._disk.submit(replace)

    def wait(self) -> None:
        """Wait until all models and checkpoints are on disk; raise the error if one is not."""
        on_main_process(self._wait)

    def _wait(self) -> None:
        save, self._save = self._save, None
        if save is not None:
            save.result()

    def close(self) -> None:
        """Wait as ``wait`` does, in this process alone; end the thread."""
        try:
            self._wait()
        finally:
            self._disk.shutdown()

    def write_predictions(
        self, split: str, examples: Sequence[Example], predicted: Sequence[Prediction]
    ) -> None:
        """Write ``predictions.<split>.jsonl``: prediction and gold of each example."""
        rows = (to_row(*pair) for pair in zip(predicted, examples, strict=True))
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self.write(f"predictions.{split}.jsonl", "".join(lines))

    def write(self, name: str, text: str) -> None:
        """Write a file of the run."""
        on_main_process(lambda: write_text(self.path / name, text))


class Diverged(UserError):
    """The loss is not finite."""


def _log_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
        if text.endswith("}"):  # else it was cut
            line = parse_json(text, f"{path}:{number}", ": remove the line.")
            if not isinstance(line, dict) or type(line.get("step")) is not int:
                raise UserError(
                    f"{path}:{number}: damaged, `step` must be a whole number: remove the line."
                )
            lines.append(line)
    return lines


READ_EVERY = 1.0
"""Seconds between two times at which numbers of the log are read from the device."""


class RunLog:
    """``log.jsonl``: one line per interval of training steps and one per evaluation.

    Numbers are read from the device, which waits for it, once a second (``READ_EVERY``).
    """

    def __init__(self, path: Path, accelerator: Accelerator, step: int) -> None:
        """Open the log of a run that starts or continues after ``step`` steps."""
        self.path, self.accelerator = path, accelerator
        self.steps: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        """Loss, norm and number of examples of each step of the next line."""
        self.start_time = time.monotonic()
        self.unread: list[tuple[int, dict[str, Any]]] = []
        """The first steps of intervals, and their lines, whose numbers are on the device."""
        self.read_time, self.text = time.monotonic(), ""

        def drop_later_lines() -> None:
            kept = [line for line in _log_lines(path) if line["step"] <= step]
            write_text(path, "".join(json.dumps(line) + "\n" for line in kept))

        on_main_process(drop_later_lines)

    def add(self, loss: torch.Tensor, norm: torch.Tensor, examples: int) -> None:
        """Record one step's mean loss and gradient norm, without waiting for the device."""
        self.steps.append((loss, norm, examples))

    def flush(self, step: int, optimizer: Optimizer, *, wait: bool) -> str:
        """End a line, and write lines if it is time, or all of them if it may ``wait``.

        Returns the last line that is written as text for the progress bar.
        """
        if self.steps:
            losses, norms, examples = zip(*self.steps, strict=True)
            seconds = time.monotonic() - self.start_time
            line = {
                "step": step,
                "loss": torch.stack(losses).mean(),
                **logged_learning_rates(optimizer),
                "gradient_norm": torch.stack(norms).max(),
                "examples_per_second": round(sum(examples) / max(seconds, 1e-9), 1),
            }
            self.unread.append((step - len(self.steps) + 1, line))
            self.steps, self.start_time = [], time.monotonic()
        if wait or time.monotonic() - self.read_time > READ_EVERY:
            self._read()
        return self.text

    def _read(self) -> None:
        for first, line in self.unread:
            loss, norm = float(line["loss"]), float(line["gradient_norm"])
            if not (math.isfinite(loss) and math.isfinite(norm)):
                last = line["step"]
                steps = f"at step {last}" if first == last else f"between steps {first} and {last}"
                raise Diverged(
                    f"the loss is not finite ({steps}): lower --lr, raise --warmup, or use "
                    "--precision fp32. Models saved before are intact."
                )
            self._write(line | {"loss": round(loss, 6), "gradient_norm": round(norm, 4)})
            self.text = f"loss {loss:.4f}, {line['examples_per_second']} examples/s"
        self.unread, self.read_time = [], time.monotonic()

    def evaluation(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
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
