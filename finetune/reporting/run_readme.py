"""The README.md of a run folder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from finetune.config.tasks import TrainConfig, settings
from finetune.evaluation.baselines import selection_note
from finetune.reporting.model_card import is_native
from finetune.reporting.rendering import render
from finetune.runtime.files import write_text
from finetune.training.environment import RunOutcome, again_command, predict_command

if TYPE_CHECKING:
    from finetune.training.trainer import FitResult


def write_run_readme(
    config: TrainConfig, result: FitResult, outcome: RunOutcome, command: str, *, repeatable: bool
) -> None:
    """Write the README.md of a run folder.

    ``command`` trained the run; ``repeatable`` says that its settings and their data suffice to
    train the model again.
    """
    values = settings(replace(config, resume=False))
    defaults = settings(type(config)())
    text = render(
        "run_readme.md",
        result=result,
        model=config.init_from or config.model or "a new encoder",
        data=config.data,
        validation=config.validation,
        selection_note=selection_note(result.metrics, config.validation),
        changed={name: value for name, value in values.items() if value != defaults[name]},
        about=config.description,
        native=is_native(result.task.name, values),
        baselines=outcome.baselines,
        degenerate=outcome.degenerate,
        positive=outcome.positive,
        train_command=command,
        again=again_command(result.folder) if repeatable else "",
        predict_command=predict_command(
            result.folder, result.task.name, outcome.pairs, outcome.mask
        ),
    )
    write_text(result.folder / "README.md", text)
