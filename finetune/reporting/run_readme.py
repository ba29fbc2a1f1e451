"""The README.md of a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from finetune.config.tasks import TrainConfig, settings
from finetune.reporting.model_card import is_native
from finetune.reporting.rendering import render
from finetune.training.environment import command_line, predict_command


def write_run_readme(
    folder: Path,
    *,
    task: str,
    config: TrainConfig,
    labels: Sequence[str],
    pairs: bool | None,
    metrics: Mapping[str, Mapping[str, float]],
    baselines: Mapping[str, str],
    notes: Sequence[str],
    best_step: int,
    num_steps: int,
) -> None:
    """Write the run folder's README.md.

    ``metrics`` has scores by split and name, ``baselines`` a sentence for each split, and ``notes``
    the notes on the data. ``pairs`` is True for a model that reads pairs of texts.
    """
    values = settings(config)
    text = render(
        "run_readme.md",
        folder=folder,
        task=task,
        model=config.init_from or config.model,
        data=config.data,
        settings=values,
        native=is_native(task, values),
        labels=labels,
        metrics=metrics,
        baselines=baselines,
        notes=notes,
        best_step=best_step,
        num_steps=num_steps,
        train_command=command_line(),
        predict_command=predict_command(folder, pairs),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
