"""The list of recipes and suites: `finetune run` without a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finetune.cli.output import TableFormat, error_line, print_tables, show
from finetune.registry import LISTS, imported
from finetune.types import UserError, abbreviated, quantity


def list_recipes(folder: str, runs_folder: str, format: TableFormat) -> None:
    """Print the recipes and suites of a folder, the scores they expect, and the scores of runs.

    Raises:
        UserError: At the end, if one cannot be read.
    """
    from finetune.config.recipes import find_recipes, find_suites
    from finetune.evaluation.reproduction import (
        RECIPE_COLUMNS,
        finished_runs,
        recipe_lines,
        recipe_rows,
    )

    paths = find_recipes(folder)
    if not paths:
        raise UserError(f"{folder}: no recipes (*.yaml) in this folder.")
    suites = find_suites(folder)
    runs = finished_runs(Path(runs_folder))
    unreadable: list[str] = []
    rows: list[list[Any]] = []
    for path in [*paths, *suites]:
        try:
            if path in suites:
                lines = _lines_of_list(path)
            else:
                lines = list(recipe_lines(path, runs))
                rows += recipe_rows(path, runs)
        except (UserError, OSError) as error:
            unreadable.append(str(path))
            lines = [error_line(error)[0]]
        if format == "table" or str(path) in unreadable:
            show("\n    ".join([str(path), *lines]), error=format != "table")
    if format != "table":
        print_tables(format, ("", RECIPE_COLUMNS, rows))
    if unreadable:
        number = len(paths) + len(suites)
        raise UserError(
            f"{len(unreadable)} of {quantity(number, 'recipe')} cannot be read: "
            f"{abbreviated(unreadable, 3)}; the reasons are above."
        )


def _lines_of_list(path: Path) -> list[str]:
    """Return the lines on a file that lists recipes; UserError for a file that does not."""
    from finetune.config.recipes import listed_recipes

    key = listed_recipes(path)
    if key is None:
        raise UserError(f"{path}: lists no recipes: it needs one of {', '.join(LISTS)}.")
    return list(imported(LISTS[key].lines)(path))
