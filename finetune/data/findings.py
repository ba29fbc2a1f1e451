"""What the data doctor reports, and how it looks at one example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from finetune.types import Example, TokenExample

_MOST_PLACES = 5


@dataclass(frozen=True)
class Finding:
    """One thing to know about the data; ``places`` are the first few ``file:line`` of it.

    ``lines`` stand below the message as they are: a table.

    An error stops training or makes its score meaningless, a warning probably costs quality, an
    info is for reading.
    """

    level: Literal["error", "warning", "info"]
    check: str
    message: str
    places: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def render(findings: Iterable[Finding]) -> str:
    """The findings as text, errors last where they are seen, with a line of totals."""
    order = {"info": 0, "warning": 1, "error": 2}
    ranked = sorted(findings, key=lambda finding: order[finding.level])
    lines = []
    for finding in ranked:
        lines.append(f"{finding.level:<8} {finding.check:<11} {finding.message}")
        lines += [f"{'':<20} {line}" for line in finding.lines]
        lines += [f"{'':<20} at {place}" for place in finding.places]
    totals = Counter(finding.level for finding in ranked)
    lines.append(f"{totals['error']} errors, {totals['warning']} warnings")
    return "\n".join(lines)


def texts_of(example: Example) -> list[str]:
    """The text, or both texts of a pair; the words joined by blanks."""
    if isinstance(example, TokenExample):
        return [" ".join(example.words)]
    return [example.text] if example.pair is None else [example.text, example.pair]


def gold_of(example: Example) -> list[str] | None:
    """The label names of an example (of its spans, else of its words); None without gold."""
    if isinstance(example, TokenExample):
        if example.spans is not None:
            return [span.label for span in example.spans]
        return None if example.tags is None else list(example.tags)
    if example.label is None:
        return None
    return list(example.label) if isinstance(example.label, tuple) else [str(example.label)]


def first_places(places: Sequence[str]) -> tuple[str, ...]:
    """The first few places, with a count of the rest."""
    rest = len(places) - _MOST_PLACES
    return tuple(places[:_MOST_PLACES]) + ((f"… and {rest:,} more",) if rest > 0 else ())
