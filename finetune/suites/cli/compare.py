"""`finetune compare SUITE1 SUITE2`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.output import print_tables, refuse_options, show
from finetune.types import UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.cli.compare import Compare
    from finetune.evaluation.compare import Entry
    from finetune.suites.comparison import SuiteComparison

USED = ("first", "second", "unit", "resamples", "seed", "format")
"""The options of `compare` that apply to suites."""


def compare_suites(command: Compare, entries: Sequence[Entry]) -> None:
    """Print a paired test on each data set of two suites, and the tests over data sets."""
    from finetune.evaluation.compare import ComparisonOptions
    from finetune.suites import comparison
    from finetune.suites.results import open_suite

    if len(entries) != 2:
        raise UserError("suites are compared two at a time: finetune compare SUITE1 SUITE2")
    refuse_options(command, USED, "suites")
    first, second = (open_suite(Path(entry.runs)) for entry in entries)
    names = [entry.system or entry.runs for entry in entries]
    options = ComparisonOptions(unit=command.unit, resamples=command.resamples, seed=command.seed)
    found = comparison.compare_suites(first, second, options)
    if command.format == "json":
        record = {
            "a": names[0],
            "b": names[1],
            "resamples": command.resamples,
            "seed": command.seed,
            "data": [each.record() for each in found.data],
            "p_signed_ranks": found.signed_ranks,
            "left_out": list(found.left_out),
        }
        show(json.dumps(record, indent=2, ensure_ascii=False))
        return
    if command.format == "csv":
        records = [each.record() for each in found.data]
        rows = [[*record.values()] for record in records]
        print_tables("csv", ("", [*records[0]], rows))
    else:
        columns = ["data set", "split", "metric", "A", "B", "A - B", "low", "high"]
        columns += ["p", "p (Holm)", ""]
        rows = [_row(each.record()) for each in found.data]
        print_tables(command.format, ("", columns, rows))
    for line in _notes(command, names, found):
        command.note(line)


def _row(record: dict[str, Any]) -> list[Any]:
    names = ["data", "split", "metric", "a", "b"]
    names += ["difference_value", "difference_low", "difference_high", "p", "p_holm"]
    better = "A" if record["difference_value"] > 0 else "B"
    mark = f"{better} is higher" if record["significant"] else ""
    return [*(record[name] for name in names), mark]


def _notes(command: Compare, names: Sequence[str], found: SuiteComparison) -> list[str]:
    """Return lines that explain the table, and the tests over data sets."""
    from finetune.evaluation.significance import ALPHA
    from finetune.suites.comparison import FEWEST_DATA_SETS

    number = len(found.data)
    significant = sum(each.adjusted < ALPHA for each in found.data)
    lines = [
        f"A is {names[0]}, B is {names[1]}; p is the larger p-value of the paired bootstrap and of "
        f"approximate randomization ({quantity(command.resamples, 'resample')}, seed "
        f"{command.seed}), with its 95 % interval of A - B.",
        f"{significant} of {quantity(number, 'difference is', 'differences are')} significant at "
        f"{ALPHA}, adjusted for {quantity(number, 'test')} (Holm, 1979).",
    ]
    if found.signed_ranks is not None:
        few = (
            f"; with fewer than {FEWEST_DATA_SETS} data sets it cannot be below {ALPHA}"
            if number < FEWEST_DATA_SETS
            else ""
        )
        lines.append(
            f"Over {quantity(number, 'data set')}: p {found.signed_ranks:.4f} by Wilcoxon's "
            f"signed-ranks test (Demšar, 2006){few}."
        )
    if found.left_out:
        lines.append(f"Without finished runs in both suites: {abbreviated(found.left_out)}.")
    return lines
