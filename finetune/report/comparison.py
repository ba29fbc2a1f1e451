"""Several systems against each other: each difference with its interval and both tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from finetune.comparing import Report, compare_systems, verdict
from finetune.report.gathering import System
from finetune.report.markup import Html, element, joined
from finetune.report.tables import table


def comparison(systems: Sequence[System]) -> Html:
    """The paired tests of ``finetune compare`` for every two systems."""
    rows, refused = [], []
    for first, second in combinations(systems, 2):
        try:
            rows.append(_row(first, second))
        except (ValueError, OSError) as error:
            refused.append(f"{first.name} and {second.name} cannot be compared: {error}")
    parts = [element("p", line, class_="verdict bad") for line in refused]
    if rows:
        columns = ["A", "B", "A - B", "95 % interval", "p (bootstrap)", "p (randomization)",
                   "verdict"]  # fmt: skip
        parts.append(table("Differences, by the paired tests of finetune compare", columns, rows))
        many = " With several pairs, one in twenty is significant by chance alone." if (
            len(rows) > 1) else ""  # fmt: skip
        parts.append(
            element("p", "Significant at 0.05 is what both tests find so." + many, class_="note")
        )
    return joined(parts)


def _row(first: System, second: System) -> list[object]:
    one, other = first.headline, second.headline
    if one is None or other is None:
        raise ValueError("one of them has no score.")
    if (one.metric, one.split) != (other.metric, other.split):
        raise ValueError(f"{one.metric} on {one.split} is no {other.metric} on {other.split}.")
    report = compare_systems(
        _files(one.folders), _files(other.folders), gold=None, metric=one.metric, split=one.split,
    )  # fmt: skip
    return [first.name, second.name, *_cells(report)]


def _files(folders: Sequence[Path]) -> str:
    """The runs by their folders: a folder of seeds may have unfinished ones."""
    return ",".join(map(str, folders))


def _cells(report: Report) -> list[object]:
    found = report.found
    value, low, high = found.difference
    return [
        f"{value:+.4f}", f"{low:+.4f} to {high:+.4f}", found.p_bootstrap, found.p_randomization,
        verdict(report),
    ]  # fmt: skip
