"""The analysis of a system as text and tables: `finetune report --format`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finetune.cli.output import cell, print_table, show
from finetune.types import abbreviated, quantity

if TYPE_CHECKING:
    from finetune.evaluation.error_analysis import Analysis
    from finetune.evaluation.errors import ErrorCase

MOST_COLUMNS, MOST_ROWS = 20, 15
"""Labels of the largest confusion matrix, and rows of other tables, in a text for reading."""


def analysis_tables(found: Analysis) -> dict[str, tuple[str, list[str], list[list[Any]]]]:
    """Return the title, columns and rows of each table of an analysis, by its name."""
    from finetune.evaluation.error_analysis import TITLES

    tables = {"scores": ("Scores", ["metric", "value"], [[*row] for row in found.scores.items()])}
    for name, table in found.tables.items():
        if table and name == "confusion":
            rows = [[row["gold"], *row["predicted"].values()] for row in table]
            tables[name] = TITLES[name], ["gold", *table[0]["predicted"]], rows
        elif table:
            tables[name] = TITLES[name], list(table[0]), [list(row.values()) for row in table]
    if found.bins:
        fields = list(found.bins[0]._asdict())
        tables["calibration"] = "Calibration", fields, [[*each] for each in found.bins]
    return tables


def print_analysis(found: Analysis, num_examples: int) -> None:
    """Print scores, tables, calibration and errors."""
    from finetune.evaluation.positive import metric_title

    by = found.aligned_by and f", aligned by {found.aligned_by}"
    show(f"{found.predictions}: {quantity(len(found.scored), 'example')}, gold: {found.gold}{by}")
    overall = {name: value for name, value in found.scores.items() if ":" not in name}
    titles = {metric_title(name, found.scored.positive): value for name, value in overall.items()}
    show("  ".join(f"{title} {cell(value)}" for title, value in titles.items()))
    if found.positive_note:
        show(found.positive_note)
    for name, table in analysis_tables(found).items():
        if name in found.tables:
            show()
            _print_subgroups(name, *table)
    if found.kind.lists_errors:
        show()
        _print_calibration(found)
        _print_errors(found, num_examples)


def _print_subgroups(name: str, title: str, columns: list[str], rows: list[list[Any]]) -> None:
    if name == "confusion" and len(rows) > MOST_COLUMNS:
        show(f"(the confusion matrix of {len(rows)} labels: --table confusion)")
    else:
        print_table(columns, rows[:MOST_ROWS] if name == "confused" else rows, title)


def _print_calibration(found: Analysis) -> None:
    """Print the reliability diagram, without empty bins."""
    from finetune.evaluation.calibration import error_of_bins

    if not found.bins:
        if found.kind.has_categories:
            show("No probabilities in the predictions: nothing on calibration.\n")
        return
    rows = [
        (f"{each.low:.2f}-{each.high:.2f}", *each[2:], "#" * round(20 * each.accuracy))
        for each in found.bins
        if each.number
    ]
    rated = found.kind.wording.rated.removeprefix("predicted ")
    title = f"Calibration of {rated}: expected calibration error"
    columns = ("confidence", "predictions", "mean", "correct", "")
    print_table(columns, rows, f"{title} {error_of_bins(found.bins):.4f}")
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
