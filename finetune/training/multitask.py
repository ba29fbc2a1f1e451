"""The plan of a run of several tasks on one encoder, whose steps take turns.

Each task has a head, data, evaluations and a run folder of its own, and keeps the model of its own
best validation score, with the encoder as it was then. Only the weights of the encoder, the
optimizer and the checkpoint are common.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from finetune.config.tasks import Resume, TrainConfig, affects_of, flag, settings
from finetune.data import Dataset
from finetune.data.splitting import sampling_probabilities
from finetune.evaluation.runs import RunFolder
from finetune.preprocessing.encodings import EncodedExamples
from finetune.runtime.files import recover
from finetune.tasks.base import Task
from finetune.training.data import StepBatch, TrainingData
from finetune.training.optimizer import Schedule
from finetune.types import UserError

Planned = tuple[Task, Dataset, TrainConfig]
"""A task with its prepared data and settings."""


def with_planned_steps(
    tasks: Mapping[str, Planned], out: Path, alpha: float
) -> tuple[dict[str, Planned], dict[str, float]]:
    """Add steps and run folder to the settings of tasks, and compute the proportions of the tasks.

    The number of steps is the sum over the tasks alone. Task i has the share n_i^α / Σ n_j^α, where
    n_i is its number of training examples (Jurafsky & Martin, 11.7).
    """
    sizes = [len(data.splits["train"]) for _, data, _ in tasks.values()]
    proportions = dict(zip(tasks, sampling_probabilities(sizes, alpha), strict=True))
    number = sum(
        Schedule.from_config(config, size).num_steps
        for (*_, config), size in zip(tasks.values(), sizes, strict=True)
    )
    planned = {}
    for name, (task, data, config) in tasks.items():
        steps = max(1, round(proportions[name] * number))
        config = replace(config, out=str(out / name), steps=steps)
        planned[name] = replace(task, state=replace(task.state, config=config)), data, config
    return planned, proportions


def common_settings(configs: Mapping[str, TrainConfig]) -> TrainConfig:
    """Merge the settings of the tasks of a run; ``steps`` is the sum over the tasks.

    Raises UserError unless the settings of encoder and optimizer are equal and supported.
    """
    first, config = next(iter(configs.items()))
    common = settings(config)
    shared = [key for key, mark in affects_of(TrainConfig).items() if mark.shared]
    for name, other in configs.items():
        values = settings(other)
        for key in shared:
            if common[key] != values[key]:
                raise UserError(
                    f"{flag(key)} belongs to the encoder that tasks share: it is "
                    f"{common[key]!r} for {first}, and {values[key]!r} for {name}."
                )
    wrong = {
        "--tuning": config.tuning != "full",
        "--track": config.track != "none",
        "--few-shot": any(getattr(config, "few_shot", False) for config in configs.values()),
    }
    for option, is_set in wrong.items():
        if is_set:
            raise UserError(f"{option} does not work with several tasks: leave it out.")
    steps = sum(config.steps or 0 for config in configs.values())
    return replace(config, steps=steps, eval_every=None)


def require_own_checkpoint(out: Path, names: Sequence[str], resume: Resume) -> None:
    """Raise UserError unless a run of several tasks may begin, or continue, in a folder."""
    recover(out / "last")
    if resume is True and not any(RunFolder.open(out / name).is_run for name in names):
        raise UserError(f"--resume: there is no run in {out} to continue.")
    if (out / "last").is_dir() and not resume:
        raise UserError(
            f"--out {out} holds a run already: add --resume to continue it, or choose another."
        )


class MixedData:
    """The data of several tasks, whose steps take turns in an order that the seed gives."""

    read_in_training: Sequence[EncodedExamples] = ()

    def __init__(self, data: Mapping[str, TrainingData], config: TrainConfig) -> None:
        """``config`` has the ``steps`` of all tasks together."""
        self.data = data
        number = sum(len(of_task.splits["train"]) for of_task in data.values())
        self.schedule = Schedule.from_config(config, number)
        turns = np.repeat(list(data), [of_task.schedule.num_steps for of_task in data.values()])
        self.turns: list[str] = np.random.default_rng(config.seed).permutation(turns).tolist()

    def batches(self, first_step: int) -> Generator[StepBatch]:
        """Yield the batch of each step, as ``TrainingData.batches``; close it."""
        with contextlib.ExitStack() as opened:
            batches = {}
            for name, data in self.data.items():
                of_task = data.batches(self.turns[:first_step].count(name))
                batches[name] = opened.enter_context(contextlib.closing(of_task))
            for name in self.turns[first_step:]:
                yield next(batches[name])
