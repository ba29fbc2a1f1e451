"""Compare the scores of runs with the scores that a recipe expects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from finetune.config.expected_scores import Expected
from finetune.types import UserError


class Claim(NamedTuple):
    """One of a recipe's scores against a run, or against several seeds: ``verdict`` is reproduced,
    below, above, not measured, not reproduced (with why) or not comparable (with what differs);
    ``got`` says what ``value`` is."""

    expected: Expected
    value: float | None
    verdict: str
    got: str = "got"

    def failed(self, why: str, wholly: bool) -> Claim:
        """The claim against runs that learnt nothing: some of them, or ``wholly``, and then nothing
        is reproduced."""
        good = self.verdict in ("reproduced", "above")
        said = "not reproduced" if wholly and good else self.verdict
        return self._replace(verdict=f"{said} ({why})")

    def line(self) -> str:
        """The claim and what came of it, to read."""
        entry = self.expected
        claim = f"{entry.split} {entry.metric}: expected {entry.claimed}"
        if self.value is None:
            return f"{claim}: {self.verdict}"
        judged = not self.verdict.startswith(("not measured", "not comparable"))
        source = f" ({entry.cited})" if judged else ""
        return f"{claim}, {self.got} {self.value:.4f}: {self.verdict}{source}"

    def record(self) -> dict[str, Any]:
        """The claim and what came of it as JSON values."""
        entry = self.expected
        return {
            "split": entry.split, "metric": entry.metric, "expected": entry.value,
            "tolerance": entry.tolerance, "statistic": entry.statistic, "source": entry.cited,
            "value": self.value, "verdict": self.verdict,
        }  # fmt: skip


def verdict(expected: Expected, value: float) -> str:
    """``reproduced``, ``below`` or ``above``: a measured score against the recipe's claim. Raises
    ValueError where a number is none."""
    if not all(map(math.isfinite, (value, expected.value, expected.tolerance))):
        raise UserError(f"{value} against {expected.claimed}: only finite numbers compare.")
    if value < expected.value - expected.tolerance:
        return "below"
    return "above" if value > expected.value + expected.tolerance else "reproduced"


def claims(
    expected: Iterable[Expected],
    metrics: Mapping[str, Mapping[str, float]],
    differing: Sequence[str],
    fingerprint: str | None = None,
    *,
    degenerate: bool = False,
) -> list[Claim]:
    """Every score that is expected against the metrics of a run, by split; ``differing`` are the
    settings in which the run was not the recipe's, ``fingerprint`` is that of its data. A
    degenerate run reproduces nothing."""
    made = [
        _claim(e, metrics.get(e.split, {}).get(e.metric), _differing(e, differing, fingerprint))
        for e in expected
    ]
    return [claim.failed("degenerate", True) for claim in made] if degenerate else made


def claims_of_seeds(
    expected: Iterable[Expected],
    summary: Mapping[str, Mapping[str, Mapping[str, Any]]],
    differing: Sequence[str],
    num_degenerate: int,
    num_seeds: int,
    fingerprint: str | None = None,
) -> list[Claim]:
    """Every score that is expected against its statistic over seeds: ``summary`` is that of
    `seeds.json`, by split and score. Degenerate seeds are counted in, and said; where there are no
    others, nothing is reproduced."""
    found = []
    for entry in expected:
        each = summary.get(entry.split, {}).get(entry.metric, {})
        changed = _differing(entry, differing, fingerprint)
        claim = _claim(entry, each.get(entry.statistic), changed)
        if num_degenerate:
            failed = f"{num_degenerate} of {counted(num_seeds)} degenerate"
            claim = claim.failed(failed, num_degenerate == num_seeds)
        got = f"{entry.statistic} of {counted(len(each.get('seeds', ())))}"
        found.append(claim._replace(got=got))
    return found


def counted(number: int) -> str:
    """A number of seeds."""
    return f"{number} seed{'s' if number != 1 else ''}"


def _differing(entry: Expected, differing: Sequence[str], fingerprint: str | None) -> Sequence[str]:
    """What differs for one score: not where its data are, if they are the same."""
    if entry.fingerprint is None or entry.fingerprint != fingerprint:
        return differing
    return [name for name in differing if name not in ("data", "columns")]


def _claim(entry: Expected, value: float | None, differing: Sequence[str]) -> Claim:
    if value is None:
        return Claim(entry, value, "not measured")
    if differing:
        return Claim(entry, value, f"not comparable ({', '.join(differing)} changed)")
    if not math.isfinite(value):
        return Claim(entry, value, "not reproduced (no number)")
    return Claim(entry, value, verdict(entry, value))
