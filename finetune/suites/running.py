"""Run the members of a suite in turn, each with its seeds; the same command continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from finetune.cli.output import error_line, print_tables, show
from finetune.cli.train import report_run, resumable, train_once
from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.data.json_files import read_object
from finetune.reporting.environment import command_line
from finetune.runtime.files import is_free
from finetune.runtime.launch import is_main_process, on_all_processes, on_main_process
from finetune.runtime.processes import num_processes
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import Interrupted
from finetune.suites.commands import LoadedSuite
from finetune.suites.definition import RESULTS_FILE, Member
from finetune.suites.results import SuiteResults
from finetune.tasks import load_task
from finetune.training.optimizer import Schedule
from finetune.training.repeated_runs import seed_configs, state_of, train_seeds
from finetune.training.run_folder import hold, require_own, require_writable
from finetune.types import UserError, abbreviated, quantity


@dataclass(frozen=True)
class PlannedMember:
    """A member with the settings of its runs."""

    member: Member
    config: TrainConfig
    """The settings of the first seed."""
    folder: Path
    """The folder of all seeds."""
    recipe_run: RecipeRun
    encoder: str | None
    """The encoder that training begins with, or that the first of its starts begins with."""
    start: Path | None
    """The folder of the seeds that its seeds start from."""

    def row(self, num_seeds: int) -> list[object]:
        """Make the row of the plan; UserError if settings, data and runs are inconsistent."""
        configs = seed_configs(self.config, num_seeds, self.folder, self.start)
        states = [state_of(config) for config in configs.values()]
        config = self.config
        if self.start is not None:  # which has perhaps not been trained
            config = replace(config, init_from=None, model=self.encoder)
        _, data = load_task(config, self.member.recipe.task)
        self.recipe_run.check_splits(data.scored_splits)
        num_examples = len(data.splits["train"])
        steps = Schedule.from_config(config, num_examples).num_steps
        names = [self.member.recipe.name, self.encoder or "", self.member.start or "", config.data]
        finished = f"{states.count('finished')} of {len(states)} runs"
        return [self.member.name, *names, num_examples, steps, finished]


PLAN = ("member", "recipe", "model", "starts from", "data", "train", "steps", "finished")


def run_suite(command: LoadedSuite) -> None:
    """Train the members of a suite, print the table, and write it; UserError if a member failed."""
    plan = plan_members(command)
    on_main_process(lambda: _check_folder(command))
    if command.dry_run:
        return print_tables(command.format, ("", PLAN, check_members(plan, command.seeds)))
    failures: dict[str, str] = {}
    with hold(command.folder), resumable(Reporter(quiet=not is_main_process()), command_line):
        on_all_processes(lambda: check_members(plan, command.seeds))
        on_main_process(SuiteResults(command.loaded, command.folder, failures).write)
        for planned in plan:
            _train(planned, command, failures)
    if is_main_process():
        results = SuiteResults(command.loaded, command.folder, failures)
        results.write()
        results.show(command)
        if failures:
            raise UserError(
                f"{len(failures)} of {quantity(len(plan), 'data set')} failed "
                f"({abbreviated(failures)}); the reasons are above. The same command runs them "
                "again and keeps the others."
            )
    return None


def plan_members(command: LoadedSuite) -> list[PlannedMember]:
    """List the tasks with the settings of their runs, in order."""
    plan: dict[str, PlannedMember] = {}
    for name, task_command in command.commands.items():
        member = command.loaded.members[name]
        recipe = member.recipe.smoke_recipe() if command.smoke else member.recipe
        recipe_run = RecipeRun.of(recipe, task_command.config, member.recipe.config())
        folder = command.folder / name
        config = replace(task_command.config, out=str(folder))
        encoder, start = config.model, None
        if member.start is not None:
            start = plan[member.start].folder
            chosen = command.model is not None or "model" in member.recipe.settings
            model = config.model if chosen else None
            encoder = model or plan[member.start].encoder
            config = replace(config, init_from=str(start), model=model)
        plan[name] = PlannedMember(member, config, folder, recipe_run, encoder, start)
    return list(plan.values())


def check_members(plan: Sequence[PlannedMember], num_seeds: int) -> list[list[object]]:
    """Make the rows of the plan; UserError with all tasks that would fail, and why."""
    rows: list[list[object]] = []
    names: dict[str, list[str]] = {}
    for planned in plan:
        try:
            rows.append(planned.row(num_seeds))
        except UserError as error:
            names.setdefault(str(error), []).append(planned.member.name)
    if names:
        problems = (f"{', '.join(members)}: {problem}" for problem, members in names.items())
        raise UserError(" ".join(problems))
    return rows


def _check_folder(command: LoadedSuite) -> None:
    folder, name = command.folder, command.loaded.path.name
    require_writable(folder)
    saved = read_object(folder / RESULTS_FILE) if (folder / RESULTS_FILE).is_file() else {}
    if saved and Path(saved.get("suite") or "").name != name:
        raise UserError(f"--out {folder} holds runs of {saved.get('suite')}, not of {name}.")
    require_own(folder, bool(saved) or is_free(folder))


def _train(planned: PlannedMember, command: LoadedSuite, failures: dict[str, str]) -> None:
    name, recipe_run = planned.member.name, planned.recipe_run

    def announce(config: TrainConfig, finished: bool) -> None:
        if is_main_process():
            show(f"{name} seed {config.seed}{': finished: kept' if finished else ''}", error=True)

    if planned.member.start in failures:
        failures[name] = f"not run, because {planned.member.start} failed"
        return
    train_one = partial(train_once, planned.member.recipe.task, command_line)
    try:
        train_seeds(
            planned.member.recipe.task,
            planned.config,
            command.seeds,
            planned.folder,
            partial(train_one, recipe_run=recipe_run, repeatable=True),
            recipe_run=recipe_run,
            start=planned.start,
            on_start=announce,
        )
        if is_main_process():
            report_run(planned.folder)
            SuiteResults(command.loaded, command.folder, failures).write()
    except Exception as error:
        if isinstance(error, Interrupted) or num_processes() > 1:  # which could not agree to go on
            raise
        line, _ = error_line(error)
        show(f"{name}: {line}", error=True)
        failures[name] = line.removeprefix("error: ")
