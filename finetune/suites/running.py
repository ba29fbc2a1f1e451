"""Run the members of a suite: in order, each with several seeds, resumed after any interruption."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.config.values import conforms
from finetune.data import Dataset
from finetune.data.dataset import texts_of
from finetune.data.json_files import read_object
from finetune.runtime.files import write_text
from finetune.runtime.progress import Reporter, clock
from finetune.runtime.records import json_line
from finetune.runtime.signals import Interrupted
from finetune.suites.definition import Member
from finetune.tasks import load_task
from finetune.training.optimizer import Schedule
from finetune.training.repeated_runs import seed_configs, state_of, train_seeds
from finetune.training.run_folder import RunWriter
from finetune.types import UserError, quantity

TIMES_FILE = "times.json"
"""File in the folder of a suite with the seconds of its runs."""
SAMPLE = 1000
"""Examples of a split whose length is measured."""
FORWARD_AND_BACKWARD = 3
"""Cost of a training step in forward passes."""
CHARACTERS = 4
"""Characters of a token, roughly, for the time that is left."""


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

    sizes: Mapping[str, int]
    """Examples by split."""
    num_steps: int
    cost: float
    """Tokens of all forward passes, roughly; a training step counts as several."""


@dataclass(frozen=True)
class CheckedMember:
    """A member whose settings and data fit."""

    states: Mapping[int, str]
    """Whether each run is ``finished``, ``unfinished`` or ``new``, by seed."""
    load: Workload | None
    """The size of a run; None if all are finished."""

    @property
    def unfinished(self) -> dict[int, float]:
        """The cost of each run that is not finished, by seed."""
        cost = 0.0 if self.load is None else self.load.cost
        return {seed: cost for seed, state in self.states.items() if state != "finished"}


def workload(planned: PlannedMember) -> Workload:
    """Read the data of a member, and estimate the cost of a run.

    Raises UserError if settings and data do not fit, so that they are refused before any training.
    """
    config = replace(planned.config, resume=False)
    if planned.start is not None:  # which has perhaps not been trained
        config = replace(config, init_from=None, model=planned.encoder)
    task, data = load_task(config, planned.member.recipe.task)
    planned.recipe_run.check_splits(data.scored_splits)
    steps = Schedule.from_config(config, len(data.splits["train"]))
    lengths = {split: _mean_tokens(rows, task.record.max_length) for split, rows in _rows(data)}
    cost = FORWARD_AND_BACKWARD * steps.num_steps * steps.batch_size * lengths["train"]
    evaluations = max(1, steps.num_steps // max(1, steps.eval_every))
    for index, (split, rows) in enumerate(list(_rows(data))[1:]):
        cost += lengths[split] * len(rows) * (evaluations + 1 if index == 0 else 1)
    return Workload({name: len(rows) for name, rows in _rows(data)}, steps.num_steps, cost)


def _rows(data: Dataset) -> list[tuple[str, Sequence[Any]]]:
    return list(data.splits.items())


def _mean_tokens(examples: Sequence[Any], longest: int) -> float:
    """Return the mean length of the first examples in tokens, by their characters."""
    lengths = [
        min(longest, 2 + sum(map(len, texts_of(example))) / CHARACTERS)
        for example in examples[:SAMPLE]
    ]
    return statistics.fmean(lengths) if lengths else 0.0


@dataclass
class Clock:
    """The time that the runs of a suite take and have left, by measured rates.

    A run takes as long as other seeds of its member. Until one has finished, its time follows from
    its cost and the rate of all runs, the current one included.
    """

    folder: Path
    costs: Mapping[tuple[str, int], float]
    """Cost of each run that is not finished, by member and seed, in order."""
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Seconds and cost of runs that were trained in one go, by member and seed."""
    left: list[tuple[str, int]] = field(default_factory=list)
    begin: float = 0.0
    share: float = 0.0
    """Share of the current run that is done."""
    begin_share: float = 0.0

    def __post_init__(self) -> None:
        """Read the seconds of earlier runs."""
        self.left = list(self.costs)
        path = self.folder / TIMES_FILE
        content = read_object(path) if path.is_file() else {}
        if conforms(content, dict[str, dict[str, list[float]]]):
            self.seconds = content

    def start(self) -> None:
        """Begin the next run."""
        self.begin, self.share, self.begin_share = time.monotonic(), 0.0, 0.0

    def advance(self, share: float, *, first: bool = False) -> None:
        """Note the share of the current run that is done; ``first`` was done before."""
        self.share = min(1.0, share)
        if first:
            self.begin_share = self.share

    def stop(self, *, whole: bool) -> float:
        """End the current run, and return its seconds; write them if it was ``whole``."""
        seconds = time.monotonic() - self.begin
        member, seed = run = self.left.pop(0)
        if whole:
            self.seconds.setdefault(member, {})[str(seed)] = [seconds, self.costs[run]]
            write_text(self.folder / TIMES_FILE, json_line(self.seconds) + "\n")
        self.begin = self.share = self.begin_share = 0.0
        return seconds

    def skip(self, member: str) -> None:
        """Leave out the other runs of a member."""
        self.left = [run for run in self.left if run[0] != member]

    def remaining(self) -> float | None:
        """Return the seconds that are left for all runs; None if nothing has been measured."""
        measured = [pair for seeds in self.seconds.values() for pair in seeds.values()]
        seconds = sum(each for each, _ in measured)
        cost = sum(each for _, each in measured)
        running = bool(self.left) and self.begin > 0 and self.share > self.begin_share
        if running:
            seconds += time.monotonic() - self.begin
            cost += (self.share - self.begin_share) * self.costs[self.left[0]]
        if not cost:
            return None
        total = 0.0
        for index, run in enumerate(self.left):
            own = [pair[0] for pair in self.seconds.get(run[0], {}).values()]
            whole = statistics.fmean(own) if own else self.costs[run] * seconds / cost
            total += whole * (1 - self.share if index == 0 else 1)
        return total

    def text(self) -> str:
        """Return the time that is left in words; empty if nothing has been measured."""
        remaining = self.remaining()
        if remaining is None or not self.left:
            return ""
        return f"{clock(remaining)} left for {quantity(len(self.left), 'run')}"


