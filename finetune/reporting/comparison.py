"""Several systems against each other: each difference with its interval and both tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from finetune.evaluation.compare import Report, about_seeds, compare_systems, verdict
from finetune.reporting.html import Html, element, joined
from finetune.reporting.runs import System
from finetune.reporting.tables import table
from finetune.types import UserError


def comparison(systems: Sequence[System]) -> Html:
    """The paired tests of ``finetune compare`` for every two systems."""
    found, refused = [], []
    for first, second in combinations(systems, 2):
        try:
            found.append((first.name, second.name, _compared(first, second)))
        except (ValueError, OSError) as error:
            refused.append(f"{first.name} and {second.name} cannot be compared: {error}")
    parts = [element("p", line, class_="verdict bad") for line in refused]
    if found:
        columns = ["A", "B", "A - B", "95 % interval", "p (bootstrap)", "p (randomization)",
                   "verdict"]  # fmt: skip
        rows = [[first, second, *_cells(report)] for first, second, report in found]
        parts.append(table("Differences, by the paired tests of finetune compare", columns, rows))
        many = " With several pairs, one in twenty is significant by chance alone." if (
            len(rows) > 1) else ""  # fmt: skip
        parts.append(
            element("p", "Significant at 0.05 is what both tests find so." + many, class_="note")
        )
        parts += [element("p", line, class_="note") for line in _about_seeds(found)]
    return joined(parts)


def _about_seeds(found: Sequence[tuple[str, str, Report]]) -> Iterator[str]:
    """What the verdicts say of other seeds: a line for each pair, or for all where it is one."""
    said = [about_seeds(report) for _, _, report in found]
    if len(set(said)) == 1:
        yield said[0]
        return
    for (first, second, _), line in zip(found, said, strict=True):
        yield f"{first} and {second}: {line}"


def _compared(first: System, second: System) -> Report:
    one, other = first.headline, second.headline
    if one is None or other is None:
        raise UserError("one of them has no score.")
    if (one.metric, one.split) != (other.metric, other.split):
        raise UserError(f"{one.metric} on {one.split} is no {other.metric} on {other.split}.")
    return compare_systems(
        _files(one.folders), _files(other.folders), gold=None, metric=one.metric, split=one.split,
    )  # fmt: skip


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
