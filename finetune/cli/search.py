"""`finetune search`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated, ClassVar

from finetune.cli.options import Command, FormatOption
from finetune.cli.output import print_tables, quiet_libraries, show
from finetune.cli.train import resumable, show_run
from finetune.config.options import Help, argument
from finetune.config.tasks import TrainConfig
from finetune.types import UserError, quantity


@dataclass(frozen=True, kw_only=True)
class SearchCommand(FormatOption, Command):
    """Search for the settings with the best validation score; the test split is not used.

    Examples:
        finetune search classify --model minilm --data my-data
        finetune search tag --data conll2003 --space lr=1e-5:5e-4:log crf=true,false
    """

    task: Annotated[str, argument("TASK")]
    """The task; all options of `finetune TASK` apply too (`finetune TASK --help`)."""
    space: Annotated[tuple[str, ...], Help("SETTING=VALUES …")] = ()
    """Values to try, such as `lr=1e-5:5e-4:log`, `warmup=0:0.3`, `batch_size=8,16,32` or
    `tuning=full,lora`. Default: the learning rate (a fifth to five times the default), the batch
    size, the warm-up and the weight decay, except those that are set by options."""
    trials: int = 20
    """Total number of trials, including trials of earlier calls. The first trial has the settings
    of the command."""
    minutes: float | None = None
    """Minutes after which no new trial starts."""

    trains = True
    config: ClassVar[TrainConfig | None] = None
    """Settings of the run; a field where TASK is a task (``task_command``)."""

    def run(self) -> None:
        """Run the missing trials, print all trials, and write the page and the recipe."""
        if self.config is None:
            raise UserError(f"search: {self.task!r} is no task: write finetune search classify …")
        items = [item.partition("=")[::2] for item in self.space]
        if len(space := dict(items)) < len(items):
            raise UserError("--space names a setting twice: write each one once.")
        quiet_libraries()
        from finetune.preprocessing.preparation import look_at_data

        look_at_data(self.config, without_test=True)
        from finetune import api
        from finetune.reporting.environment import command_line
        from finetune.reporting.many_runs import search_table
        from finetune.runtime.progress import Reporter

        reporter = Reporter()
        with resumable(reporter, command_line):
            finished = api.search(
                self.config,
                space=space,
                trials=self.trials,
                minutes=self.minutes,
                command=command_line(),
                reporter=reporter,
            )
        exact = self.format in ("json", "csv")
        print_tables(self.format, ("", *search_table(finished.search, exact=exact)))
        title = f"best of {quantity(len(finished.search.trials), 'trial')}: {finished.run.folder}"
        show_run(finished.run, title, "the best run", error=self.format != "table")
        again = shlex.join(["finetune", "run", str(finished.recipe), "--seeds", "3"])
        self.note(f"Train the best settings with other seeds: {again}")
        show(f"Everything is in {finished.search.folder}.", error=True)
