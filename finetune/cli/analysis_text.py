"""An analysis to read: tables, a reliability diagram and mistakes with their sentences."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from finetune.evaluation.analysis_tables import TITLES, Table
from finetune.evaluation.calibration import Bin, error_of
from finetune.evaluation.error_analysis import Analysis, analyze, first_by_category, record
from finetune.evaluation.errors import ErrorCase, count_categories, most_confident
from finetune.types import UserError, shortened

if TYPE_CHECKING:
    from finetune.cli.arguments import AnalyseCommand

MOST_COLUMNS = 20
"""Labels of the widest confusion matrix that is printed; JSON has them all."""
MOST_ROWS = 15
"""Pairs of confused labels, and categories of mistakes, that are printed."""
CONTRADICTIONS = "Answers that contradict gold with more confidence than usual for their class"
PLAIN_WIDTH = 120
"""Letters in a line where the output is no terminal."""


def print_analysis(
    predictions: str, gold: str | None, command: AnalyseCommand, columns: Mapping[str, str]
) -> None:
    """What the command does."""
    if command.examples < 0:
        raise UserError(f"--examples must be 0 or more, not {command.examples}.")
    found = analyze(predictions, gold, split=command.split, train=command.train, columns=columns)
    if command.json:
        print(json.dumps(record(found, command.examples), indent=2, ensure_ascii=False))
        return
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else PLAIN_WIDTH)
    show(found, command.examples, console)


def show(found: Analysis, num_examples: int, console: Console) -> None:
    """Print an analysis."""
    console.print(
        f"[bold]{escape(found.predictions)}[/bold]: {found.num_examples:,} examples, gold: "
        f"{escape(found.gold)}",
        soft_wrap=True,
    )
    overall = {name: value for name, value in found.scores.items() if ":" not in name}
    console.print("  ".join(f"{name} {_cell(value)}" for name, value in overall.items()))
    for name, table in found.tables.items():
        _show_table(name, table, console)
    _show_bins(found.bins, found.kind, console)
    _show_mistakes(found, num_examples, console)


def _show_table(name: str, table: Table, console: Console) -> None:
    if not table:
        return
    if name == "confusion" and len(table) > MOST_COLUMNS:
        console.print(f"\n(the confusion matrix of {len(table)} labels is in --json)")
        return
    if name == "confusion":
        columns = ["gold", *table[0]["predicted"]]
        rows = [[row["gold"], *row["predicted"].values()] for row in table]
    else:
        columns = list(table[0])
        rows = [list(row.values()) for row in table]
    _print_grid(TITLES[name], columns, rows[:MOST_ROWS] if name == "confused" else rows, console)


def _print_grid(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], console: Console
) -> None:
    grid = Grid(title=escape(title), title_justify="left", title_style="bold", box=SIMPLE)
    for column, value in zip(columns, rows[0], strict=True):
        grid.add_column(escape(column), justify="left" if isinstance(value, str) else "right")
    for row in rows:
        grid.add_row(*(escape(_cell(value)) for value in row))
    console.print(grid)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        whole = value == int(value) and abs(value) > 1
        return f"{value:,.0f}" if whole else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _show_bins(bins: list[Bin], form: str, console: Console) -> None:
    """The reliability diagram, bins without answers left out."""
    if not bins:
        if form != "number":
            console.print("No probabilities in the predictions: nothing on calibration.\n")
        return
    rows = [
        (f"{each.low:.2f}-{each.high:.2f}", *each[2:], "#" * round(20 * each.accuracy))
        for each in bins
        if each.number
    ]
    what = {"label": "labels", "labels": "labels that may apply", "tags": "words"}
    title = (
        f"Calibration of {what.get(form, 'spans')}: expected calibration error {error_of(bins):.4f}"
    )
    _print_grid(title, ("confidence", "answers", "mean", "right", ""), rows, console)


def _show_mistakes(found: Analysis, number: int, console: Console) -> None:
    counts = count_categories(found.errors)
    if found.kind != "number":
        listed = [f"{name}: {count:,}" for name, count in counts.items()]
        console.print(f"[bold]Mistakes[/bold] {escape(shortened(listed, MOST_ROWS) or 'none')}")
    if not number:
        return
    _list("The surest mistakes", most_confident(found.errors, number), console)
    doubts = found.contradictions
    title = f"{CONTRADICTIONS} ({len(doubts):,}): look at these first"
    _list(title, doubts[:number], console)
    if found.not_credible:
        console.print(found.not_credible, markup=False)
    if found.kind == "label" or (found.kind == "tags" and "tag" in found.tables):
        return  # one category for each pair of labels: the surest ones say enough
    for name, some in first_by_category(found.errors, number).items():
        _list(
            "The largest errors" if name == "error" else f"{name} ({counts[name]:,})", some, console
        )


def _list(title: str, mistakes: list[ErrorCase], console: Console) -> None:
    if not mistakes:
        return
    console.print(f"\n[bold]{escape(title)}[/bold]")
    for mistake in mistakes:
        sure = "" if mistake.confidence is None else f" ({mistake.confidence:.3f})"
        sides = f"gold {_side(mistake.gold)}, predicted {_side(mistake.predicted)}{sure}"
        console.print(f"  {mistake.where}  {sides}", markup=False, soft_wrap=True)
        console.print(f"      {mistake.excerpt}", markup=False, soft_wrap=True)


def _side(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"{value['label']} {value['text']!r}"
    return f"{value:g}" if isinstance(value, float) else str(value)
