"""Several tasks on one encoder: their steps take turns in one run.

Each task has a head, data, evaluations and a run folder of its own, and keeps the model of its own
best validation score, with the encoder as it was then. Only the weights of the encoder, the
optimizer and the checkpoint are common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finetune.config.tasks import Resume, TrainConfig, changes_of, flag, settings
from finetune.data import Dataset
from finetune.data.mixing import sampling_probabilities
from finetune.evaluation.runs import RunFolder
from finetune.models.heads.base import Head
from finetune.runtime.files import recover
from finetune.runtime.progress import Reporter
from finetune.tasks.base import Task
from finetune.training.optimizer import Schedule
from finetune.training.part import Part
from finetune.types import UserError

Planned = tuple[Task, Dataset, TrainConfig]
"""A task with its prepared data and settings."""


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


def with_planned_steps(
    tasks: Mapping[str, Planned], out: Path, alpha: float
) -> tuple[dict[str, Planned], dict[str, float]]:
    """Return tasks with their settings, to which steps and run folder are added, and the shares."""
    steps, shares = planned_steps(
        [config for *_, config in tasks.values()],
        [len(data.splits["train"]) for _, data, _ in tasks.values()],
        alpha,
    )
    found = {}
    for (name, (task, data, config)), number in zip(tasks.items(), steps, strict=True):
        config = replace(config, out=str(out / name), steps=number)
        found[name] = replace(task, record=replace(task.record, config=config)), data, config
    return found, dict(zip(tasks, shares, strict=True))


def share_encoder(heads: Sequence[Head]) -> None:
    """Give all heads the encoder weights of the first head; poolers belong to the heads."""
    shared: dict[str, torch.nn.Parameter] = {}
    for head in heads:
        for name, module in head.encoder.model.named_modules():
            for key, weight in list(module.named_parameters(recurse=False)):
                full = f"{name}.{key}"
                if not head.is_head(head.encoder_prefix + full):
                    setattr(module, key, shared.setdefault(full, weight))


def require_common_settings(configs: Mapping[str, TrainConfig]) -> None:
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
        "--track": config.track != "none",
        "--sparse-embeddings on": config.sparse_embeddings == "on",
    }
    for option, found in wrong.items():
        if found:
            raise UserError(f"{option} does not work with several tasks: leave it out.")


def require_own_checkpoint(out: Path, names: Sequence[str], resume: Resume) -> None:
    """Raise UserError unless a run of several tasks may begin, or continue, in a folder."""
    recover(out)
    if resume is True and not any(RunFolder.open(out / name).is_run for name in names):
        raise UserError(f"--resume: there is no run in {out} to continue.")
    if (out / "last").is_dir() and not resume:
        raise UserError(
            f"--out {out} holds a run already: add --resume to continue it, or choose another."
        )


def common_schedule(parts: Sequence[Part]) -> Schedule:
    """Return the schedule of a run: of its only part, or of the steps of several together."""
    plans, config = [part.data.schedule for part in parts], parts[0].config
    if len(plans) == 1:
        return plans[0]
    config = replace(config, steps=sum(plan.num_steps for plan in plans), eval_every=None)
    return Schedule.from_config(config, sum(plan.num_examples for plan in plans))


def task_of_each_step(parts: Sequence[Part]) -> list[int]:
    """Return the number of the part that takes each step, in an order that the seed gives."""
    numbers = [part.data.schedule.num_steps for part in parts]
    order = np.repeat(np.arange(len(parts)), numbers)
    shuffled: list[int] = np.random.default_rng(parts[0].config.seed).permutation(order).tolist()
    return shuffled


def each_weight_once(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return parameter groups with the weights that parts share in the first group alone."""
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    for group in groups:
        own = [weight for weight in group["params"] if id(weight) not in seen]
        seen |= {id(weight) for weight in own}
        found += [{**group, "params": own}] if own else []
    return found


class TitledReporter(Reporter):
    """Shows the messages of one of the tasks with its name."""

    def __init__(self, reporter: Reporter, name: str) -> None:
        super().__init__(quiet=reporter.quiet)
        self.name, self.console = name, reporter.console

    def say(self, text: str) -> None:
        """Print one message."""
        super().say(f"{self.name}: {text}")
