"""Print the comparison of two systems as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from finetune.evaluation.compare import (
    SystemComparison,
    compare_systems,
    comparison_record,
    seed_note,
    verdict,
)
from finetune.evaluation.significance import LEVEL, Estimate

if TYPE_CHECKING:
    from finetune.cli.arguments import CompareCommand


def print_comparison(
    first: str, second: str, command: CompareCommand, columns: Mapping[str, str]
) -> None:
    """Compare two systems and print the result."""
    comparison = compare_systems(
        first,
        second,
        gold=command.gold,
        columns=columns,
        metric=command.metric,
        split=command.split,
        unit=command.unit,
        resamples=command.resamples,
        train=command.train,
        seed=command.seed,
    )
    if command.json:
        print(json.dumps(comparison_record(comparison), indent=2))
    else:
        print(comparison_table(comparison))


def comparison_table(comparison: SystemComparison) -> str:
    """Return the comparison as text for people."""
    result, first, second = comparison.result, comparison.first, comparison.second
    rows = [
        ("", "score", f"{1 - LEVEL:.0%} interval".replace("%", " %"), "runs", ""),
        ("A", *_cells(result.first), str(len(result.runs[0])), first.name),
        ("B", *_cells(result.second), str(len(result.runs[1])), second.name),
        ("A - B", *_cells(result.difference, "+"), "", ""),
    ]
    lines = [f"{a:6} {b:>8}  {c:<20}  {d:>4}  {e}".rstrip() for a, b, c, d, e in rows]
    return "\n".join(
        [
            f"{comparison.metric} on {result.num_units:,} {comparison.unit} (gold: "
            f"{comparison.gold}), {result.num_resamples:,} resamples, seed {comparison.seed}",
            *lines,
            f"p      {result.p_bootstrap:.4f} (paired bootstrap), {result.p_randomization:.4f} "
            "(approximate randomization)",
            f"{verdict(comparison)} {seed_note(comparison)}",
        ]
    )


def _cells(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    value, low, high = (f"{number:{sign}.4f}" for number in estimate)
    return value, f"{low} to {high}"
