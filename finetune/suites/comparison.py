"""`finetune compare SUITE1 SUITE2`: a paired test on each data set, and tests over the data sets.

The p-values of the data sets are adjusted for their number by the procedure of Holm (1979, "A
simple sequentially rejective multiple test procedure"). Whether one system is better over data
sets is the question of the signed-ranks test of Wilcoxon (Demšar, 2006, "Statistical comparisons of
classifiers over multiple data sets").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finetune.cli.output import print_tables, refuse_options, show
from finetune.evaluation.compare import (
    ComparisonOptions,
    Entry,
    SystemComparison,
    compare_systems,
)
from finetune.evaluation.significance import ALPHA, Comparison, adjust
from finetune.suites.definition import Score
from finetune.suites.results import SavedSuite, open_suite
from finetune.types import UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.cli.compare import Compare

USED = ("first", "second", "unit", "resamples", "seed", "format")
"""The options of `compare` that apply to suites."""
FEWEST_DATA_SETS = 6
"""With fewer data sets the smallest p-value of the signed-ranks test exceeds ``ALPHA``."""


class SuiteComparison(NamedTuple):
    """The comparison of two suites."""

    rows: Sequence[dict[str, Any]]
    """The test on each split of a data set, as JSON values."""
    signed_ranks: float | None
    """The p-value of Wilcoxon's signed-ranks test over data sets; None for fewer than two."""
    left_out: Sequence[str]
    """Data sets that only one of the suites has."""


def compare_saved(
    first: SavedSuite, second: SavedSuite, options: ComparisonOptions
) -> SuiteComparison:
    """Compare the systems of two suites on each data set that both have.

    A data set with several test sets counts once for each, with the first metric of its scores. The
    p-value of a row is the larger one of the bootstrap and the randomization test. Raises UserError
    if the suites share no data set with finished runs.
    """
    suites, names = (first, second), {**first.scores, **second.scores}
    both = {
        name: [",".join(str(each.run(name, seed)) for seed in each.runs(name)) for each in suites]
        for name in names
        if all(name in each.scores and each.runs(name) for each in suites)
    }
    rows: list[dict[str, Any]] = []
    tests: list[Comparison] = []
    differences: list[float] = []
    for name in filter(both.__contains__, first.scores):
        by_split = {score.split: score for score in reversed(first.scores[name])}
        for score in (each for each in first.scores[name] if by_split[each.split] == each):
            own = replace(options, metric=score.metric, split=score.split, run_files=False)
            try:
                found = compare_systems(*both[name], options=own)
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
            rows.append(_row(name, score, found))
            tests.append(found.result)
            sign = -1 if found.lower_is_better else 1
            differences.append(sign * found.result.difference.value)
    if not rows:
        raise UserError(
            f"{first.folder} and {second.folder} share no data set with finished runs: they have "
            f"{abbreviated(first.scores)} and {abbreviated(second.scores)}."
        )
    for row, test in zip(rows, adjust(tests), strict=True):
        row |= {"p_holm": test.adjusted, "significant": test.significant}
    left_out = [name for name in names if name not in both]
    return SuiteComparison(rows, signed_ranks(differences), left_out)


def _row(member: str, score: Score, comparison: SystemComparison) -> dict[str, Any]:
    result = comparison.result
    return {
        "data": member,
        "split": score.split,
        "metric": score.metric,
        "a": result.first.value,
        "b": result.second.value,
        **{f"difference_{k}": v for k, v in result.difference._asdict().items()},
        "runs_a": len(result.runs[0]),
        "runs_b": len(result.runs[1]),
        "p_bootstrap": result.p_bootstrap,
        "p_randomization": result.p_randomization,
        "p": result.p,
    }


def signed_ranks(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Wilcoxon's signed-ranks test; None for fewer than two.

    Ranks of differences of zero are divided between both sides, as Demšar (2006) does.

    >>> round(signed_ranks([0.2, 0.1, 0.3, 0.05, 0.4, 0.15]), 5)
    0.03125
    """
    from scipy.stats import wilcoxon  # imported late: it costs half a second

    if len(differences) < 2:
        return None
    if not any(differences):
        return 1.0
    return float(wilcoxon(differences, zero_method="zsplit").pvalue)


def compare_suites(command: Compare, entries: Sequence[Entry]) -> None:
    """Print a paired test on each data set of two suites, and the tests over data sets."""
    if len(entries) != 2:
        raise UserError("suites are compared two at a time: finetune compare SUITE1 SUITE2")
    refuse_options(command, USED, "suites")
    first, second = (open_suite(Path(entry.runs)) for entry in entries)
    names = [entry.system or entry.runs for entry in entries]
    options = ComparisonOptions(unit=command.unit, resamples=command.resamples, seed=command.seed)
    found = compare_saved(first, second, options)
    if command.format == "json":
        record = {
            "a": names[0],
            "b": names[1],
            "resamples": command.resamples,
            "seed": command.seed,
            "data": found.rows,
            "p_signed_ranks": found.signed_ranks,
            "left_out": found.left_out,
        }
        show(json.dumps(record, indent=2, ensure_ascii=False))
        return
    if command.format == "csv":
        print_tables("csv", ("", [*found.rows[0]], [[*row.values()] for row in found.rows]))
    else:
        columns = ["data set", "split", "metric", "A", "B", "A - B", "low", "high"]
        columns += ["p", "p (Holm)", ""]
        print_tables(command.format, ("", columns, [_cells(row) for row in found.rows]))
    for line in _notes(command, names, found):
        command.note(line)


def _cells(row: dict[str, Any]) -> list[Any]:
    names = ["data", "split", "metric", "a", "b"]
    names += ["difference_value", "difference_low", "difference_high", "p", "p_holm"]
    better = "A" if row["difference_value"] > 0 else "B"
    return [*(row[name] for name in names), f"{better} is higher" if row["significant"] else ""]


def _notes(command: Compare, names: Sequence[str], found: SuiteComparison) -> list[str]:
    """Return lines that explain the table, and the tests over data sets."""
    number = len(found.rows)
    significant = sum(row["significant"] for row in found.rows)
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
