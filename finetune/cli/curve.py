"""Training on growing parts of the data: `finetune TASK --sizes`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from finetune.cli.output import print_table, show
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.config.tasks import TrainConfig
    from finetune.evaluation.learning_curve import LearningCurve
    from finetune.training.repeated_runs import RunResults

RUNS_OF_A_SIZE = 3
"""Number of runs of each size, if --seeds is unset."""


def train_on_sizes(
    task: str,
    config: TrainConfig,
    sizes: Sequence[int],
    number: int | None,
    train_once: Callable[..., Any],
    on_start: Callable[..., None],
) -> None:
    """Train the runs that are not finished, print the curve, and write its page.

    Args:
        task: The task.
        config: The settings of all runs.
        sizes: Numbers of training examples; none are all, and four times the half of the last.
        number: Number of runs of each size.
        train_once: Trains one run.
        on_start: Called before each run.
    """
    from finetune.reporting.learning_curve import write_curve
    from finetune.training.repeated_runs import runs_folder, train_sizes

    folder = runs_folder(config, task, "curve")
    results, sizes = train_sizes(
        task,
        config,
        tuple(sizes),
        number or RUNS_OF_A_SIZE,
        folder,
        train_once,
        on_start=partial(on_start, "size"),
    )
    curve = _curve(results, sizes, config)
    print_table(*curve.table())
    for line in curve.lines():
        show(line)
    for name, reasons in results.degenerate.items():
        show(f"{name} is degenerate: {'; '.join(reasons)}")
    page = write_curve(folder, curve)
    show(f"Everything is in {folder}: {page.name} is the chart.")


def _curve(results: RunResults, sizes: Sequence[int], config: TrainConfig) -> LearningCurve:
    """Return the curve of the scores on test, else on validation."""
    from finetune.evaluation.custom_metrics import custom_metrics
    from finetune.evaluation.kinds import DEFAULT_METRICS
    from finetune.evaluation.learning_curve import learning_curve

    finished = list(results.metrics.items())
    if not finished:
        raise UserError("--sizes: no run has a score: all diverged.")
    scored = finished[0][1]
    split = next((name for name in ("test", "validation", *scored) if name in scored), None)
    if split is None:
        raise UserError("--sizes: no run has a score: no split but train has labels.")
    names = list(finished[0][1][split])
    metric = config.metric or next((m for m in DEFAULT_METRICS.values() if m in names), names[0])
    scores: dict[int, list[float]] = {}
    for name, metrics in finished:
        if math.isfinite(value := metrics[split].get(metric, math.nan)):
            scores.setdefault(int(name.split("-")[1]), []).append(value)
    if not scores:
        raise UserError(f"--sizes: no run has a finite {metric} on {split}.")
    own = custom_metrics(config.custom_metrics, {}).get(metric)
    lower = None if own is None else own.lower_is_better
    return learning_curve(metric, split, scores, [*sizes, 2 * sizes[-1], 4 * sizes[-1]], lower)
