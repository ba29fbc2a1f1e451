"""Compare the scores of finished runs with the scores that their recipes expect."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finetune.config.expected_scores import Expected
from finetune.config.recipes import MAY_DIFFER, Recipe, changed
from finetune.evaluation.prediction_types import score_limits
from finetune.evaluation.runs import RunFolder, require_common_scores
from finetune.evaluation.significance import fold_test
from finetune.types import UserError, quantity


class ScoreVerdict(NamedTuple):
    """An expected score against the score of a run or of several seeds, None if not measured.

    The verdict is reproduced, below, above, not measured, not reproduced (and why), or not
    comparable (and why). ``statistic`` names the value in messages.
    """

    expected: Expected
    value: float | None
    verdict: str
    statistic: str = "got"

    def line(self) -> str:
        """Write the expected score and the verdict as a line of text."""
        entry = self.expected
        line = f"{entry.split} {entry.metric}: expected {entry.claimed}"
        if self.value is None:
            return f"{line}: {self.verdict}"
        compared = not self.verdict.startswith(("not measured", "not comparable"))
        source = f" ({entry.cited})" if compared else ""
        return f"{line}, {self.statistic} {self.value:.4f}: {self.verdict}{source}"

    def to_dict(self) -> dict[str, Any]:
        """Convert the expected score and the verdict to JSON values."""
        entry = self.expected
        return {
            "split": entry.split,
            "metric": entry.metric,
            "expected": entry.value,
            "tolerance": entry.tolerance,
            "statistic": entry.statistic,
            "source": entry.cited,
            "value": self.value,
            "verdict": self.verdict,
        }


def verdicts(
    expected: Iterable[Expected],
    metrics: Mapping[str, Mapping[str, Any]],
    differing: Sequence[str],
    *,
    num_degenerate: int = 0,
    num_seeds: int | None = None,
) -> list[ScoreVerdict]:
    """Compare every expected score with the score of a run, or with its statistic over seeds.

    With ``num_seeds``, ``metrics`` are statistics over seeds. ``differing`` are settings that
    differ from the recipe. If all runs are degenerate, nothing is reproduced.
    """
    judged = []
    for entry in expected:
        value, statistic = metrics.get(entry.split, {}).get(entry.metric), "got"
        if num_seeds is not None:
            scores = value or {}
            value = scores.get(entry.statistic)
            statistic = f"{entry.statistic} of {quantity(len(scores.get('seeds', ())), 'seed')}"
        if value is None:
            verdict = "not measured"
        elif differing:
            verdict = f"not comparable ({', '.join(differing)} changed)"
        elif not math.isfinite(value):
            verdict = "not reproduced (no number)"
        elif value > entry.value + entry.tolerance:
            verdict = "above"
        else:
            verdict = "below" if value < entry.value - entry.tolerance else "reproduced"
        if num_degenerate:
            if verdict in ("reproduced", "above") and num_degenerate == (num_seeds or 1):
                verdict = "not reproduced"
            seeds = f"{num_degenerate} of {quantity(num_seeds, 'seed')} " if num_seeds else ""
            verdict = f"{verdict} ({seeds}degenerate)"
        judged.append(ScoreVerdict(entry, value, verdict, statistic))
    return judged


def summarize(
    metrics: Mapping[Any, Mapping[str, Mapping[str, float]]], ratio: float | None = None
) -> dict[str, dict[str, dict[str, Any]]]:
    """Compute statistics over seeds by split and name, from scores by seed, split and name.

    A score that a seed lacks or that is not finite is left out. With ``ratio``, the scores are of
    folds, and the interval of ``fold_test`` is added for test.
    """
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    first = next(iter(metrics.values()), {})
    for split, names in first.items():
        for name in names:
            by_seed = {
                str(seed): scores.get(split, {}).get(name, math.nan)
                for seed, scores in metrics.items()
            }
            values = list(by_seed.values())
            if all(map(math.isfinite, values)):
                summary.setdefault(split, {})[name] = {
                    "mean": statistics.fmean(values),
                    "standard_deviation": standard_deviation(values),
                    "median": statistics.median(values),
                    "minimum": min(values),
                    "maximum": max(values),
                    "seeds": by_seed,
                }
                if ratio is not None and split == "test" and len(values) > 1:
                    interval, _ = fold_test(values, ratio, score_limits(name))
                    summary[split][name] |= {"low": interval.low, "high": interval.high}
    return summary


def standard_deviation(values: Sequence[float]) -> float | None:
    """Compute the standard deviation (n - 1) of scores over seeds; None for one seed."""
    return statistics.stdev(values) if len(values) > 1 else None


STATISTICS = {
    "mean": "mean",
    "deviation": "standard_deviation",
    "median": "median",
    "lowest": "minimum",
    "highest": "maximum",
}
"""Columns of a table of scores over seeds, and their names in ``seeds.json``."""


def score_table(folder: Path) -> tuple[list[str], list[list[Any]]]:
    """Tabulate the scores of a finished run, or the summary of its seeds: columns and rows."""
    require_common_scores(folder)
    run = RunFolder.open_all(folder)
    if not run.metrics:
        problem = (
            "no scores in seeds.json, folds.json or metrics.json: give the folder of a finished "
            "run, or train it again if the file is damaged."
        )
        if run.is_finished:
            problem = f"no split was scored: finetune score {folder} --data FILE scores a file."
        raise UserError(f"{folder}: {problem}")
    if run.seeds:
        return summary_table(run.metrics)
    scores = [[split, *row] for split, rows in run.metrics.items() for row in rows.items()]
    return ["split", "metric", "value"], scores


def summary_table(
    summary: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> tuple[list[str], list[list[Any]]]:
    """Tabulate the statistics of scores over seeds or folds: columns and rows."""
    scores = [(split, *row) for split, rows in summary.items() for row in rows.items()]
    names, runs = dict(STATISTICS), "seeds"
    if any("low" in row for _, _, row in scores):
        names, runs = {"mean": "mean", "low": "low", "high": "high"} | STATISTICS, "folds"
    rows = [
        [split, name, *(row.get(key) for key in names.values()), len(row["seeds"])]
        for split, name, row in scores
    ]
    return ["split", "metric", *names, runs], rows


def recipe_verdicts(run: RunFolder, recipe: Recipe, *free: str) -> list[ScoreVerdict]:
    """Judge each expected score; besides the seed, settings ``free`` may differ."""
    differing = changed(run.config, recipe.config(), *MAY_DIFFER, *free)
    degenerate, num_seeds = 1 if run.environment.get("degenerate") else 0, None
    if run.seeds:
        bad = {row["seed"] for row in run.seeds.get("degenerate") or ()}
        degenerate, num_seeds = len(bad), len(bad.union(run.seeds.get("seeds") or ()))
    return verdicts(
        recipe.expected, run.metrics, differing, num_degenerate=degenerate, num_seeds=num_seeds
    )
