"""Several tasks on one encoder: the steps of their runs alternate.

Each task has a head, data, evaluations and a run folder of its own, and keeps the model of its own
best validation score, with the encoder as it was then. Only the weights of the encoder, the
optimizer and the checkpoint are common.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from finetune.config.tasks import Resume, TrainConfig, changes_of, flag, settings
from finetune.data import Dataset
from finetune.data.sampling import sampling_probabilities
from finetune.evaluation.runs import RunFolder
from finetune.models.half_precision import WeightCopies
from finetune.models.heads.base import Head
from finetune.runtime.files import recover, replace_folder
from finetune.runtime.launch import on_main_process
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import InterruptHandler
from finetune.tasks import save_task
from finetune.tasks.base import Task
from finetune.training.checkpoint import (
    TrainerState,
    check_files,
    load_random_state,
    load_state,
    load_training_state,
    random_state,
    save_state,
    save_training_state,
    write_checkpoint_checksums,
)
from finetune.training.optimizer import Schedule, adamw, parameter_groups
from finetune.training.run_folder import RunLog, open_run, require_no_checkpoint
from finetune.training.step import Step
from finetune.training.trainer import FitResult, TrainingRun
from finetune.types import UserError


def planned_steps(
    configs: Sequence[TrainConfig], sizes: Sequence[int], alpha: float
) -> tuple[list[int], list[float]]:
    """Return the number of steps of each task, and their shares (Jurafsky & Martin, 11.7).

    The number of steps is the sum over the tasks alone; task i has the share n_i^α / Σ n_j^α, where
    n_i is its number of training examples.
    """
    alone = [Schedule.from_config(*each).num_steps for each in zip(configs, sizes, strict=True)]
    shares = sampling_probabilities(sizes, alpha)
    return [max(1, round(share * sum(alone))) for share in shares], shares


def fit_together(
    tasks: Mapping[str, tuple[Task, Dataset, TrainConfig]],
    out: Path,
    accelerator: Accelerator,
    reporter: Reporter,
) -> dict[str, FitResult]:
    """Train several tasks on one encoder, and score each as ``fit`` does.

    Args:
        tasks: by name, each task with its data and settings, ``steps`` among them; settings outside
            mark ``shared`` are equal.
        out: the folder, which this process holds: the checkpoint is in ``last/``, and each task
            has a run folder.
        accelerator: device and processes.
        reporter: shows the progress.

    Returns:
        The result of each task by name.

    Raises:
        UserError: settings do not fit together, and for the reasons of ``fit``.
        Interrupted: after Ctrl-C or SIGTERM, once the checkpoint is written.
    """
    _require_common_settings({name: config for name, (_, _, config) in tasks.items()})
    with contextlib.ExitStack() as restore:
        return _JointRun(tasks, out, accelerator, reporter, restore).run()


def share_encoder(heads: Sequence[Head]) -> None:
    """Give all heads the encoder weights of the first head; poolers belong to the heads."""
    shared: dict[str, torch.nn.Parameter] = {}
    for head in heads:
        for name, module in head.encoder.model.named_modules():
            for key, weight in list(module.named_parameters(recurse=False)):
                full = f"{name}.{key}"
                if not head.is_head(head.encoder_prefix + full):
                    setattr(module, key, shared.setdefault(full, weight))


def _require_common_settings(configs: Mapping[str, TrainConfig]) -> None:
    """Raise UserError unless the settings of encoder and optimizer are equal and supported."""
    (first, config), *others = configs.items()
    common = settings(config)
    shared = [key for key, mark in changes_of(TrainConfig).items() if mark.shared]
    for name, other in others:
        values = settings(other)
        for key in shared:
            if common[key] != values[key]:
                raise UserError(
                    f"{flag(key)} belongs to the encoder that tasks share: it is "
                    f"{common[key]!r} for {first}, and {values[key]!r} for {name}."
                )
    wrong = {
        "--tuning": config.tuning != "full",
        "--patience": config.patience is not None,
        f"--average {config.average}": config.average != "none",
        "--track": config.track != "none",
        "--push-to-hub": config.push_to_hub is not None,
        "--sparse-embeddings on": config.sparse_embeddings == "on",
    }
    for option, found in wrong.items():
        if found:
            raise UserError(f"{option} does not work with several tasks: leave it out.")


class _Part(TrainingRun):
    """The run of one of the tasks; all tasks share the optimizer and the checkpoint."""

    def _require_no_checkpoint(self) -> None:
        """Do nothing: all tasks share one checkpoint, which the joint run checks."""

    def _prepare(self, head: Any, resuming: bool, restore: contextlib.ExitStack) -> None:
        self._load_head(head, resuming, restore)
        if resuming:
            self.state = load_state(self.folder.last)

    def start(self) -> None:
        """Write the settings, and open the log."""
        super().start()
        self.log = RunLog(self.folder.path / "log.jsonl", self.accelerator, self.state.step)

    def share(
        self,
        optimizer: torch.optim.Optimizer,
        interrupt: InterruptHandler,
        copies: WeightCopies | None,
    ) -> None:
        """Take the common optimizer, and the common copies of weights."""
        self.step = Step(
            self.task,
            self.head,
            optimizer,
            self.config,
            self.accelerator,
            self.precision,
            interrupt,
            copies,
        )
        if self.state.loss_scale:  # there is none before the first step
            self.step.scaler.load_state_dict(self.state.loss_scale)

    def take_step(self, batches: Any, lr_factor: float) -> None:
        """Take the next step, and evaluate if it is time."""
        batch = next(batches)
        loss, norm = self.step(batch.micro_batches, weight=batch.weight, lr_factor=lr_factor)
        self.log.add(loss, norm, batch.num_examples)
        self.state.step += 1
        self.state.finished = self.state.step == self.schedule.num_steps
        if self.state.step % self.schedule.eval_every == 0 or self.state.finished:
            self.log.flush(self.state.step, self.step.optimizer)
            self.evaluate(self.log)


class _JointRun:
    """The alternating runs of several tasks."""

    def __init__(
        self,
        tasks: Mapping[str, tuple[Task, Dataset, TrainConfig]],
        out: Path,
        accelerator: Accelerator,
        reporter: Reporter,
        restore: contextlib.ExitStack,
    ) -> None:
        self.accelerator, self.reporter, self.last = accelerator, reporter, out / "last"
        config = next(iter(tasks.values()))[2]
        folders = [RunFolder.open(out / name) for name in tasks]
        resuming = bool(on_main_process(lambda: self._open(config.resume, folders)))
        self.parts = {
            name: _Part(
                task,
                data,
                config,
                restore.enter_context(open_run(config, accelerator, self.last / name)),
                _Titled(reporter, name),
                None,
                restore,
            )
            for name, (task, data, config) in tasks.items()
        }
        parts = list(self.parts.values())
        share_encoder([part.head for part in parts])
        self.optimizer = adamw(_distinct_groups(parts), config)
        self.interrupt = InterruptHandler(accelerator)
        self.state = TrainerState()
        if resuming:
            self.state = load_training_state(self.last, self.optimizer)
            load_random_state(self.last, accelerator.process_index)
        else:
            torch.manual_seed(config.seed * 1_000_003 + accelerator.process_index)  # dropout
        copies: WeightCopies | None = None
        for part in parts:
            part.share(self.optimizer, self.interrupt, copies)
            copies = part.step.copies
        numbers = [part.schedule.num_steps for part in parts]
        order = np.repeat(np.arange(len(parts)), numbers)
        self.order = np.random.default_rng(config.seed).permutation(order)
        whole = replace(config, steps=len(order), eval_every=None, save_every=config.save_every)
        self.schedule = Schedule.from_config(
            whole, sum(part.schedule.num_examples for part in parts)
        )
        if resuming:
            reporter.say(f"continuing from step {self.state.step} of {len(order)}")
        elif config.resume:
            steps = on_main_process(lambda: sum(part.folder.num_logged_steps for part in parts))
            require_no_checkpoint(self.last, steps, self.schedule.save_every)

    def _open(self, resume: Resume, folders: Sequence[RunFolder]) -> bool:
        """Return whether training continues from a checkpoint."""
        recover(self.last.parent)
        if resume is True and not any(folder.is_run for folder in folders):
            raise UserError(f"--resume: there is no run in {self.last.parent} to continue.")
        if self.last.is_dir() and not resume:
            raise UserError(
                f"--out {self.last.parent} holds a run already: add --resume to continue it, or "
                "choose another."
            )
        if self.last.is_dir():
            check_files(self.last)
        return self.last.is_dir()

    def run(self) -> dict[str, FitResult]:
        """Train to the end, then score the best model of each task."""
        for part in self.parts.values():
            part.start()
        if not self.state.finished:
            with self.interrupt:
                self._train()
        return {name: part.finish() for name, part in self.parts.items()}

    def _train(self) -> None:
        state, names = self.state, list(self.parts)
        self.reporter.start("training", len(self.order), state.step)
        with self.reporter, contextlib.ExitStack() as stack:
            batches = [
                stack.enter_context(contextlib.closing(part.data.batches(part.state.step)))
                for part in self.parts.values()
            ]
            for index in self.order[state.step :]:
                factor = self.schedule.lr_factor(state.step)
                self.parts[names[index]].take_step(batches[index], factor)
                state.step += 1
                self.reporter.update(state.step)
                state.finished = state.step == len(self.order)
                stop = self.interrupt.should_stop()
                if stop or state.finished or state.step % self.schedule.save_every == 0:
                    self._save()
                if stop or (state.finished and self.interrupt.signals_received()):
                    raise self.interrupt.interrupted(
                        f"stopped at step {state.step} of {len(self.order)}; the checkpoint is in "
                        f"{self.last}"
                    )

    def _save(self) -> None:
        """Save the checkpoint: the model and state of each task, and the optimizer."""
        for part in self.parts.values():
            part.folder.wait()  # so that no checkpoint names a best model that is not on disk
        gathered = gather_object([random_state(self.accelerator.process_index)])
        random_states = {name: value for each in gathered for name, value in each.items()}
        for part in self.parts.values():
            part.log.flush(part.state.step, self.optimizer)

        def write() -> None:
            with replace_folder(self.last) as fresh:
                for name, part in self.parts.items():
                    folder = fresh / name
                    save_task(part.task, folder)
                    part.head.save_pretrained(folder)
                    part.state.loss_scale = part.step.scaler.state_dict()
                    save_state(folder, part.state)
                    write_checkpoint_checksums(folder)
                save_training_state(fresh, self.optimizer, self.state, random_states)

        on_main_process(write)


class _Titled(Reporter):
    """Shows the messages of one of the tasks with its name."""

    def __init__(self, reporter: Reporter, name: str) -> None:
        super().__init__(quiet=reporter.quiet)
        self.name, self.console = name, reporter.console

    def say(self, text: str) -> None:
        """Print one message."""
        super().say(f"{self.name}: {text}")


def _distinct_groups(parts: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """Return the parameter groups of all heads, with the weights of the encoder once."""
    groups: list[dict[str, Any]] = []
    seen: set[int] = set()
    for part in parts:
        for group in parameter_groups(part.head, part.config):
            own = [weight for weight in group["params"] if id(weight) not in seen]
            seen |= {id(weight) for weight in own}
            groups += [{**group, "params": own}] if own else []
    return groups
