"""A part of a run: one task with its data, model, folder and progress. Most runs have one part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from finetune.config.tasks import TrainConfig
from finetune.data import Dataset
from finetune.evaluation.custom_metrics import CustomMetric
from finetune.runtime.progress import Reporter
from finetune.tasks.base import Task
from finetune.training.callbacks import Callback
from finetune.training.checkpoint import TrainerState
from finetune.training.data import TrainingData
from finetune.training.run_folder import RunLog, RunWriter
from finetune.training.step import LossFunction, Step

if TYPE_CHECKING:
    from finetune.training.distillation_loss import DistillationLoss


@dataclass(kw_only=True)
class Part:
    """One task of a run. The course of the run sets the fields from ``data`` on, in their order."""

    task: Task
    """The task; calibration replaces it."""
    dataset: Dataset
    config: TrainConfig
    folder: RunWriter
    reporter: Reporter
    name: str = ""
    """Its name among several tasks; empty if it is the only one."""
    callbacks: Sequence[Callback] = ()
    custom_metrics: Mapping[str, CustomMetric] = field(default_factory=dict)
    loss: LossFunction | None = None
    """A custom loss, in place of the setting's."""
    lesson: DistillationLoss | None = None
    """The loss against a teacher, for a student."""
    precision: str = "fp32"
    notes: list[str] = field(default_factory=list)
    """Notes on the data and the training."""
    data: TrainingData = field(init=False)
    head: Any = None
    """The model; one that is given before is trained, in place of a new one."""
    weights: tuple[int, int] = (0, 0)
    """The number of trained weights, and the number of all weights."""
    step: Step = field(init=False)
    state: TrainerState = field(default_factory=TrainerState)
    log: RunLog = field(init=False)
    last_score: float = -float("inf")
    """The time at which the last validation score was printed."""

    def report(self, note: str) -> None:
        """Keep a note, and print it."""
        self.notes.append(note)
        self.reporter.say(note)