class SuiteReporter(Reporter):
    """Shows one run of a suite: its progress and the time left for all runs, without its notes."""

    line_every = 60.0
    bar_stays = math.inf

    def __init__(self, title: str, timer: Clock, *, quiet: bool) -> None:
        super().__init__(quiet)
        self.name, self.timer = title, timer

    def say(self, text: str) -> None:
        """Show lines of progress only: the README and the report of a run have its notes."""
        if self._stages and text.startswith(self.title):
            super().say(text)

    def start(self, title: str, total: int | None, done: int = 0, unit: str = "step") -> None:
        """Begin a stage, with the name of the run in its title."""
        super().start(f"{self.name}: {title}", total, done, unit)
        if len(self._stages) == 1 and total:
            self.timer.advance(done / total, first=True)

    def update(self, done: int, text: str = "", *, share: float | None = None) -> None:
        """Show progress, and the time that is left for all runs."""
        stage = self._stages[0]
        if len(self._stages) == 1 and stage.total:
            self.timer.advance(done / stage.total)
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
    timer: Clock,
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
    timer: Clock,
    train_one: TrainOne,
    events: Events,
    quiet: bool,
) -> None:
    def train(config: TrainConfig, data: Dataset, folder: RunWriter) -> None:
        title = planned.name if planned.num_seeds == 1 else f"{planned.name} seed {config.seed}"
        timer.start()
        train_one(planned, SuiteReporter(title, timer, quiet=quiet), config, data, folder)
        seconds = timer.stop(whole=states[config.seed] == "new")
        events.on_end(planned, config.seed, seconds)

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
    """Return the states of all runs, and the workload of members with unfinished runs.

    Raises UserError that names all members whose runs would fail: by other settings than before,
    or by their data.
    """
    found: dict[str, CheckedMember] = {}
    problems: dict[str, str] = {}
    for planned in plan:
        try:
            states = planned.states()
            finished = {*states.values()} == {"finished"}
            found[planned.name] = CheckedMember(states, None if finished else workload(planned))
        except UserError as error:
            problems[planned.name] = str(error)
    if problems:
        listed = " ".join(f"{name}: {problem}" for name, problem in problems.items())
        several = f"{quantity(len(problems), 'member')} of the suite cannot run: "
        raise UserError(listed if len(problems) == 1 else several + listed)
    return found
