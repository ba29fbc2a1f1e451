"""Training, or a search, in one call: from data to a folder with the model, scores and report.

>>> import finetune
>>> run = finetune.train("classify", data=rows, model="roberta-base")  # doctest: +SKIP
>>> run.metrics["test"]["accuracy"], run.predictor.predict(["What a film."])  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from finetune.config.recipes import MultitaskRecipe, RecipeRun
from finetune.config.tasks import ADVICE, CONFIGS, IN_MEMORY, OTHER_NAMES, TrainConfig
from finetune.config.values import require_count
from finetune.data import Dataset
from finetune.evaluation.prediction_types import DEFAULT_METRICS
from finetune.evaluation.runs import RunFolder, write_run_checksums
from finetune.inference.predictor import Predictor
from finetune.registry import install_command
from finetune.reporting.environment import RunOutcome, environment, saved_outcome, write_environment
from finetune.reporting.html import report_run, write_report
from finetune.reporting.many_runs import write_best_recipe, write_search
from finetune.reporting.model_card import write_run_readme
from finetune.runtime.device import resolve_precision
from finetune.runtime.files import lock_folder
from finetune.runtime.launch import on_all_processes, on_main_process
from finetune.runtime.memory import memory_kept
from finetune.runtime.processes import require_one_process
from finetune.runtime.progress import Reporter, shown_by
from finetune.tasks import load_task
from finetune.tasks.base import Task
from finetune.training.callbacks import Callback
from finetune.training.distillation import (
    Distillation,
    Measured,
    fit_student,
    load_student,
    load_teacher,
    measure,
    new_student,
)
from finetune.training.loss import LossFunction
from finetune.training.multitask import with_planned_steps
from finetune.training.run_folder import RunWriter, hold, open_run, pin_model, with_run_folder
from finetune.training.scoring import FitResult
from finetune.training.trainer import fit, fit_together
from finetune.types import UserError, abbreviated, did_you_mean, quantity

if TYPE_CHECKING:
    from finetune.training.search import Search


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its folder, its scores, and how they compare with the baselines."""

    folder: Path
    """The run folder, with the model, predictions, README and report."""
    metrics: Mapping[str, Mapping[str, float]]
    """Scores by split and name."""
    metric: str
    """The metric that selects the model."""
    outcome: RunOutcome
    """Baselines, and why the run is degenerate if it is."""
    notes: tuple[str, ...] = ()
    """Notes on the data and the training."""
    summary: tuple[str, ...] = ()
    """The main score with its interval, and the scores of classes, as text."""

    def __repr__(self) -> str:
        scores = "".join(
            f", {split} {self.metric} {values[self.metric]:.4f}"
            for split, values in self.metrics.items()
            if self.metric in values and not split.endswith("_without_leaks")
        )
        return f"TrainedRun({str(self.folder)!r}{scores})"

    @cached_property
    def predictor(self) -> Predictor:
        """The best model, loaded for prediction."""

        return Predictor(self.folder)

    def report(self, split: str | None = None) -> ReportPage:
        """Write the report again, by default of the test split, and return it for a notebook."""
        path, _ = write_report([self.folder], split=split)
        return ReportPage(path)


@dataclass(frozen=True)
class ReportPage:
    """A report on a run; notebooks show it in place."""

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'


