"""The analysis of a system as text and tables: `finetune report --format`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finetune.cli.output import print_table, show
from finetune.config.values import shown_value
from finetune.types import abbreviated, quantity

if TYPE_CHECKING:
    from finetune.evaluation.error_analysis import Analysis
    from finetune.evaluation.errors import ErrorCase
    from finetune.reporting.rendering import Table

MOST_COLUMNS, MOST_ROWS = 20, 15
"""Labels of the largest confusion matrix, and rows of other tables, in a text for reading."""


def print_analysis(found: Analysis, num_examples: int) -> None:
    """Print scores, tables, calibration and errors."""
    from finetune.evaluation.positive import metric_title
    from finetune.reporting.analysis_tables import analysis_tables

    by = found.aligned_by and f", aligned by {found.aligned_by}"
    show(f"{found.predictions}: {quantity(len(found.scored), 'example')}, gold: {found.gold}{by}")
    overall = {name: value for name, value in found.scores.items() if ":" not in name}
    titles = {metric_title(name, found.scored.positive): value for name, value in overall.items()}
    show("  ".join(f"{title} {shown_value(value)}" for title, value in titles.items()))
    if found.positive_note:
        show(found.positive_note)
    for name, table in analysis_tables(found).items():
        if name in found.tables:
            show()
            _print_subgroups(name, table)
    if found.kind.lists_errors:
        show()
        _print_calibration(found)
        _print_errors(found, num_examples)


def _print_subgroups(name: str, table: Table) -> None:
    rows = table.rows
    if name == "confusion" and len(rows) > MOST_COLUMNS:
        show(f"(the confusion matrix of {len(rows)} labels: --format csv)")
    else:
        rows = rows[:MOST_ROWS] if name == "confused" else rows
        print_table(table.columns, rows, table.caption)


def _print_calibration(found: Analysis) -> None:
    """Print the reliability diagram, without empty bins."""
    from finetune.evaluation.calibration import error_of_bins
    from finetune.reporting.analysis_tables import reliability_table

    if not found.bins:
        if found.kind.has_categories:
            show("No probabilities in the predictions: nothing on calibration.\n")
        return
    table = reliability_table(found)
    rows = [(*row, "#" * round(20 * row[-1])) for row in table.rows]
    rated = found.kind.wording.rated.removeprefix("predicted ")
    title = f"Calibration of {rated}: expected calibration error"
    print_table((*table.columns, ""), rows, f"{title} {error_of_bins(found.bins):.4f}")
    show()


def _print_errors(found: Analysis, number: int) -> None:
    from finetune.evaluation.errors import count_categories, first_by_category, most_confident

    counts = count_categories(found.errors)
    if found.kind.has_categories:
        listed = [f"{name}: {count:,}" for name, count in counts.items()]
        show(f"Errors: {abbreviated(listed, MOST_ROWS) or 'none'}")
    if not number:
        return
    _print_cases("The most confident errors", most_confident(found.errors, number))
    doubts = found.contradictions
    _print_cases(
        "Predictions that contradict gold with more confidence than usual for their class "
        f"({len(doubts):,}): look at these first",
        doubts[:number],
    )
    if found.not_credible:
        show(found.not_credible)
    if found.kind.pairs_of_labels:
        return  # a category is a pair of labels: the list of confident errors suffices
    for name, cases in first_by_category(found.errors, number).items():
        title = "The largest errors" if name == "error" else f"{name} ({counts[name]:,})"
        _print_cases(title, cases)


def _print_cases(title: str, cases: Sequence[ErrorCase]) -> None:
    if not cases:
        return
    show(f"\n{title}")
    for case in cases:
        confidence = "" if case.confidence is None else f" ({case.confidence:.3f})"
        show(
            f"  {case.where}  gold {_side(case.gold)}, predicted {_side(case.predicted)}"
            f"{confidence}\n      {case.excerpt}"
        )


def _side(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"{value['label']} {value['text']!r}"
    return f"{value:g}" if isinstance(value, float) else str(value)
