"""`finetune agreement`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finetune.cli.command import Command
from finetune.cli.options import DataOptions, FormatOption, ResampleOptions
from finetune.cli.output import print_tables, show
from finetune.config.options import argument
from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class Agreement(FormatOption, ResampleOptions, DataOptions, Command):
    """Measure how far annotators agree: kappa of labels, F1 of spans, and confused labels.

    Examples:
        finetune agreement anna.jsonl ben.jsonl
        finetune agreement export.json --format markdown
    """

    files: Annotated[tuple[str, ...], argument("FILE …")]
    """One file for each annotator, or one export that names the annotator of each row; any format
    of `finetune convert`."""

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
            name: read_annotations(file, **self.reading)
            for name, file in zip(names, self.files, strict=True)
        }
        found = measure_agreement(files, num_resamples=self.resamples, seed=self.seed)
        for note in found.notes:
            show(f"note: {note}", error=True)
        print_tables(
            self.format, *((title, cols, rows) for title, cols, rows in found.tables if rows)
        )
