"""`finetune merge`: one model with the mean of the weights of several runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from finetune.cli.command import Command
from finetune.cli.options import FormatOption
from finetune.cli.output import print_tables, quiet_libraries
from finetune.cli.train import report_run, show_run
from finetune.config.options import Help, argument
from finetune.types import quantity

if TYPE_CHECKING:
    from finetune.api import MergedRun


@dataclass(frozen=True, kw_only=True)
class Merge(FormatOption, Command):
    """Merge several runs into one model: the mean of their weights, a model soup.

    The runs start from the same encoder, and have the same task, labels, data and settings of the
    model. They may differ in settings of training. The result is a run, with scores.

    Examples:
        finetune merge runs/nli runs/nli-longer --out runs/nli-soup
        finetune merge runs/a runs/b runs/c --method greedy --out runs/soup
    """

    runs: Annotated[tuple[str, ...], argument("RUN …")]
    """Folders of finished runs, two or more. The first gives the settings and the order of
    labels."""
    out: Annotated[str, Help("FOLDER", "output", common=True)]
    """Run folder of the result."""
    method: Literal["uniform", "greedy"] = "uniform"
    """`uniform` is the mean of all runs. `greedy` begins with the run with the best validation
    score, and adds the others in the order of their scores, each if the score of the mean does not
    fall."""

    @property
    def single_process(self) -> str | None:
        """The command runs in one process."""
        return "merge"

    def run(self) -> None:
        """Merge the runs, and print their scores and the scores of the result."""
        from finetune import api
        from finetune.reporting.environment import command_line
        from finetune.runtime.progress import Reporter

        quiet_libraries()
        found = api.merge(
            self.runs,
            self.out,
            method=self.method,
            command=command_line(),
            reporter=Reporter(),
            report=report_run,
        )
        self._print(found)

    def _print(self, found: MergedRun) -> None:
        soup, run = found.soup, found.run
        if soup.score is not None:
            rows = [
                [name, score, "yes" if name in soup.used else "no"]
                for name, score in soup.scores.items()
            ]
            rows.append([str(run.folder), soup.score, f"mean of {len(soup.used)}"])
            columns = ["run", f"{soup.split} {soup.metric}", "in the mean"]
            print_tables(self.format, ("", columns, rows))
        title = f"the mean of {quantity(len(soup.used), 'run')}, in {run.folder}:"
        show_run(run, title, error=True)
