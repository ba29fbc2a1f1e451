"""`finetune curve`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional, arg

from finetune.cli.command import Command
from finetune.cli.options import FormatOption
from finetune.cli.output import print_tables, quiet_libraries, show
from finetune.cli.train import TaskCommand, announce, require_unset, train_once
from finetune.config.values import require_count
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.config.tasks import TrainConfig
    from finetune.evaluation.learning_curve import LearningCurve
    from finetune.training.repeated_runs import RunResults


@dataclass(frozen=True, kw_only=True)
class CurveOptions(FormatOption):
    """Options of `finetune curve`, besides the options of the task."""

    sizes: tuple[int, ...] = ()
    """Numbers of training examples. Unset are all, and four times the half of the last."""
    runs: int = 3
    """Number of runs of each size, with seeds from --seed on. Each seed has its own subsets, the
    smaller within the larger."""


@dataclass(frozen=True, kw_only=True)
class Curve(CurveOptions, Command):
    """Train on growing parts of the data, and estimate the score with more data.

    Examples:
        finetune curve classify --model minilm --data my-data
        finetune curve tag --data conll2003 --sizes 500 1000 2000 --runs 5
    """

    task: Annotated[Positional[str], arg(metavar="TASK")]
    """The task; all options of `finetune TASK` apply too (`finetune TASK --help`)."""

    @property
    def trains(self) -> bool:
        """True: models are trained."""
        return True

    def run(self) -> None:
        """Raise UserError: ``parse_curve`` replaces this command where TASK is one."""
        raise UserError(f"curve: {self.task!r} is no task: write finetune curve classify …")


@dataclass(frozen=True, kw_only=True)
class TaskCurve(Curve):
    """The curve of a task."""

    training: TaskCommand

    def run(self) -> None:
        """Train the runs that are not finished, print the curve, and write its page."""
        command, config = self.training, self.training.config
        require_unset("curve", command)
        require_count("--runs", self.runs)
        quiet_libraries()
        from finetune.reporting.learning_curve import write_curve
        from finetune.training.environment import command_line
        from finetune.training.repeated_runs import runs_folder, train_sizes

        folder = runs_folder(config, self.task, "curve")
        results, sizes = train_sizes(
            self.task,
            config,
            self.sizes,
            self.runs,
            folder,
            partial(train_once, self.task, command_line, error=True),
            on_start=partial(announce, "size", error=True),
        )
        curve = _curve(results, sizes, config)
        columns, rows = curve.table()
        print_tables(self.format, ("", columns, rows))
        for line in curve.lines():
            show(line, error=self.format != "table")
        for name, reasons in results.degenerate.items():
            show(f"{name} is degenerate: {'; '.join(reasons)}", error=self.format != "table")
        page = write_curve(folder, curve)
        show(f"Everything is in {folder}: {page.name} is the chart.", error=True)


def parse_curve(task: str, rest: Sequence[str], parse: Callable[[Sequence[str]], Any]) -> TaskCurve:
    """Return the command; ``parse`` reads the arguments of the task."""
    options, others = tyro.cli(
        CurveOptions, args=rest, prog="finetune curve", return_unknown_args=True, add_help=False
    )
    return TaskCurve(task=task, training=parse([task, *others]), **vars(options))


def _curve(results: RunResults, sizes: Sequence[int], config: TrainConfig) -> LearningCurve:
    """Return the curve of the scores on test, else on validation."""
    from finetune.evaluation.custom_metrics import custom_metrics
    from finetune.evaluation.learning_curve import learning_curve
    from finetune.evaluation.metrics import DEFAULT_METRICS

    finished = list(results.metrics.items())
    if not finished:
        raise UserError("curve: no run has a score: all diverged.")
    scored = finished[0][1]
    split = next((name for name in ("test", "validation", *scored) if name in scored), None)
    if split is None:
        raise UserError("curve: no run has a score: no split but train has labels.")
    names = list(finished[0][1][split])
    metric = config.metric or next((m for m in DEFAULT_METRICS.values() if m in names), names[0])
    scores: dict[int, list[float]] = {}
    for name, metrics in finished:
        if math.isfinite(value := metrics[split].get(metric, math.nan)):
            scores.setdefault(int(name.split("-")[1]), []).append(value)
    if not scores:
        raise UserError(f"curve: no run has a finite {metric} on {split}.")
    own = custom_metrics(config.custom_metrics, {}).get(metric)
    lower = None if own is None else own.lower_is_better
    return learning_curve(metric, split, scores, [*sizes, 2 * sizes[-1], 4 * sizes[-1]], lower)
