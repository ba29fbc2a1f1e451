"""Several tasks on one encoder: a composite task, whose batches name the task that they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from torch import nn

from finetune.models.encoder import Encoder
from finetune.models.heads.base import Head
from finetune.tasks.base import Task
from finetune.types import Batch


class MultitaskModel(nn.Module):
    """The models of several tasks by name, which share the weights of the first one's encoder.

    Poolers belong to the heads.
    """

    def __init__(self, models: Mapping[str, Head]) -> None:
        super().__init__()
        self.models = dict(models)
        self.members = nn.ModuleList(models.values())  # names of tasks may have dots
        shared: dict[str, nn.Parameter] = {}
        for model in models.values():
            for path, module in model.encoder.model.named_modules():
                for key, weight in list(module.named_parameters(recurse=False)):
                    name = f"{path}.{key}"
                    if not model.is_head(model.encoder_prefix + name):
                        setattr(module, key, shared.setdefault(name, weight))

    @property
    def encoder(self) -> Encoder:
        """The encoder that all models share."""
        return next(iter(self.models.values())).encoder

    def with_states(self, batch: Batch, layers: Sequence[int]) -> tuple[Any, list[torch.Tensor]]:
        """Compute the output of the model of a batch's task, as ``Head.with_states``."""
        return self.models[batch.task].with_states(batch, layers)


@dataclass(frozen=True)
class Multitask:
    """Several tasks by name; each is predicted, scored and saved alone."""

    tasks: Mapping[str, Task]

    name = "multitask"
    batch_loss = loss_counts = None

    def model(self, folder: Path | None = None) -> MultitaskModel:
        """Make new models on one encoder, or load them from the folders ``folder/NAME``."""
        models = {}
        for name, task in self.tasks.items():
            set_seed(task.state.config.seed)
            models[name] = task.model(None if folder is None else folder / name)
        return MultitaskModel(models)

    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the loss of a batch's task, as ``Task.loss``."""
        return self.tasks[batch.task].loss(logits, batch)

    def added_ids(self) -> tuple[int, ...]:
        """The ids of subwords that the tasks add: none of them adds any."""
        return ()


def tasks_and_models(task: Task | Multitask, model: Any) -> dict[str, tuple[Task, Any]]:
    """List each task of a run with its model by name; a single task has the name ``""``."""
    if isinstance(task, Multitask):
        return {name: (single, model.models[name]) for name, single in task.tasks.items()}
    return {"": (task, model)}
