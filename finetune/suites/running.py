"""Run the tasks of a suite in turn, each with its seeds; the same command continues.

The scores are one table, with the average as the benchmark defines it.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from finetune.cli.output import ScoreCell, print_tables, score_cell, show, table_text
from finetune.cli.train import announce, resumable, train_once
from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.data.json_files import read_object
from finetune.evaluation.reproduction import ScoreVerdict, recipe_verdicts, standard_deviation
from finetune.evaluation.runs import RunFolder
from finetune.reporting.environment import command_line
from finetune.reporting.html import report_run
from finetune.runtime.files import is_free, write_json, write_text
from finetune.runtime.launch import is_main_process, on_all_processes, on_main_process
from finetune.runtime.processes import num_processes
from finetune.runtime.progress import Reporter
from finetune.runtime.signals import Interrupted
from finetune.runtime.terminal import error_line
from finetune.suites.commands import LoadedSuite
from finetune.suites.definition import RESULTS_FILE, Suite, SuiteTask
from finetune.tasks import load_task
from finetune.training.optimizer import Schedule
from finetune.training.repeated_runs import plan_seeds, seed_configs, state_of
from finetune.training.run_folder import hold, require_own, require_writable
from finetune.types import UserError, abbreviated, quantity

PLAN = ("task", "recipe", "model", "starts from", "data", "train", "steps", "finished")
COLUMNS = ("data set", "split", "metric", "score", "seeds", "published", "verdict")


@dataclass(frozen=True)
class PlannedTask:
    """A task of a suite with the settings of its first seed."""

    task: SuiteTask
    config: TrainConfig
    recipe_run: RecipeRun
    encoder: str | None
    """The encoder that training begins with, or that the first of its starts begins with."""
    folder: Path
    """The folder of all seeds."""
    start: Path | None
    """The folder of the seeds that its seeds start from."""

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
        folder, start = command.folder / name, None
        config = replace(task_command.config, out=str(folder))
        encoder = config.model
        if task.start is not None:
            chosen = command.model is not None or "model" in task.recipe.settings
            model = config.model if chosen else None
            encoder, start = model or plan[task.start].encoder, plan[task.start].folder
            config = replace(config, init_from=str(start), model=model)
        plan[name] = PlannedTask(task, config, task_command.recipe_run, encoder, folder, start)
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


class TaskScore(NamedTuple):
    """A score of a task by seed, empty if there is none yet, with the published score."""

    task: SuiteTask
    split: str
    metric: str
    seeds: Mapping[str, float]
    verdict: ScoreVerdict | None


def write_results(
    suite: Suite, folder: Path, failures: Mapping[str, str]
) -> tuple[list[list[Any]], list[str]]:
    """Write the scores of all finished runs of a suite as Markdown and JSON.

    ``failures`` are the messages of failed tasks, by name.

    Returns:
        The rows of the table: the tasks with scores, and the average; and the lines below it.
    """
    scores = _read_scores(suite, folder)
    averages = _average(suite, scores)
    cited = (score.verdict.expected.cited for score in scores if score.verdict is not None)
    sources = {source: number for number, source in enumerate(dict.fromkeys(cited), 1)}
    rows: list[list[Any]] = []
    for task, split, metric, seeds, verdict in scores:
        if seeds:
            row = [task.name, split, metric, _cell(seeds, metric), len(seeds), "", ""]
            if verdict is not None:
                expected = verdict.expected
                row[-2] = f"{score_cell(metric, expected.value, None)} [{sources[expected.cited]}]"
                row[-1] = verdict.verdict
            rows.append(row)
    if averages:
        rows.append(["average", "", "", _cell(averages), len(averages), "", ""])
    notes = [f"[{number}] {source}" for source, number in sources.items()]
    if not all(task.left_out for task in suite.tasks.values()):
        missing = {s.task.name: 0 for s in scores if not (s.task.left_out or s.seeds)}
        none = f"none yet, as there are no scores of {abbreviated(missing, 30)}"
        notes.append(f"Average: {none if missing else 'mean over data sets of their mean scores'}.")
    for task in suite.tasks.values():
        if task.left_out:
            notes.append(f"Left out of the average: {task.name}: {task.left_out}.")
    notes += [f"{name} failed: {reason}" for name, reason in failures.items()]
    markdown = table_text("markdown", "", COLUMNS, rows)
    content = {
        "suite": str(suite.path),
        "scores": [
            score._asdict()
            | {"task": score.task.name, "verdict": score.verdict and score.verdict.verdict}
            for score in scores
        ],
        "average": averages,
    }
    items = "".join(f"- {line}\n" for line in notes)
    write_text(folder / "suite.md", f"# {suite.title}\n\n{markdown}\n\n{items}")
    write_json(folder / RESULTS_FILE, content)
    return rows, notes


def _read_scores(suite: Suite, folder: Path) -> list[TaskScore]:
    scores = []
    for task in suite.tasks.values():
        run = RunFolder.open_all(folder / task.name)
        free = () if task.start is None or task.published else ("init_from",)
        reference = task.published or task.recipe
        verdicts = {
            (verdict.expected.split, verdict.expected.metric): verdict
            for verdict in (recipe_verdicts(run, reference, *free) if run.seeds else ())
        }
        for split, metric in task.scores:
            summary = run.metrics.get(split, {}).get(metric, {}) if run.seeds else {}
            seeds = {s: value for s, value in summary.get("seeds", {}).items() if value is not None}
            scores.append(TaskScore(task, split, metric, seeds, verdicts.get((split, metric))))
    return scores


def _average(suite: Suite, scores: Sequence[TaskScore]) -> dict[str, float]:
    counted = [score for score in scores if not score.task.left_out]
    if not counted:
        return {}
    averages = {}
    for seed in sorted(set.intersection(*({*score.seeds} for score in counted)), key=int):
        values = defaultdict[str, list[float]](list)
        for score in counted:
            values[score.task.name].append(score.seeds[seed])
        averages[seed] = statistics.fmean(map(statistics.fmean, values.values()))
    return averages


def _cell(seeds: Mapping[str, float], metric: str = "accuracy") -> ScoreCell:
    values = list(seeds.values())
    return score_cell(metric, statistics.fmean(values), standard_deviation(values))
