"""The HTML page of a suite: one file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finetune.reporting import REPORT_FILE
from finetune.reporting.html import Table, inlined
from finetune.reporting.rendering import render
from finetune.suites.results import SuiteResults

PACKAGE = "finetune.suites"
"""The package whose templates make the page."""


def page(results: SuiteResults, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return the table of a suite as HTML, with links to the reports of its members."""
    suite = results.suite
    reports = [
        (name, f"{name}/{REPORT_FILE}")
        for name in suite.members
        if (results.folder / name / REPORT_FILE).is_file()
    ]
    return render(
        "suite.html",
        PACKAGE,
        **inlined(),
        suite=suite,
        table=Table(f"Scores of {suite.title}", list(columns), [list(row) for row in rows]),
        notes=results.notes(),
        reports=reports,
    )
