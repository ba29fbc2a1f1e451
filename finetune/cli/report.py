"""`finetune report`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from finetune.cli.analysis import print_analysis
from finetune.cli.command import Command
from finetune.cli.options import GoldOptions
from finetune.cli.output import TableFormat, print_tables, show
from finetune.config.options import COMMON, Help, argument
from finetune.config.tasks import flag
from finetune.types import UserError

ON_A_PAGE, IN_A_TEXT = 300, 10
"""Examples with errors on a page, and errors of each category in a text, if --examples is unset."""


@dataclass(frozen=True, kw_only=True)
class Report(GoldOptions, Command):
    """Write an HTML page on a run or several, or print the analysis of one system.

    It has scores, curves, scores by class and subgroup, confusions, calibration and errors.

    Examples:
        finetune report runs/a runs/b --out report.html
        finetune report runs/ner --format table
        finetune report predictions.jsonl --gold gold.conll --format csv
    """

    folders: Annotated[tuple[str, ...], argument("RUN …")]
    """Folders of runs, or of several seeds of a run; to print an analysis, a run folder or a file
    of predictions."""
    out: Annotated[str | None, Help("FILE", "output", common=True)] = None
    """Page to write; unset is `report.html` in the run folder, or here for several runs."""
    split: str | None = None
    """Split of the predictions; unset is test, and for a page validation if test has no gold."""
    examples: Annotated[int | None, Help("N")] = None
    """Most examples with errors on a page, 300 if unset; or errors of each category in a text,
    10."""
    format: Annotated[Literal["html", "table", "csv", "latex", "markdown", "json"], COMMON] = "html"
    """Write a page, or print the analysis as a text for reading, as tables in another format, or as
    JSON with all errors. `--json` is short for `--format json`."""

    def run(self) -> None:
        """Write the page and print its path, or print the analysis."""
        if self.examples is not None and self.examples < 0:
            raise UserError(f"--examples must be 0 or more, not {self.examples}.")
        if self.format == "html":
            self._write_page()
        else:
            self._print_analysis(self.format)

    def _write_page(self) -> None:
        for name in ("gold", "train", "positive", "costs", "columns"):
            if getattr(self, name):
                raise UserError(
                    f"{flag(name)} applies to the analysis that is printed: add --format table, or "
                    "leave it out."
                )
        from finetune.reporting import write_report

        path, warnings = write_report(
            [Path(folder) for folder in self.folders],
            out=Path(self.out) if self.out else None,
            split=self.split,
            most_examples=ON_A_PAGE if self.examples is None else self.examples,
        )
        for line in warnings:
            show(line, error=True)
        show(str(path))

    def _print_analysis(self, format: TableFormat) -> None:
        if self.out is not None or len(self.folders) > 1:
            what = "--out names" if self.out is not None else "several runs are compared on"
            raise UserError(f"--format {format}: {what} a page: leave --format out.")
        from finetune.evaluation.error_analysis import analysis_record, analyze

        found = analyze(self.folders[0], self.source, split=self.split or "test")
        number = IN_A_TEXT if self.examples is None else self.examples
        if format == "json":
            show(json.dumps(analysis_record(found, number), indent=2, ensure_ascii=False))
        elif format == "table":
            print_analysis(found, number)
        else:
            from finetune.reporting.analysis_tables import analysis_tables

            tables = analysis_tables(found).values()
            print_tables(format, *((each.caption, each.columns, each.rows) for each in tables))
