"""`finetune report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from finetune.cli.options import Command, ExplainOption, GoldOptions
from finetune.cli.output import TableFormat, print_table, print_tables, quiet_libraries, show
from finetune.config.options import COMMON, Help, argument
from finetune.config.tasks import flag
from finetune.config.values import shown_value
from finetune.types import UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.evaluation.error_analysis import Analysis

MOST_COLUMNS, MOST_ROWS = 20, 15
"""Labels of the largest confusion matrix, and rows of other tables, in a text for reading."""


@dataclass(frozen=True, kw_only=True)
class Report(ExplainOption, GoldOptions, Command):
    """Write an HTML page about one or more runs, or print the analysis of one model.

    It has scores, curves, scores by class and subgroup, confusions, calibration and errors.

    Examples:
        finetune report runs/a runs/b --out report.html
        finetune report runs/ner --explain
        finetune report predictions.jsonl --gold gold.conll --format csv
    """

    folders: Annotated[tuple[str, ...], argument("RUN …")]
    """Run folders, or folders of several seeds. With --format, one run folder or one file of
    predictions is analyzed."""
    out: Annotated[str | None, Help("FILE", "output", common=True)] = None
    """Page to write; default: `report.html` in the run folder, or in the current folder for several
    runs."""
    split: str | None = None
    """Split of the predictions; default: test, or, for a page, validation if test has no gold
    labels."""
    examples: Annotated[int | None, Help("N")] = None
    """Largest number of errors to show; default: 300 on a page, 10 of each category in JSON."""
    format: Annotated[Literal["html", "table", "csv", "latex", "markdown", "json"], COMMON] = "html"
    """Write a page (`html`), or print the analysis: a text for reading (`table`), tables in another
    format, or JSON with errors. `--json` is short for `--format json`."""

    def run(self) -> None:
        """Write the page and print its path, or print the analysis."""
        if self.examples is not None and self.examples < 0:
            raise UserError(f"--examples must be 0 or more, not {self.examples}.")
        if self.format == "html":
            self._write_page()
        elif self.explain:
            raise UserError("--explain is for a page: leave --format out.")
        else:
            self._print_analysis(self.format)

    def _write_page(self) -> None:
        for name in ("gold", "train", "positive", "costs", "columns"):
            if getattr(self, name):
                raise UserError(
                    f"{flag(name)} applies to the analysis that is printed: add --format table, or "
                    "leave it out."
                )
        from finetune.reporting.analysis import MOST_EXAMPLES
        from finetune.reporting.html import write_report

        path, warnings = write_report(
            [Path(folder) for folder in self.folders],
            out=Path(self.out) if self.out else None,
            split=self.split,
            most_examples=MOST_EXAMPLES if self.examples is None else self.examples,
            explain=_explanations if self.explain else None,
        )
        for line in warnings:
            show(line, error=True)
        show(str(path))

    def _print_analysis(self, format: TableFormat) -> None:
        if self.out is not None or len(self.folders) > 1:
            what = "--out names" if self.out is not None else "several runs are compared on"
            raise UserError(f"--format {format}: {what} a page: leave --format out.")
        from finetune.evaluation.error_analysis import analysis_dict, analyze

        analysis = analyze(self.folders[0], self.source, split=self.split or "test")
        if format == "json":
            number = 10 if self.examples is None else self.examples
            show(json.dumps(analysis_dict(analysis, number), indent=2, ensure_ascii=False))
        elif format == "table":
            print_analysis(analysis)
        else:
            from finetune.reporting.analysis import analysis_tables

            tables = analysis_tables(analysis).values()
            print_tables(format, *((table.caption, table.columns, table.rows) for table in tables))


def _explanations(folder: Path, examples: Sequence[Any]) -> list[Any]:
    quiet_libraries()
    from finetune.inference.predictor import Predictor

    return Predictor(folder).explain(examples)


def print_analysis(analysis: Analysis) -> None:
    """Print scores, tables and calibration."""
    from finetune.evaluation.error_analysis import count_categories
    from finetune.evaluation.prediction_types.labels import choose_positive, metric_title
    from finetune.evaluation.predictions import notes_on
    from finetune.reporting.analysis import analysis_tables

    run, number = analysis.run, quantity(len(analysis.run), "example")
    by = run.aligned_by and f", aligned by {run.aligned_by}"
    show(f"{analysis.predictions}: {number}, gold: {run.files[1]}{by}")
    overall = [(name, value) for name, value in analysis.scores.items() if ":" not in name]
    positive, note_on_positive = choose_positive([run], run.positive)
    show("  ".join(f"{metric_title(name, positive)} {shown_value(v)}" for name, v in overall))
    notes = notes_on(run, Path(analysis.predictions).parent)
    for note in filter(None, [note_on_positive, *notes]):
        show(note)
    for name, table in analysis_tables(analysis).items():
        if name == "scores":
            continue
        show()
        if name == "confusion" and len(table.rows) > MOST_COLUMNS:
            show(f"(the confusion matrix of {len(table.rows)} labels: --format csv)")
        else:
            rows = table.rows[:MOST_ROWS] if name == "confused" else table.rows
            print_table(table.columns, rows, table.caption)
    if analysis.bins:
        show(f"expected calibration error {analysis.calibration_error:.4f}")
    if analysis.errors and not analysis.run.items.has_sizes:
        errors = [
            f"{name}: {number:,}" for name, number in count_categories(analysis.errors).items()
        ]
        show(f"\nErrors: {abbreviated(errors, MOST_ROWS)}. The page and --format json list them.")