def train(
    task: str | TrainConfig,
    data: Any = None,
    model: str | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    loss: LossFunction | str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> TrainedRun:
    """Train a model, keep the best one, score it, and write a report.

    It sets the random state of Python, NumPy and torch for good, as transformers' Trainer does.

    Args:
        task: The name of a task (``"classify"``, ``"nli"``, ``"tag"``, ``"ner"``, …), or its
            settings, such as ``TagConfig(model="roberta-base", epochs=3)``.
        data: A folder, a file, or the id of a data set on the hub. Or data in memory: a
            ``datasets.DatasetDict`` or ``Dataset``, a data frame of pandas or polars, a list of
            dicts, a dict of these by split, or a ``finetune.Dataset``. Without a validation split,
            a part of train is held out. None takes the data that the settings name.
        model: Hub id, short name or folder of the encoder.
        callbacks: Objects to notify of steps, evaluations and saves (``finetune.Callback``).
        metrics: Custom metrics by name: functions of gold and predictions, or
            ``finetune.CustomMetric``. ``metric="name"`` selects the model by one.
        loss: A custom loss: a function of the logits and the targets of a batch that returns the
            sum of its losses and the number to divide it by. Text is the setting of this name,
            such as ``"focal"``.
        overwrite: Replace the run in ``out``, if there is one: its model is deleted first.
        quiet: Show no progress.
        settings: Settings of the task, such as ``batch_size=16``; they replace those of ``task``.
            ``out`` names the folder; the default is a new one in ``runs``.

    Returns:
        The run, with its folder, scores and predictor, on every process.

    Raises:
        UserError: A setting is unknown or illegal, or data, settings and model do not fit.
        Interrupted: After Ctrl-C; the call with ``out`` and ``resume=True`` continues.

    Examples:
        >>> config = finetune.TagConfig(model="roberta-base", epochs=3)  # doctest: +SKIP
        >>> run = finetune.train(config, "conll2003")  # doctest: +SKIP
        >>> run.metrics["test"]["span_f1_conll"]  # doctest: +SKIP
        0.91
        >>> run = finetune.train("tag", "conll2003", "roberta-base", epochs=3)  # doctest: +SKIP
    """
    if isinstance(loss, str):
        settings["loss"], loss = loss, None
    name, config, named, data = _config(task, data, {"model": model, **settings})
    if overwrite and config.resume:
        raise UserError("overwrite=True replaces a run and resume=True continues it: give one.")
    if config.out is not None and not config.resume:
        out = Path(config.out)
        on_main_process(lambda: _require_new(out, overwrite))
    config, reporter = with_run_folder(config, name), Reporter(quiet=quiet)
    run = train_once(
        name,
        config,
        data,
        command=_call("train", name, named),
        reporter=reporter,
        callbacks=callbacks,
        metrics=metrics,
        loss=loss,
    )
    if run is not None:
        for line in (*run.summary, *run.outcome.warnings, f"Everything is in {run.folder}."):
            reporter.log(line)
    finished: TrainedRun = on_main_process(lambda: run)
    return finished


def _require_new(out: Path, overwrite: bool) -> None:
    models = [out / name for name in ("best", "last", "checkpoints") if (out / name).exists()]
    if not models or not RunFolder.open(out).is_run:
        return
    if not overwrite:
        raise UserError(
            f"out={str(out)!r} holds a run already: add overwrite=True to replace it, or "
            "resume=True to continue it. Without out, each call makes a new folder."
        )
    with lock_folder(out):
        for folder in models:
            shutil.rmtree(folder)


def _config(
    task: str | TrainConfig, data: Any, settings: Mapping[str, Any]
) -> tuple[str, TrainConfig, dict[str, Any], Any]:
    in_memory = data is not None and not isinstance(data, str | Path)
    named = {"data": IN_MEMORY if in_memory else data and str(data), **settings}
    named = {name: value for name, value in named.items() if value is not None}
    if isinstance(task, TrainConfig):
        names = {config_class: name for name, config_class in CONFIGS.items()}
        if type(task) not in names:
            classes = ", ".join(f"finetune.{config_class.__name__}" for config_class in names)
            raise UserError(f"{type(task).__name__} has no task: use {classes}.")
        name, config_class, defaults = names[type(task)], type(task), vars(type(task)())
        changed = {k: v for k, v in vars(task).items() if v != defaults[k]}
    else:
        name, config_class, changed = task, _config_class(task), {}
    settings = _settings(config_class, named)
    named = {**settings, **changed, **settings}  # in the order of the call
    return name, config_class(**named), named, data if in_memory else None


def _settings(config_class: type[TrainConfig], named: Mapping[str, Any]) -> dict[str, Any]:
    if twice := [other for other, name in OTHER_NAMES.items() if {other, name} <= {*named}]:
        names = f"{twice[0]} and {OTHER_NAMES[twice[0]]}"
        raise UserError(f"{names} are one setting: give one of them.")
    legal = [field.name for field in dataclasses.fields(config_class)]
    settings = {OTHER_NAMES.get(setting, setting): value for setting, value in named.items()}
    if unknown := settings.keys() - set(legal):
        setting = min(unknown)
        problem = f"{config_class.description.name} has no setting {setting!r}"
        if setting in ADVICE:
            raise UserError(f"{problem}: {ADVICE[setting]} (options are settings in Python).")
        hint = did_you_mean(setting, legal)
        raise UserError(f"{problem}.{hint} Settings are {abbreviated(legal, 100)}.")
    return settings


def _config_class(task: Any) -> type[TrainConfig]:
    if not isinstance(task, str):
        raise UserError(
            f"the task must be settings such as finetune.TagConfig(), or one of "
            f"{', '.join(CONFIGS)}, not {task!r:.60}."
        )
    if task not in CONFIGS:
        hint = did_you_mean(task, CONFIGS)
        raise UserError(f"unknown task {task!r}.{hint} Tasks are {', '.join(CONFIGS)}.")
    return CONFIGS[task]


def _call(function: str, task: str, settings: Mapping[str, Any]) -> str:
    named = {name: "…" if value == IN_MEMORY else repr(value) for name, value in settings.items()}
    arguments = "".join(f", {name}={value}" for name, value in named.items())
    return f"finetune.{function}({task!r}{arguments})"


def train_once(
    task_name: str,
    config: TrainConfig,
    data: Any = None,
    *,
    command: str,
    folder: RunWriter | None = None,
    recipe_run: RecipeRun | None = None,
    repeatable: bool | None = None,
    reporter: Reporter | None = None,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    loss: LossFunction | None = None,
) -> TrainedRun | None:
    """Train in the folder ``config.out``, and write its README and report.

    Args:
        task_name: The task.
        config: The settings.
        data: Data in place of ``config.data``.
        command: The command or call that trains this run, for its README.
        folder: The run folder, opened; by default ``config.out``.
        recipe_run: The recipe of the settings.
        repeatable: Whether the settings alone train the run again. By default they do unless
            ``data``, ``callbacks``, ``metrics`` or ``loss`` are given.
        reporter: Shows the progress.
        callbacks, metrics, loss: As in ``train``.

    Returns:
        The run; None on all processes but the main one.
    """
    if repeatable is None:
        repeatable = data is None and not metrics and not callbacks and loss is None
    with _opened(config, reporter, folder) as (folder, reporter):
        task, dataset = on_all_processes(lambda: load_task(config, task_name, data))
        if recipe_run:
            recipe_run.check_splits(dataset.scored_splits)
        for line in describe(task, dataset):
            reporter.log(line, once=True)
        result = fit(
            task, dataset, config, folder, reporter, callbacks=callbacks, metrics=metrics, loss=loss
        )
        if not folder.accelerator.is_main_process:
            return None
        return _finished(dataset, config, result, folder, command, recipe_run, repeatable)


@contextlib.contextmanager
def _opened(
    config: TrainConfig, reporter: Reporter | None, folder: RunWriter | None = None
) -> Iterator[tuple[RunWriter, Reporter]]:
    with contextlib.ExitStack() as opened:
        folder = folder or opened.enter_context(open_run(config))
        is_main = folder.accelerator.is_main_process
        if reporter is None or not is_main:
            reporter = Reporter(quiet=not is_main)
        opened.enter_context(memory_kept())
        opened.enter_context(shown_by(reporter))
        yield folder, reporter


@dataclass(frozen=True)
class FinishedSearch:
    """A search: its trials, and the best of them as a run and a recipe."""

    search: Search
    """The search, with all trials."""
    run: TrainedRun
    """The best trial, scored on test."""
    recipe: Path
    """The recipe of the best trial, for ``finetune run``."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The best settings of the space; empty if the settings of the call were best."""
        return self.search.best.params if self.search.best else {}


def search(
    task: str | TrainConfig,
    data: Any = None,
    model: str | None = None,
    *,
    space: Mapping[str, Any] | None = None,
    trials: int = 20,
    minutes: float | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    quiet: bool = False,
    command: str | None = None,
    reporter: Reporter | None = None,
    **settings: Any,
) -> FinishedSearch:
    """Search for the settings with the best validation score, then score them on test.

    Args:
        task: The settings of a task, or its name with ``settings``, as in ``train``.
        data: As in ``train``. The test split is not read before all trials have ended.
        model: Hub id, short name or folder of the encoder.
        space: The values to try by setting: a list of values, or text such as
            ``"1e-5:1e-3:log"``; by default learning rate, batch size, warm-up and weight decay.
        trials: The number of trials. The first has the settings of the call.
        minutes: Start no new trial after this total time.
        metrics: Custom metrics by name, as in ``train``.
        quiet: Show no progress.
        command: The command or call of the search, for its README.
        reporter: Shows the progress.
        settings: The other settings, the same for all trials. The call with the same ``out``
            continues a search.

    Returns:
        The trials, and the best of them as a run that is scored on test.

    Raises:
        UserError: A setting or a value is illegal, or no trial has a score.
        Interrupted: After Ctrl-C; the call with the same ``out`` continues.

    Examples:
        >>> found = finetune.search("classify", data="reviews/", trials=20)  # doctest: +SKIP
        >>> found.settings, found.run.metrics["test"]["accuracy"]  # doctest: +SKIP
        ({'lr': 4e-05, 'batch_size': 16, 'warmup': 0.1, 'weight_decay': 0.01}, 0.93)
    """
    name, config, named, data = _config(task, data, {"model": model, **settings})
    command = command or _call("search", name, named)
    reporter = reporter or Reporter(quiet=quiet)
    require_one_process("search")
    if not find_spec("optuna"):
        raise UserError(f"search needs optuna: {install_command('optuna')}.")
    from finetune.training.search import Search, search_folder

    folder = search_folder(config, name, trials, minutes)
    with hold(folder):
        search = Search(folder, name, config, space, data, metrics=metrics, reporter=reporter)
        for line in describe(*search.loaded):
            reporter.log(line, once=True)
        search.run(trials, minutes, lambda: write_search(search))
        best = search.best_config()
        # The trial resumes after its last step, now with the test split, and takes no further step.
        with open_run(best, search.accelerator) as writer:
            pin_model(writer.run, best)
            if writer.run.is_finished and writer.run.require_intact() is None:
                metric, outcome = search.metric, saved_outcome(writer.run)
                run = TrainedRun(writer.path, writer.run.metrics, metric, outcome)
            else:
                finished = train_once(
                    name,
                    replace(best, resume=True),
                    data,
                    command=command,
                    folder=writer,
                    reporter=reporter,
                    metrics=metrics,
                )
                assert finished is not None, "this is the main process"
                run = finished
            shutil.rmtree(writer.last, ignore_errors=True)
        recipe = write_best_recipe(search, command)
        write_search(search, run.metrics)
        return FinishedSearch(search, run, recipe)


def train_multitask(
    recipe: MultitaskRecipe, out: Path, *, command: str, reporter: Reporter | None = None
) -> dict[str, TrainedRun]:
    """Train several tasks on one encoder; each has a run folder in ``out``, with its name.

    ``train_once`` explains the arguments. Returns the runs by name on the main process, and no
    runs on the others.
    """
    first = replace(next(iter(recipe.tasks.values()))[1], out=str(out))
    with _opened(first, reporter) as (folder, reporter):
        loaded = on_all_processes(
            lambda: {
                name: (*load_task(config, task), config)
                for name, (task, config) in recipe.tasks.items()
            }
        )
        parts, proportions = with_planned_steps(loaded, out, recipe.alpha)
        for name, (task, data, config) in parts.items():
            for line in describe(task, data):
                reporter.log(f"{name}: {line}")
            steps = quantity(config.steps or 0, "step")
            reporter.log(f"{name}: {steps}, {proportions[name]:.1%} of all")
        results = fit_together(parts, folder, reporter)
        if not folder.accelerator.is_main_process:
            return {}
        return {
            name: _finished(*parts[name][1:], result, folder, command)
            for name, result in results.items()
        }


@dataclass(frozen=True)
class DistilledRun:
    """A finished student, and how it compares."""

    run: TrainedRun
    """The run of the student."""
    metric: str
    """The metric of ``models``."""
    split: str
    """The split of the scores: test, else validation; empty if neither has gold."""
    models: Mapping[str, Measured]
    """Score, size and speed of ``teacher`` and ``student``."""


def distill(
    teacher: str | Path,
    model: str | None = None,
    *,
    layers: int | None = None,
    data: Any = None,
    distillation: Distillation | None = None,
    quiet: bool = False,
    command: str = "finetune.distill",
    reporter: Reporter | None = None,
    **settings: Any,
) -> DistilledRun:
    """Train a small student on the outputs of a trained model, and compare them.

    Args:
        teacher: The run folder of a model.
        model: The encoder of the student.
        layers: In place of ``model``, the number of layers of the teacher to start with.
        data: As in ``train``; by default the data of the teacher.
        distillation: The losses, and unlabeled text.
        quiet: Show no progress.
        command: The command that trains this run, for its README.
        reporter: Shows the progress.
        settings: Settings of the run, such as ``epochs``. The teacher gives all others that
            describe the task and not its training.

    Returns:
        The run of the student, and how student and teacher compare.

    Raises:
        UserError: Teacher, student and data do not fit together.
        Interrupted: After Ctrl-C; the call with ``out`` and ``resume=True`` continues.

    Examples:
        >>> small = finetune.distill("runs/large", layers=4, out="runs/small")  # doctest: +SKIP
        >>> small.models["student"].score  # doctest: +SKIP
        0.92
    """
    if (model is None) == (layers is None):
        raise UserError("distill needs either --model SMALL or --layers N of the teacher.")
    if layers is not None:
        require_count("--layers", layers)
    require_one_process("distill")
    reporter = reporter or Reporter(quiet=quiet)
    loaded = load_teacher(teacher)
    settings = _settings(type(loaded.task.state.config), settings)
    config, data = new_student(loaded, model, data, settings)
    with _opened(config, reporter) as (folder, reporter):
        task, dataset = load_student(loaded, config, data)
        for line in describe(task, dataset):
            reporter.log(line, once=True)
        result = fit_student(
            task, dataset, config, folder, reporter, loaded, distillation or Distillation(), layers
        )
        run = _finished(dataset, config, result, folder, command)
    split = next((name for name in ("test", *run.metrics) if name in run.metrics), "")
    metric = (
        DEFAULT_METRICS[task.state.prediction_type] if config.custom_metrics else task.state.metric
    )
    folders = {"teacher": Path(teacher), "student": run.folder}
    models = {}
    if split:
        models = {
            name: measure(model_folder, dataset.splits[split], metric)
            for name, model_folder in folders.items()
        }
    return DistilledRun(run, metric, split, models)


def _finished(
    dataset: Dataset,
    config: TrainConfig,
    result: FitResult,
    folder: RunWriter,
    command: str,
    recipe_run: RecipeRun | None = None,
    repeatable: bool = False,
) -> TrainedRun:
    device, threads = folder.accelerator.device, torch.get_num_threads()
    machine = environment(device.type, resolve_precision(config, device), threads)
    outcome = write_environment(result, config, dataset, recipe_run, command, machine)
    summary = report_run(result.folder)
    write_run_checksums(result.folder)
    repeatable = repeatable and not (config.custom_metrics or config.custom_loss)
    # last: now the run is finished
    write_run_readme(config, result, outcome, command, repeatable=repeatable)
    notes, metric = tuple(result.notes), result.task.state.metric
    return TrainedRun(result.folder, result.metrics, metric, outcome, notes, tuple(summary))


def describe(task: Task, data: Dataset) -> list[str]:
    """Describe the data in lines: examples by split, labels if there are any, and notes."""
    counts = ", ".join(f"{split} {len(rows):,}" for split, rows in data.splits.items())
    labels = task.state.labels
    names = (repr(n) if ", " in n or not n.isprintable() else n for n in labels)
    listed = f"labels ({len(labels)}): {abbreviated(names, 20)}"
    named = labels and not task.description.predicts
    data_line = f"data: {task.state.config.data}: {counts}"
    return [data_line, *([listed] if named else []), *task.notes(data)]
