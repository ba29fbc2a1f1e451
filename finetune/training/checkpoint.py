"""Checkpoints: the state that training resumes from, as safetensors and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from finetune.evaluation.runs import CHECKSUMS, damaged_file, write_checksums
from finetune.models.adapters import plain_layers, save_adapter_state
from finetune.runtime.launch import on_main_process
from finetune.tasks import save_task
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.training.part import Part

OTHERS = "others.safetensors"
"""Weights that are not part of the model."""
OPTIMIZER = "optimizer.safetensors"
STATE = "trainer_state.json"


@dataclass
class TrainerState:
    """Progress of a run."""

    step: int = 0
    best_score: float | None = None
    best_step: int = 0
    num_best: int = 0
    """The number of evaluations with the best score."""
    finished: bool = False
    loss_scale: dict[str, Any] = field(default_factory=dict)
    """State of the loss scaler; empty without fp16."""
    num_threads: int | None = None
    """Threads of an operation on a CPU; None on other devices."""
    start_note: str = ""
    """The scores before training, of a run with ``--replay``."""


def save_checkpoint(parts: Sequence[Part], optimizer: Optimizer) -> None:
    """Save the models and states of all parts of a run, and its optimizer, to ``last/``.

    The model of the only part is in the folder itself, of several in folders with their names.
    """
    first = parts[0].folder
    for part in parts[1:]:
        part.folder.wait()  # so that no checkpoint names a best model that is not on disk

    def write() -> None:
        with first.replacing(first.last) as fresh:
            for part in parts:
                _save_part(part, fresh / part.name)
            save_training_state(fresh, optimizer, _state_of(parts))

    on_main_process(write)


def _save_part(part: Part, folder: Path) -> None:
    save_task(part.task, folder)
    with plain_layers(part.head, merged=False):
        part.head.save_pretrained(folder)
    save_adapter_state(part.head, folder)
    if part.lesson is not None and part.lesson.projections is not None:
        save_file(part.lesson.projections.state_dict(), str(folder / OTHERS))
    part.state.loss_scale = part.step.scaler.state_dict()
    if part.name:
        save_state(folder, part.state)


def _state_of(parts: Sequence[Part]) -> TrainerState:
    states = [part.state for part in parts]
    if len(states) == 1:
        return states[0]
    finished = all(state.finished for state in states)
    return TrainerState(step=sum(state.step for state in states), finished=finished)


def load_checkpoint(parts: Sequence[Part], optimizer: Optimizer) -> None:
    """Restore what ``save_checkpoint`` has saved, except the weights of the models."""
    last = parts[0].folder.last
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_file(str(last / OPTIMIZER)).items():
        index, _, name = key.partition(".")
        moments.setdefault(int(index), {})[name] = value
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    if any(moments[i]["exp_avg"].shape != weights[i].shape for i in moments):
        raise UserError(f"{last.parent}: was started with another --sparse-embeddings: keep it.")
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    for part in parts:
        folder = last / part.name
        part.state = TrainerState(**json.loads((folder / STATE).read_text(encoding="utf-8")))
        if part.state.start_note:
            part.notes.append(part.state.start_note)
        if part.state.loss_scale:  # there is none before the first step
            part.step.scaler.load_state_dict(part.state.loss_scale)


def save_training_state(folder: Path, optimizer: Optimizer, state: TrainerState) -> None:
    """Write the state of the optimizer and of the trainer.

    Then write the checksums of all files in the folder.
    """
    moments = optimizer.state_dict()["state"]
    tensors = {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in moments.items()
        for name, value in values.items()
    }
    save_file(tensors, str(folder / OPTIMIZER))
    save_state(folder, state)
    write_checkpoint_checksums(folder)


def save_state(folder: Path, state: TrainerState) -> None:
    """Write the state of the trainer."""
    text = json.dumps(dataclasses.asdict(state), indent=2) + "\n"
    (folder / STATE).write_text(text, encoding="utf-8")


def write_checkpoint_checksums(folder: Path) -> None:
    """Write the checksums of all files of a checkpoint."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    write_checksums(folder, [path for path in paths if path != folder / CHECKSUMS])


def check_files(folder: Path) -> None:
    """Raise UserError unless a checkpoint has the files that were saved, unchanged."""
    if damaged := damaged_file(folder):
        raise UserError(
            f"{damaged}: damaged, changed or missing, so that training cannot continue: restore "
            f"{folder} from a copy, or train again with another --out."
        )
