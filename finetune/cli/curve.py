"""Training on growing parts of the data: `finetune TASK --sizes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from finetune.cli.output import print_table, show

if TYPE_CHECKING:
    from finetune.config.tasks import TrainConfig

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
    from finetune.reporting.learning_curve import curve_of, write_curve
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
    curve = curve_of(results, sizes, config)
    print_table(*curve.table())
    for line in curve.lines():
        show(line)
    for name, reasons in results.degenerate.items():
        show(f"{name} is degenerate: {'; '.join(reasons)}")
    page = write_curve(folder, curve)
    show(f"Everything is in {folder}: {page.name} is the chart.")
