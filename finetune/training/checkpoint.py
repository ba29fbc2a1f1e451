"""Checkpoints: the state that training resumes from, as safetensors and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from finetune.evaluation.runs import damaged_file, write_checksums
from finetune.models.adapters import plain_layers, save_adapter_state
from finetune.models.master_weights import MasterWeights
from finetune.tasks import save_task
from finetune.tasks.base import Task
from finetune.types import UserError

OPTIMIZER = "optimizer.safetensors"
STATE = "trainer_state.json"


@dataclass
class Progress:
    """Progress of a task in a run."""

    step: int = 0
    best_score: float | None = None
    best_step: int = 0
    unevaluated: bool = False
    """Whether a signal has ended the evaluation after the step."""


@dataclass
class TrainerState:
    """Progress of a run."""

    step: int = 0
    finished: bool = False
    tasks: dict[str, Progress] = field(default_factory=dict)
    """The progress of each task by its name, which is empty if it is the only one."""
    loss_scale: dict[str, Any] = field(default_factory=dict)
    """State of the loss scaler; empty without fp16."""


def save_checkpoint(
    folder: Path,
    models: dict[str, tuple[Task, Any]],
    masters: MasterWeights,
    optimizer: Optimizer,
    state: TrainerState,
) -> None:
    """Save models, optimizer and state of a run in an empty folder, and the checksums of all files.

    The model of the only task is in the folder itself, of several in folders with their names.
    """
    for name, (task, model) in models.items():
        save_task(task, folder / name)
        with masters.float32():
            with plain_layers(model, merged=False):
                model.save_pretrained(folder / name)
            save_adapter_state(model, folder / name)
    tensors = {
        f"{name}.{moment}": value.detach().cpu().clone()
        for name, values in masters.moments(optimizer).items()
        for moment, value in values.items()
    }
    save_file(tensors, str(folder / OPTIMIZER))
    text = json.dumps(dataclasses.asdict(state), indent=2) + "\n"
    (folder / STATE).write_text(text, encoding="utf-8")
    write_checksums(folder, [path for path in folder.rglob("*") if path.is_file()])


def load_checkpoint(folder: Path, masters: MasterWeights, optimizer: Optimizer) -> TrainerState:
    """Restore a checkpoint of ``save_checkpoint``, except the weights of the models."""
    moments: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in load_file(str(folder / OPTIMIZER)).items():
        name, _, moment = key.rpartition(".")
        moments.setdefault(name, {})[moment] = value
    shapes = {name: weight.shape for name, weight in masters.weights.items()}
    if any(shapes.get(name) != values["exp_avg"].shape for name, values in moments.items()):
        raise UserError(
            f"{folder.parent}: its weights have other names or shapes, as an earlier version, or "
            "other data that use other subwords, train them: train again with another --out."
        )
    masters.load_moments(optimizer, moments)
    saved = json.loads((folder / STATE).read_text(encoding="utf-8"))
    state: TrainerState = _known(TrainerState, saved)
    state.tasks = {name: _known(Progress, values) for name, values in saved["tasks"].items()}
    return state


def _known(cls: Any, values: Mapping[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in names})


def check_files(folder: Path) -> None:
    """Raise UserError unless a checkpoint has the files that were saved, unchanged."""
    if damaged := damaged_file(folder):
        raise UserError(
            f"{damaged}: damaged, changed or missing, so that training cannot continue: restore "
            f"{folder} from a copy, or train again with another --out."
        )
