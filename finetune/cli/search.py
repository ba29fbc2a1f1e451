"""`finetune search`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, make_dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from finetune.cli.options import Command, FormatOption
from finetune.cli.output import print_tables, quiet_libraries, show
from finetune.cli.train import (
    TaskCommand,
    report_run,
    require_unset,
    resumable,
    score_lines,
    task_command,
)
from finetune.config.options import Help, argument
from finetune.types import UserError, quantity

if TYPE_CHECKING:
    from finetune.api import FinishedSearch


@dataclass(frozen=True, kw_only=True)
class SearchCommand(FormatOption, Command):
    """Search for the settings with the best validation score; the test split is not used.

    Examples:
        finetune search classify --model minilm --data my-data
        finetune search tag --data conll2003 --space lr=1e-5:5e-4:log crf=true,false
    """

    task: Annotated[str, argument("TASK")]
    """The task; all options of `finetune TASK` apply too (`finetune TASK --help`)."""
    space: Annotated[tuple[tuple[str, ...], ...], Help(append=True)] = ()
    """Values to try, such as `lr=1e-5:5e-4:log`, `warmup=0:0.3`, `batch_size=8,16,32` or
    `tuning=full,lora`. Default: the learning rate (a fifth to five times the default), the batch
    size, the warm-up and the weight decay, except those that are set by options."""
    trials: int = 20
    """Total number of trials, including trials of earlier calls. The first trial has the settings
    of the command."""
    minutes: float | None = None
    """Minutes after which no new trial starts."""

    trains = True

    def run(self) -> None:
        """Raise UserError: ``search_command`` replaces this command where TASK is one."""
        raise UserError(f"search: {self.task!r} is no task: write finetune search classify …")


@dataclass(frozen=True, kw_only=True)
class TaskSearch(SearchCommand):
    """The search of a task."""

    training: TaskCommand

    def run(self) -> None:
        """Run the missing trials, print all trials, and write the page and the recipe."""
        require_unset("search", self.training)
        quiet_libraries()
        from finetune import api
        from finetune.reporting.environment import command_line
        from finetune.runtime.progress import Reporter

        reporter = Reporter()
        with resumable(reporter, command_line):
            search = api.search(
                self.training.config,
                space=list(chain(*self.space)),
                trials=self.trials,
                minutes=self.minutes,
                command=command_line(),
                reporter=reporter,
                report=report_run,
            )
        print_tables(self.format, ("", *search.result.table()))
        _summarize(search, error=self.format != "table")


def _summarize(search: FinishedSearch, *, error: bool) -> None:
    best, number = search.result.require_best(), quantity(len(search.result.trials), "trial")
    settings = " ".join(f"{name}={value}" for name, value in best.settings.items())
    settings = settings or "the settings of the command"
    show(f"best is trial {best.number} of {number}: {settings}", error=error)
    outcome = search.run.outcome
    show(score_lines(search.run.metrics, outcome.baselines), indent=14, error=error)
    if outcome.degenerate:
        show(f"the best run is degenerate: {'; '.join(outcome.degenerate)}", error=error)
    again = shlex.join(["finetune", "run", str(search.recipe), "--seeds", "3"])
    show(
        f"The score on validation is the best of {number}, and so too high. Train the best "
        f"settings with other seeds: {again}",
        error=error,
    )
    show(f"Everything is in {search.result.folder}: {search.page.name} is the page.", error=True)


def search_command(task: str) -> type[TaskSearch]:
    """Build the command that searches for the settings of a task."""
    return make_dataclass(
        "Search",
        [("training", task_command(task))],
        bases=(TaskSearch,),
        namespace={"__doc__": SearchCommand.__doc__},
        frozen=True,
        kw_only=True,
    )
