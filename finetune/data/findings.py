"""Findings of the data checks, and their text."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from finetune.data.examples import Examples
from finetune.types import quantity

Level = Literal["error", "warning", "info"]
MAX_LOCATIONS = 5
"""Most locations that a finding names."""
MAX_BAD_ROWS = 100
"""Most rows that cannot be read whose errors are listed."""


@dataclass(frozen=True)
class Finding:
    """One fact or problem of the data.

    An ``error`` stops training, a ``warning`` probably costs quality, an ``info`` is a statistic.
    """

    level: Level
    check: str
    message: str
    locations: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the message with its first location."""
        return f"{self.message} (first in {self.locations[0]})" if self.locations else self.message


class Locations:
    """The first ones of some locations, and their number."""

    def __init__(self, locations: Iterable[str], number: int | None = None) -> None:
        """Keep the first locations; ``number`` is given if the others are not."""
        remaining = iter(locations)
        self.first = tuple(itertools.islice(remaining, MAX_LOCATIONS))
        self._number = len(self.first) + sum(1 for _ in remaining) if number is None else number

    def __len__(self) -> int:
        return self._number


def locations_of(rows: Examples, found: Iterable[bool]) -> Locations:
    """Return the locations of the examples for which ``found`` is true."""
    indices = (index for index, value in enumerate(found) if value)
    first = list(itertools.islice(indices, MAX_LOCATIONS))
    return Locations(rows.places(first), len(first) + sum(1 for _ in indices))


def located(
    level: Level, check: str, message: str, locations: Iterable[str] | Locations
) -> list[Finding]:
    """Return a finding with its first locations, or nothing if there are no locations."""
    if not isinstance(locations, Locations):
        locations = Locations(locations)
    rest = len(locations) - MAX_LOCATIONS
    more = (f"… and {rest:,} more",) if rest > 0 else ()
    first = (*locations.first, *more)
    return [Finding(level, check, message, first)] if locations else []


def bad_rows(errors: Iterable[str]) -> list[Finding]:
    """Return a finding with the errors of rows that cannot be read, or nothing without any."""
    found = [*dict.fromkeys(errors)]
    if not found:
        return []
    rest = len(found) - MAX_BAD_ROWS
    more = (f"… and {rest:,} more",) if rest > 0 else ()
    counted = quantity(len(found), "row cannot be read", "rows cannot be read")
    return [Finding("error", "rows", counted, (*found[:MAX_BAD_ROWS], *more))]


def render(findings: Iterable[Finding]) -> str:
    """Return the findings as text, errors last where they are seen, with a line of totals."""
    order = {"info": 0, "warning": 1, "error": 2}
    ranked = sorted(findings, key=lambda finding: order[finding.level])
    lines = []
    for finding in ranked:
        lines.append(f"{finding.level:<8} {finding.check:<11} {finding.message}")
        lines += [f"{'':<20} at {location}" for location in finding.locations]
    totals = Counter(finding.level for finding in ranked)
    lines.append(f"{quantity(totals['error'], 'error')}, {quantity(totals['warning'], 'warning')}")
    return "\n".join(lines)
