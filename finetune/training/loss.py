"""The loss of a run: of its task, or a custom one; ``training/distillation.py`` has another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from finetune.evaluation.custom_metrics import load_function
from finetune.runtime.device import batches_to_device
from finetune.tasks.base import Task
from finetune.tasks.multitask import Multitask
from finetune.types import Batch, CustomFunctionError, UserError

if TYPE_CHECKING:
    from finetune.training.scoring import Scorer

LossFunction = Callable[[Any, Mapping[str, Tensor]], tuple[Tensor, Any]]
"""A function of logits and targets that returns the sum of the losses, and their number."""
Forward = Callable[..., tuple[Any, list[Tensor]]]
"""Returns the output of the model for a batch, and the hidden states of the named layers."""


class RunLoss:
    """The loss of a task, or a custom one in its place: a function, or ``FILE.py:FUNCTION``.

    Raises UserError if the loss of the task cannot be replaced, or there is no such function.
    """

    def __init__(
        self, task: Task | Multitask, setting: str | None, function: LossFunction | None = None
    ) -> None:
        self.function = _function_of(task, setting, function)
        self.counts = task.loss_counts

    def prepare(self, scorer: Scorer, opened: ExitStack) -> None:
        """Change the training data of a run as the loss needs them."""

    def to_device(
        self, batches: Sequence[Batch], device: torch.device
    ) -> tuple[Iterable[Any], Tensor | None]:
        """Move the micro-batches of a step to a device, and count the terms [K] of K losses.

        The loss is called with each of the micro-batches. The counts are None for a single loss.
        """
        counts = None
        if self.counts is not None:
            counts = torch.stack([self.counts(batch) for batch in batches]).sum(0)
        return batches_to_device(batches, device), counts

    def __call__(self, forward: Forward, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the sum of the losses of a batch, and their number: [] each, or [K]."""
        output, _ = forward(batch)
        return self.function(output, batch)


def _function_of(
    task: Task | Multitask, setting: str | None, function: LossFunction | None
) -> Callable[[Any, Batch], tuple[Tensor, Tensor]]:
    name = getattr(function, "__qualname__", repr(function))
    if function is None and setting is not None:
        name, function = load_function(setting, "loss")
    if function is None:
        return task.loss
    if task.batch_loss is not None or task.loss_counts is not None:
        raise UserError(
            f"the loss of this `finetune {task.name}` is not a function of the logits and targets "
            f"of one batch: leave out the custom loss {name}."
        )
    if not callable(function):
        raise UserError(f"the loss must be a function of logits and targets, not {function!r:.60}.")
    if isinstance(task, Task):
        replace(task.state.config, custom_loss=name)  # refuses settings of the built-in loss
    custom = function

    def loss(logits: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        try:
            result = custom(logits, batch.targets)
        except (Exception, SystemExit) as error:
            raise CustomFunctionError(f"the loss {name} raised {type(error).__name__}") from error
        if isinstance(result, tuple) and len(result) == 2:
            total, count = result
            real = isinstance(total, Tensor) and total.is_floating_point()
            if real and total.ndim == 0 and total.requires_grad and not isinstance(count, complex):
                return total, torch.as_tensor(count, device=total.device)
        raise UserError(
            f"the loss {name} must return the sum of the losses, a tensor [] with a gradient, and "
            f"the number to divide it by; it returned {result!r:.60}."
        )

    return loss
