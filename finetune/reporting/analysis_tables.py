"""The tables of an analysis, as pages and terminals show them."""

from __future__ import annotations

from finetune.evaluation.error_analysis import TITLES, Analysis
from finetune.reporting.rendering import Table

_FRACTIONS = frozenset({"precision", "recall", "f1", "accuracy"})
"""Columns that a page also draws as bars."""


def analysis_tables(found: Analysis) -> dict[str, Table]:
    """Return the tables of an analysis that have rows, by name."""
    tables = {"scores": Table("Scores", ["metric", "value"], [*found.scores.items()])}
    for name, rows in found.tables.items():
        if rows and name == "confusion":
            columns = ["gold", *rows[0]["predicted"]]
            cells = [[row["gold"], *row["predicted"].values()] for row in rows]
            tables[name] = Table(TITLES[name], columns, cells)
        elif rows:
            bars = [index for index, column in enumerate(rows[0]) if column in _FRACTIONS]
            cells = [[*row.values()] for row in rows]
            tables[name] = Table(TITLES.get(name, name.capitalize()), [*rows[0]], cells, bars)
    if found.bins:
        tables["calibration"] = Table("Calibration", found.bins[0]._fields, found.bins)
    return tables


def reliability_table(found: Analysis) -> Table:
    """Return accuracy by confidence, for reading: without empty bins."""
    columns = ["confidence", "predictions", "mean confidence", "accuracy"]
    rows = [[f"{each.low:.2f} to {each.high:.2f}", *each[2:]] for each in found.bins if each.number]
    return Table("Predictions by confidence", columns, rows, [3])
