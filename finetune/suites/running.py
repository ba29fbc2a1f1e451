"""Run the members of a suite: in order, each with several seeds, resumed after any interruption."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from finetune import api
from finetune.cli.output import error_line, print_table, print_tables, show
from finetune.cli.train import report_run, resumable
from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.data import Dataset
from finetune.data.json_files import read_object
from finetune.evaluation.runs import RunFolder
from finetune.reporting.environment import command_line
from finetune.runtime.files import entries
from finetune.runtime.launch import is_main_process, on_all_processes, on_main_process
from finetune.runtime.processes import num_processes
from finetune.runtime.progress import Reporter, clock
from finetune.runtime.signals import Interrupted
from finetune.suites.commands import LoadedSuite, member_names
from finetune.suites.definition import Member
from finetune.suites.results import (
    RESULT_FILES,
    RESULTS_FILE,
    number,
    read_results,
    score_table,
    write_results,
)
from finetune.tasks import load_task
from finetune.training.optimizer import Schedule
from finetune.training.repeated_runs import seed_configs, state_of, train_seeds
from finetune.training.run_folder import RunWriter, hold, require_own, require_writable
from finetune.types import UserError, abbreviated, quantity

States = Mapping[int, str]
"""Whether each run of a member is ``finished``, ``unfinished`` or ``new``, by seed."""


@dataclass(frozen=True, kw_only=True)
class PlannedMember:
    """A member with the settings of its runs."""

    member: Member
    config: TrainConfig
    """The settings of the first seed; ``out`` is the folder of all seeds."""
    recipe_run: RecipeRun
    encoder: str | None
    """The encoder that training begins with, or that the first of its starts begins with."""
    start: Path | None
    """The folder of the seeds that its seeds start from."""
    num_seeds: int

    @property
    def name(self) -> str:
        """The name of the member."""
        return self.member.name

    @property
    def folder(self) -> Path:
        """The folder of the seeds."""
        return Path(self.config.out or "")

    def states(self) -> States:
        """Return the state of each run; UserError if a run has other settings."""
        configs = seed_configs(self.config, self.num_seeds, self.folder, self.start)
        return {seed: state_of(config) for seed, config in configs.items()}

    def size(self) -> tuple[int, int]:
        """Read the data, and return the numbers of training examples and steps of a run.

        Raises UserError if settings and data do not fit, so that they are refused before any
        training.
        """
        config = replace(self.config, resume=False)
        if self.start is not None:  # which has perhaps not been trained
            config = replace(config, init_from=None, model=self.encoder)
        _, data = load_task(config, self.member.recipe.task)
        self.recipe_run.check_splits(data.scored_splits)
        num_examples = len(data.splits["train"])
        return num_examples, Schedule.from_config(config, num_examples).num_steps


def plan_members(command: LoadedSuite) -> list[PlannedMember]:
    """Return the members with the settings of their runs, in order."""
    found: dict[str, PlannedMember] = {}
    for name, own in command.commands.items():
        member = command.loaded.members[name]
        recipe = member.recipe.smoke_recipe() if command.smoke else member.recipe
        recipe_run = RecipeRun.of(recipe, own.config, member.recipe.config())
        config = replace(own.config, out=str(command.folder / name), resume=False)
        encoder, start = config.model, None
        if member.start is not None:
            start = found[member.start].folder
            chosen = command.model is not None or "model" in member.recipe.settings
            model = config.model if chosen else None
            encoder = model or found[member.start].encoder
            config = replace(config, init_from=str(start), model=model)
        found[name] = PlannedMember(
            member=member,
            config=config,
            recipe_run=recipe_run,
            encoder=encoder,
            start=start,
            num_seeds=command.seeds,
        )
    return list(found.values())


def check_members(plan: Sequence[PlannedMember]) -> dict[str, tuple[States, int]]:
    """Return the states of the runs of each member, and the steps of a run if one is unfinished.

    Raises UserError that names all members whose runs would fail: by other settings than before,
    or by their data.
    """
    found: dict[str, tuple[States, int]] = {}
    problems: dict[str, str] = {}
    for planned in plan:
        try:
            states = planned.states()
            finished = {*states.values()} == {"finished"}
            found[planned.name] = states, 0 if finished else planned.size()[1]
        except UserError as error:
            problems[planned.name] = str(error)
    if problems:
        several = f"{quantity(len(problems), 'member')} of the suite cannot run: "
        raise UserError(_listed(problems) if len(problems) == 1 else several + _listed(problems))
    return found


def _listed(problems: Mapping[str, str]) -> str:
    return " ".join(f"{name}: {problem}" for name, problem in problems.items())


class TimeLeft:
    """The time left for the runs of a suite: their steps, at the mean rate of this process."""

    def __init__(self, steps: Mapping[tuple[str, int], int]) -> None:
        self.steps = steps
        """Steps of each run that is not finished, by member and seed."""
        self.seconds, self.trained = 0.0, 0
        """Seconds and steps of this process in training."""
        self.begin, self.now, self.done = 0.0, 0.0, 0
        """The start of the current run, the time of its last news, and its steps then."""

    def start(self) -> None:
        """Begin a run."""
        self.begin = self.now = time.monotonic()
        self.done = 0

    def advance(self, done: int, *, first: bool = False) -> None:
        """Note the steps of the run that are done; the ``first`` ones were done before."""
        before, self.now = self.now, time.monotonic()
        self.seconds += self.now - before
        self.trained += 0 if first else done - self.done
        self.done = done

    def stop(self, member: str, seed: int | None = None) -> float:
        """End a run, or without a seed all runs of a member; return the seconds of the last."""
        if seed is not None:
            self.advance(self.done)
        self.done = 0
        self.steps = {
            (name, own): number
            for (name, own), number in self.steps.items()
            if name != member or seed not in (None, own)
        }
        return self.now - self.begin

    def text(self) -> str:
        """Return the time that is left in words; empty if nothing has been measured."""
        if not self.trained or not self.steps:
            return ""
        left = (sum(self.steps.values()) - self.done) * self.seconds / self.trained
        return f"{clock(left)} left for {quantity(len(self.steps), 'run')}"


class SuiteReporter(Reporter):
    """Shows one run of a suite: its progress and the time left for all runs, without its notes."""

    line_every = 60.0
    bar_stays = math.inf

    def __init__(self, title: str, timer: TimeLeft, *, quiet: bool) -> None:
        super().__init__(quiet)
        self.name, self.timer = title, timer

    def say(self, text: str) -> None:
        """Show lines of progress only: the README and the report of a run have its notes."""
        if self._stages and text.startswith(self.title):
            super().say(text)

    def start(self, title: str, total: int | None, done: int = 0, unit: str = "step") -> None:
        """Begin a stage, with the name of the run in its title."""
        super().start(f"{self.name}: {title}", total, done, unit)
        if len(self._stages) == 1 and unit == "step":
            self.timer.advance(done, first=True)

    def update(self, done: int, text: str = "", *, share: float | None = None) -> None:
        """Show progress, and the time that is left for all runs."""
        if len(self._stages) == 1 and self._stages[0].unit == "step":
            self.timer.advance(done)
        left = self.timer.text()
        super().update(done, f"{text}, {left};" if left else text, share=share)


@dataclass
class SuiteTraining:
    """Trains the members of a suite one after another, and says how each run begins and ends."""

    command: LoadedSuite
    states: Mapping[str, States]
    timer: TimeLeft
    is_main: bool
    number: int = 0
    """Number of the current run."""
    failures: dict[str, str] = field(default_factory=dict)
    """The reasons why members have no scores, by name."""

    def train(self, planned: PlannedMember) -> None:
        """Train the seeds of a member that are not finished.

        A member whose start has failed is skipped. With several processes, which could not agree to
        go on, the first error is raised.
        """
        if planned.member.start in self.failures:
            self.failures[planned.name] = f"not run, because {planned.member.start} failed"
            self.timer.stop(planned.name)
            return
        try:
            train_seeds(
                planned.member.recipe.task,
                planned.config,
                planned.num_seeds,
                planned.folder,
                partial(self._train_run, planned),
                recipe_run=planned.recipe_run,
                start=planned.start,
                on_start=lambda config, _: self._say_start(planned, config.seed),
            )
            if self.is_main:
                report_run(planned.folder)
                self.write()
        except Exception as error:
            if isinstance(error, Interrupted) or num_processes() > 1:
                raise
            line, _ = error_line(error)
            show(f"{planned.name}: {line}", error=True)
            self.failures[planned.name] = line.removeprefix("error: ")
            self.timer.stop(planned.name)

    def write(self) -> None:
        """Write the table of the scores until now."""
        suite, folder, chosen = self.command.loaded, self.command.folder, self.command.commands
        write_results(read_results(suite, folder, self.failures, chosen))

    def _train_run(
        self, planned: PlannedMember, config: TrainConfig, data: Dataset, folder: RunWriter
    ) -> None:
        seed = config.seed
        title = planned.name if planned.num_seeds == 1 else f"{planned.name} seed {seed}"
        self.timer.start()
        api.train_once(
            planned.member.recipe.task,
            config,
            data,
            command=command_line(),
            folder=folder,
            recipe_run=planned.recipe_run,
            repeatable=True,
            reporter=SuiteReporter(title, self.timer, quiet=not self.is_main),
            report=report_run,
        )
        seconds = clock(self.timer.stop(planned.name, seed))
        if not self.is_main:
            return
        metrics = RunFolder.open(planned.folder / f"seed-{seed}").metrics
        found = [
            f"{score} {number(metrics[score.split][score.metric], score.metric)}"
            for score in planned.member.scores
            if score.metric in metrics.get(score.split, {})
        ]
        parts = [", ".join(found) or "no score", seconds, self.timer.text()]
        self._say(planned, seed, "; ".join(filter(None, parts)))

    def _say_start(self, planned: PlannedMember, seed: int) -> None:
        self.number += 1
        state = self.states[planned.name][seed]
        done = {"finished": "finished: kept", "unfinished": "continued", "new": "started"}[state]
        left = "" if state == "finished" else self.timer.text()
        self._say(planned, seed, f"{done} ({left})" if left else done)

    def _say(self, planned: PlannedMember, seed: int, text: str) -> None:
        if self.is_main:
            total = planned.num_seeds * len(self.command.commands)
            show(f"[{self.number}/{total}] {planned.name} seed {seed}: {text}", error=True)


def run_suite(command: LoadedSuite) -> None:
    """Train the members of a suite, print the table, and write it; UserError if a member failed."""
    begin = time.monotonic()
    plan = plan_members(command)
    on_main_process(lambda: _check_folder(command))
    if command.dry_run:
        return _print_plan(command, plan)
    is_main = is_main_process()
    if is_main:
        _show_additions(command)
    with hold(command.folder), resumable(Reporter(quiet=not is_main), command_line):
        checked = on_all_processes(lambda: check_members(plan))
        steps = {
            (name, seed): num_steps
            for name, (states, num_steps) in checked.items()
            for seed, state in states.items()
            if state != "finished"
        }
        states = {name: own for name, (own, _) in checked.items()}
        training = SuiteTraining(command, states, TimeLeft(steps), is_main)
        if is_main:
            training.write()
        for planned in plan:
            training.train(planned)
    if is_main:
        _finish(command, training, begin)
    return None


def _check_folder(command: LoadedSuite) -> None:
    folder = command.folder
    require_writable(folder)
    if RunFolder.open(folder).is_run or (folder / "seeds.json").is_file():
        raise UserError(f"--out {folder} holds another run: use another --out.")
    if (folder / RESULTS_FILE).is_file():
        before = read_object(folder / RESULTS_FILE, {"suite": str | None}).get("suite")
        if before != command.loaded.name:
            raise UserError(
                f"--out {folder} holds runs of the suite {before}, not {command.loaded.name}: use "
                "another --out."
            )
    names = {*entries(folder)} if folder.is_dir() else set()
    own = {*command.loaded.members, *RESULT_FILES}
    require_own(folder, names <= own or (folder / RESULTS_FILE).is_file())


def _show_additions(command: LoadedSuite) -> None:
    chosen = member_names(command.only)
    for name in command.commands:
        if chosen and name not in chosen:
            needed = [m.name for m in command.loaded.members.values() if m.start == name]
            needed = [each for each in needed if each in command.commands]
            show(f"{name} is trained too: {abbreviated(needed)} starts from it", error=True)


def _print_plan(command: LoadedSuite, plan: Sequence[PlannedMember]) -> None:
    rows: list[list[Any]] = []
    problems: dict[str, str] = {}
    for planned in plan:
        member = planned.member
        row: list[Any] = [planned.name, member.recipe.name, planned.encoder or ""]
        row += [member.start or "", planned.config.data]
        try:
            states = planned.states()
            num_examples, num_steps = planned.size()
            kept = sum(state == "finished" for state in states.values())
            row += [num_examples, num_steps, f"{kept} of {len(states)} runs"]
        except UserError as error:
            problems[planned.name] = str(error)
            row += ["", "", "cannot run"]
        rows.append(row)
    columns = ["member", "recipe", "model", "starts from", "data", "train", "steps", "finished"]
    _show_additions(command)
    print_tables(command.format, ("", columns, rows))
    if problems:
        members = quantity(len(problems), "member")
        raise UserError(f"{members} cannot run: {_listed(problems)}")


def _finish(command: LoadedSuite, training: SuiteTraining, begin: float) -> None:
    failures = training.failures
    results = read_results(command.loaded, command.folder, failures, command.commands)
    write_results(results)
    columns, rows = score_table(results)
    if command.format == "json":
        show(json.dumps(results.record(), indent=2, ensure_ascii=False))
    elif command.format == "table":
        print_table(columns, rows, command.loaded.title)
    else:
        print_tables(command.format, ("", columns, rows))
    for line in results.notes():
        command.note(line)
    command.note(
        f"{clock(time.monotonic() - begin)} in all. Everything is in {command.folder}: "
        f"{', '.join(RESULT_FILES)} have the table."
    )
    if failures:
        raise UserError(
            f"{len(failures)} of {quantity(len(command.commands), 'data set')} failed "
            f"({abbreviated(failures)}); the reasons are above. The same command runs them "
            "again and keeps the others."
        )
