"""`finetune report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from finetune.cli.command import Command
from finetune.cli.options import OutOption
from finetune.cli.output import show
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Report(OutOption, Command):
    """Write an HTML page on a run or several: scores, curves, classes, calibration, errors.

    Examples:
        finetune report runs/nli
        finetune report runs/a runs/b --out report.html
    """

    folders: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN …")]
    """Folders of runs, or of several seeds of a run."""
    out: str | None = None
    """File to write; unset is `report.html` in the run folder, or here for several runs."""
    split: str | None = None
    """Split of the predictions; unset is test, or validation if test has no gold."""
    examples: int = 300
    """Most examples with errors that the page shows."""

    def run(self) -> None:
        """Write the page and print its path."""
        if not self.folders:
            raise UserError("report needs the folder of a run: finetune report RUN")
        from finetune.reporting import write_report

        path, warnings = write_report(
            [Path(folder) for folder in self.folders],
            out=Path(self.out) if self.out else None,
            split=self.split,
            most_examples=self.examples,
        )
        for line in warnings:
            show(line, error=True)
        show(str(path))
