"""Run the tasks of a suite in turn, each with its seeds; the same command continues."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from finetune.cli.output import print_tables, show
from finetune.cli.train import announce, resumable, train_once
from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.data.json_files import read_object
from finetune.reporting.environment import command_line
from finetune.reporting.html import report_run
from finetune.runtime.files import is_free
from finetune.runtime.launch import is_main_process, on_all_processes, on_main_process
from finetune.runtime.processes import num_processes
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import Interrupted
from finetune.runtime.terminal import error_line
from finetune.suites.commands import LoadedSuite
from finetune.suites.definition import RESULTS_FILE, SuiteTask
from finetune.suites.results import COLUMNS, write_results
from finetune.tasks import load_task
from finetune.training.optimizer import Schedule
from finetune.training.repeated_runs import plan_seeds, seed_configs, state_of
from finetune.training.run_folder import hold, require_own, require_writable
from finetune.types import UserError, abbreviated, quantity

PLAN = ("task", "recipe", "model", "starts from", "data", "train", "steps", "finished")


@dataclass(frozen=True)
class PlannedTask:
    """A task of a suite with the settings of its first seed.

    ``encoder`` is the encoder that training begins with, or that the first of its starts begins
    with.
    """

    task: SuiteTask
    config: TrainConfig
    recipe_run: RecipeRun
    encoder: str | None

    @property
    def folder(self) -> Path:
        """The folder of all seeds."""
        return Path(self.config.out or "")

    @property
    def start(self) -> Path | None:
        """The folder of the seeds that its seeds start from."""
        return None if self.task.start is None else Path(self.config.init_from or "")

    def row(self, num_seeds: int) -> list[object]:
        """Make the row of the plan; UserError if settings, data and runs are inconsistent."""
        configs = seed_configs(self.config, num_seeds, self.folder, self.start)
        states = [state_of(config) for config in configs.values()]
        config, recipe = self.config, self.task.recipe
        if self.start is not None:  # which has perhaps not been trained
            config = replace(config, init_from=None, model=self.encoder)
        _, data = load_task(config, recipe.task)
        self.recipe_run.check_splits(data.scored_splits)
        num_examples = len(data.splits["train"])
        steps = Schedule.from_config(config, num_examples).num_steps
        names = (recipe.name, self.encoder or "", self.task.start or "", config.data)
        finished = f"{states.count('finished')} of {len(states)} runs"
        return [self.task.name, *names, num_examples, steps, finished]


def run_suite(command: LoadedSuite) -> None:
    """Train the tasks of a suite, print the table, and write it; UserError if a task failed."""
    plan = plan_tasks(command)
    failures: dict[str, str] = {}
    results = partial(write_results, command.loaded, command.folder, failures)
    on_main_process(lambda: _check_folder(command))
    if command.dry_run:
        return print_tables(command.format, ("", PLAN, plan_rows(plan, command.seeds)))
    with hold(command.folder), resumable(Reporter(quiet=not is_main_process()), command_line):
        on_all_processes(lambda: plan_rows(plan, command.seeds))
        on_main_process(results)
        for planned in plan:
            name = planned.task.name
            if planned.task.start in failures:
                failures[name] = f"not run, because {planned.task.start} failed"
                continue
            try:
                _train(planned, command.seeds)
            except Exception as error:
                if isinstance(error, Interrupted) or num_processes() > 1:  # cannot agree to go on
                    raise
                line, _ = error_line(error)
                show(f"{name}: {line}", error=True)
                failures[name] = line.removeprefix("error: ")
            if is_main_process():
                results()
    if is_main_process():
        rows, notes = results()
        title = command.loaded.title if command.format == "table" else ""
        print_tables(command.format, (title, COLUMNS, rows))
        for line in (*notes, f"the table: {command.folder / 'suite.md'}"):
            command.note(line)
        if failures:
            raise UserError(
                f"{len(failures)} of {quantity(len(plan), 'data set')} failed "
                f"({abbreviated(failures)}); the reasons are above. The same command runs them "
                "again and keeps the others."
            )
    return None


def plan_tasks(command: LoadedSuite) -> list[PlannedTask]:
    """List the tasks with the settings of their runs, in order."""
    plan: dict[str, PlannedTask] = {}
    for name, task_command in command.commands.items():
        task = command.loaded.tasks[name]
        config = replace(task_command.config, out=str(command.folder / name))
        encoder = config.model
        if task.start is not None:
            chosen = command.model is not None or "model" in task.recipe.settings
            model = config.model if chosen else None
            encoder = model or plan[task.start].encoder
            config = replace(config, init_from=str(plan[task.start].folder), model=model)
        plan[name] = PlannedTask(task, config, task_command.recipe_run, encoder)
    return list(plan.values())


def plan_rows(plan: Sequence[PlannedTask], num_seeds: int) -> list[list[object]]:
    """Make the rows of the plan; UserError with all tasks that would fail, and why."""
    rows, names = list[list[object]](), dict[str, list[str]]()
    for planned in plan:
        try:
            rows.append(planned.row(num_seeds))
        except UserError as error:
            problem = str(error).removeprefix(f"{planned.folder}{os.sep}")  # the same of all tasks
            names.setdefault(problem, []).append(planned.task.name)
    if names:
        problems = (f"{', '.join(tasks)}: {problem}" for problem, tasks in names.items())
        raise UserError(" ".join(problems))
    return rows


def _check_folder(command: LoadedSuite) -> None:
    folder, name = command.folder, command.loaded.path.name
    require_writable(folder)
    saved = read_object(folder / RESULTS_FILE) if (folder / RESULTS_FILE).is_file() else {}
    if saved and Path(saved.get("suite") or "").name != name:
        raise UserError(f"--out {folder} holds runs of {saved.get('suite')}, not of {name}.")
    require_own(folder, bool(saved) or is_free(folder))


def _train(planned: PlannedTask, num_seeds: int) -> None:
    name, recipe_run = planned.task.recipe.task, planned.recipe_run
    runs = plan_seeds(name, planned.config, num_seeds, planned.folder, recipe_run, planned.start)
    train_one = partial(train_once, name, command_line, recipe_run=recipe_run, repeatable=True)
    runs.train(train_one, partial(announce, "seed", error=True))
    if is_main_process():
        report_run(planned.folder)
