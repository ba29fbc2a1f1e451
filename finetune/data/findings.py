"""Findings of the data checks, and their text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from finetune.types import quantity

Level = Literal["error", "warning", "info"]
_MAX_LOCATIONS = 5


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


def located(level: Level, check: str, message: str, locations: Sequence[str]) -> list[Finding]:
    """Return a finding with its first locations, or nothing if there are no locations."""
    rest = len(locations) - _MAX_LOCATIONS
    more = (f"… and {rest:,} more",) if rest > 0 else ()
    first = (*locations[:_MAX_LOCATIONS], *more)
    return [Finding(level, check, message, first)] if locations else []


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
