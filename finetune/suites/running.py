"""Run the members of a suite: in order, each with several seeds, resumed after any interruption."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.data import Dataset
from finetune.runtime.progress import Reporter, clock
from finetune.runtime.signals import Interrupted
from finetune.suites.definition import Member
from finetune.tasks import load_task
from finetune.training.optimizer import Schedule
from finetune.training.repeated_runs import seed_configs, state_of, train_seeds
from finetune.training.run_folder import RunWriter
from finetune.types import UserError, quantity


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

    @property
    def runs(self) -> Mapping[int, TrainConfig]:
        """The settings of each seed."""
        return seed_configs(self.config, self.num_seeds, self.folder, self.start)

    def states(self) -> dict[int, str]:
        """Return whether each run is ``finished``, ``unfinished`` or ``new``.

        Raises UserError if a run has other settings.
        """
        return {seed: state_of(config) for seed, config in self.runs.items()}


@dataclass(frozen=True)
class Workload:
    """The size of a run, before it has started."""

    num_examples: int
    """Training examples."""
    num_steps: int


@dataclass(frozen=True)
class CheckedMember:
    """A member whose settings and data fit."""

    states: Mapping[int, str]
    """Whether each run is ``finished``, ``unfinished`` or ``new``, by seed."""
    num_steps: int
    """Training steps of a run; 0 if all are finished."""


def workload(planned: PlannedMember) -> Workload:
    """Read the data of a member, and return the size of a run.

    Raises UserError if settings and data do not fit, so that they are refused before any training.
    """
    config = replace(planned.config, resume=False)
    if planned.start is not None:  # which has perhaps not been trained
        config = replace(config, init_from=None, model=planned.encoder)
    _, data = load_task(config, planned.member.recipe.task)
    planned.recipe_run.check_splits(data.scored_splits)
    num_examples = len(data.splits["train"])
    return Workload(num_examples, Schedule.from_config(config, num_examples).num_steps)


class TimeLeft:
    """The time left for the runs of a suite: their steps, at the mean rate of this process."""

    def __init__(self, checked: Mapping[str, CheckedMember]) -> None:
        self.steps = {
            (name, seed): member.num_steps
            for name, member in checked.items()
            for seed, state in member.states.items()
            if state != "finished"
        }
        """Steps of each run that is not finished, by member and seed."""
        self.measured: list[tuple[float, int]] = []
        """Seconds and steps of the runs trained here; the last one may still run."""
        self.done = 0
        """Steps of the current run that are done."""

    def start(self) -> None:
        """Begin a run."""
        self.begin, self.first = time.monotonic(), 0
        self.measured.append((0.0, 0))

    def advance(self, done: int, *, first: bool = False) -> None:
        """Note the steps of the run that are done; the ``first`` ones were done before."""
        self.done, self.first = done, done if first else self.first
        self.measured[-1] = time.monotonic() - self.begin, done - self.first

    def stop(self, member: str, seed: int) -> float:
        """End a run; return its seconds."""
        self.advance(self.done)
        self.done = 0
        del self.steps[member, seed]
        return self.measured[-1][0]

    def skip(self, member: str) -> None:
        """Leave out the other runs of a member."""
        self.done = 0
        self.steps = {run: steps for run, steps in self.steps.items() if run[0] != member}

    def text(self) -> str:
        """Return the time that is left in words; empty if nothing has been measured."""
        seconds, steps = (sum(each) for each in zip((0.0, 0), *self.measured, strict=True))
        if not steps or not self.steps:
            return ""
        left = (sum(self.steps.values()) - self.done) * seconds / steps
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


Failures = dict[str, str]
"""Why members have no scores, by name."""
TrainOne = Callable[[PlannedMember, SuiteReporter, TrainConfig, Dataset, RunWriter], object]
"""Trains a run in its opened folder and writes all its files."""


@dataclass(frozen=True, kw_only=True)
class Events:
    """Functions to call while a suite runs."""

    on_start: Callable[[PlannedMember, int, str], object]
    """Before a run, with its seed and its state."""
    on_end: Callable[[PlannedMember, int, float], object]
    """After a run, with its seconds."""
    on_member: Callable[[PlannedMember], object]
    """After all seeds of a member."""
    on_failure: Callable[[PlannedMember, Exception], str]
    """After an error; returns its text."""


def run_members(
    plan: Sequence[PlannedMember],
    checked: Mapping[str, CheckedMember],
    timer: TimeLeft,
    train_one: TrainOne,
    events: Events,
    *,
    quiet: bool = False,
    keep_going: bool = True,
) -> Failures:
    """Train the seeds of all members that are not finished; return why others have failed.

    A member whose start has failed is skipped. Without ``keep_going`` the first error is raised.
    ``checked`` is the result of ``check_members``.
    """
    failures: Failures = {}
    for planned in plan:
        start = planned.member.start
        if start in failures:
            failures[planned.name] = f"not run, because {start} failed"
            timer.skip(planned.name)
            continue
        try:
            _run_member(planned, checked[planned.name].states, timer, train_one, events, quiet)
            events.on_member(planned)
        except Exception as error:
            if isinstance(error, Interrupted) or not keep_going:
                raise
            failures[planned.name] = events.on_failure(planned, error)
            timer.skip(planned.name)
    return failures


def _run_member(
    planned: PlannedMember,
    states: Mapping[int, str],
    timer: TimeLeft,
    train_one: TrainOne,
    events: Events,
    quiet: bool,
) -> None:
    def train(config: TrainConfig, data: Dataset, folder: RunWriter) -> None:
        title = planned.name if planned.num_seeds == 1 else f"{planned.name} seed {config.seed}"
        timer.start()
        train_one(planned, SuiteReporter(title, timer, quiet=quiet), config, data, folder)
        events.on_end(planned, config.seed, timer.stop(planned.name, config.seed))

    train_seeds(
        planned.member.recipe.task,
        planned.config,
        planned.num_seeds,
        planned.folder,
        train,
        recipe_run=planned.recipe_run,
        start=planned.start,
        on_start=lambda config, _: events.on_start(planned, config.seed, states[config.seed]),
    )


def check_members(plan: Sequence[PlannedMember]) -> dict[str, CheckedMember]:
    """Return the states of the runs of each member, and the steps of a run if one is unfinished.

    Raises UserError that names all members whose runs would fail: by other settings than before,
    or by their data.
    """
    found: dict[str, CheckedMember] = {}
    problems: dict[str, str] = {}
    for planned in plan:
        try:
            states = planned.states()
            finished = {*states.values()} == {"finished"}
            found[planned.name] = CheckedMember(
                states, 0 if finished else workload(planned).num_steps
            )
        except UserError as error:
            problems[planned.name] = str(error)
    if problems:
        listed = " ".join(f"{name}: {problem}" for name, problem in problems.items())
        several = f"{quantity(len(problems), 'member')} of the suite cannot run: "
        raise UserError(listed if len(problems) == 1 else several + listed)
    return found
