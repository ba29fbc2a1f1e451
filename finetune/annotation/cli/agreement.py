"""`finetune agreement`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from finetune.cli.command import Command
from finetune.cli.output import TableFormat, print_tables, show
from finetune.config.tasks import column_map
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Agreement(Command):
    """Measure how far annotators agree: kappa of labels, F1 of spans, and confused labels.

    Examples:
        finetune agreement anna.jsonl ben.jsonl
        finetune agreement export.json --format markdown
    """

    files: Annotated[Positional[tuple[str, ...]], arg(metavar="FILE")]
    """One file for each annotator, or one export that names the annotator of each row; any format
    of `finetune convert`."""
    columns: tuple[str, ...] = ()
    """Columns if their names are not recognized, as `role=column`."""
    encoding: str = "utf-8"
    """Text encoding of the files, such as `cp1252`, `utf-16` or `gb18030`."""
    resamples: int = 10_000
    """Number of bootstrap resamples for the intervals of F1."""
    seed: int = 0
    """Seed of the resamples."""
    format: TableFormat = "table"
    """Format of the tables."""

    def run(self) -> None:
        """Print the tables; notes go to standard error."""
        from finetune.annotation.agreement import measure_agreement
        from finetune.annotation.annotations import read_annotations

        if self.resamples < 1:
            raise UserError(f"--resamples must be 1 or more, not {self.resamples}.")
        if not self.files:
            raise UserError("agreement needs a file for each annotator, or one with annotators.")
        if len({*self.files}) < len(self.files):
            raise UserError("a file is named twice: its annotator would agree with itself.")
        stems = [Path(file).stem for file in self.files]
        names = stems if len({*stems}) == len(stems) else self.files
        files = {
            name: read_annotations(file, columns=column_map(self.columns), encoding=self.encoding)
            for name, file in zip(names, self.files, strict=True)
        }
        found = measure_agreement(files, num_resamples=self.resamples, seed=self.seed)
        for note in found.notes:
            show(f"note: {note}", error=True)
        print_tables(
            self.format, *((title, cols, rows) for title, cols, rows in found.tables if rows)
        )
