"""Callbacks: functions that training calls after steps, evaluations and saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from finetune.runtime.launch import on_main_process
from finetune.types import Example, Prediction

Event = TypeVar("Event")


@dataclass(frozen=True)
class StepEvent:
    """An optimizer step; reading ``loss`` or ``gradient_norm`` on a GPU waits for it."""

    step: int
    """Number of the step, from 1."""
    num_steps: int
    """The planned number of steps."""
    _loss: torch.Tensor
    _norm: torch.Tensor

    @property
    def loss(self) -> float:
        """The mean loss of the batch."""
        return float(self._loss)

    @property
    def gradient_norm(self) -> float:
        """The norm of the gradient before clipping."""
        return float(self._norm)


@dataclass(frozen=True)
class EvaluationEvent:
    """An evaluation on the validation split."""

    step: int
    """Number of the last step, from 1."""
    num_steps: int
    """The planned number of steps."""
    split: str
    """Name of the split."""
    metrics: Mapping[str, float]
    """Scores by name."""
    is_best: bool
    """Whether this is the best score yet."""
    examples: Sequence[Example]
    """The examples with gold."""
    predictions: Sequence[Prediction]
    """Their predictions, in the same order."""


@dataclass(frozen=True)
class SaveEvent:
    """A model or checkpoint that is complete on the disk."""

    step: int
    """Number of the last step."""
    folder: Path
    """Folder of the model or checkpoint."""
    is_best: bool
    """Whether this is the best model yet (``best/``), not the checkpoint (``last/``)."""


class Callback:
    """Base class of callbacks; override the methods you need.

    In one step the order is: ``on_step``, ``on_save`` of the best model, ``on_evaluation``,
    ``on_save`` of the checkpoint. Callbacks run on the main process. An error in one ends the run,
    whose last checkpoint stays.

    Examples:
        >>> class Losses(finetune.Callback):  # doctest: +SKIP
        ...     def on_step(self, event):
        ...         print(event.step, event.loss)
        >>> run = finetune.train(config, data, callbacks=[Losses()])  # doctest: +SKIP
    """

    def on_step(self, event: StepEvent) -> None:
        """Run after each optimizer step."""

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """Run after each evaluation on the validation split."""

    def on_save(self, event: SaveEvent) -> None:
        """Run after the best model or a checkpoint was saved."""


def notify(methods: Sequence[Callable[[Event], None]], event: Event) -> None:
    """Call methods of callbacks with an event, on the main process."""

    def calls() -> None:  # whose results would be sent to the other processes
        for method in methods:
            method(event)

    if methods:  # the processes wait for each other
        on_main_process(calls)
