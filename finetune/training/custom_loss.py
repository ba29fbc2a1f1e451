"""Custom losses: any function of the logits and targets of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from finetune.evaluation.custom_metrics import load_function
from finetune.tasks.base import Task
from finetune.types import Batch, CustomFunctionError, UserError

LossFunction = Callable[[Any, Mapping[str, torch.Tensor]], tuple[torch.Tensor, Any]]
"""A function of logits and targets that returns the sum of the losses, and their number."""


def loss_of(
    task: Task, setting: str | None, function: LossFunction | None = None
) -> Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor]]:
    """Return the loss of a batch by its logits: a custom one, or else the task's.

    Args:
        task: The task.
        setting: `FILE.py:FUNCTION`; the file is executed.
        function: The function itself, in place of a file.

    Raises:
        UserError: The loss of the task cannot be replaced, or there is no such function. The
            returned loss raises it for a result of another form.
    """
    name = getattr(function, "__qualname__", repr(function))
    if function is None and setting is not None:
        name, function = load_function(setting, "loss")
    if function is None:
        return task.loss
    if task.coupled_loss is not None or task.loss_counts is not None:
        raise UserError(
            f"the loss of this `finetune {task.name}` is not a function of the logits and targets "
            f"of one batch: leave out the custom loss {name}."
        )
    own = function

    def loss(logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            result = own(logits, batch.targets)
        except Exception as error:
            raise CustomFunctionError(f"the loss {name} raised {type(error).__name__}") from error
        if isinstance(result, tuple) and len(result) == 2:
            total, count = result
            if isinstance(total, torch.Tensor) and total.ndim == 0 and total.requires_grad:
                return total, torch.as_tensor(count, device=total.device)
        raise UserError(
            f"the loss {name} must return the sum of the losses, a tensor [] with a gradient, and "
            f"the number to divide it by; it returned {result!r:.60}."
        )

    return loss
