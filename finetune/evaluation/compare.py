"""Compare two systems on the same gold, with intervals and two significance tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from finetune.config.metric_properties import properties_of
from finetune.config.values import MOST_RESAMPLES, require_count
from finetune.data import DataError
from finetune.evaluation import significance
from finetune.evaluation.custom_metrics import load_metric
from finetune.evaluation.prediction_types import DEFAULT_METRICS, score_limits
from finetune.evaluation.prediction_types.labels import choose_positive
from finetune.evaluation.predictions import GoldSource, align_runs, notes_on
from finetune.evaluation.reproduction import standard_deviation
from finetune.evaluation.runs import RunFolder, find_system, read_summary
from finetune.evaluation.significance import ALPHA, Comparison, Counts, Estimate
from finetune.evaluation.tables import TableRows, Tables
from finetune.types import UserError, quantity


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Options of a comparison."""

    source: GoldSource = field(default_factory=GoldSource)
    metric: str | None = None
    """By default the metric of training; `FILE.py:FUNCTION` is a custom one."""
    split: str = "test"
    unit: str = "example"
    """The resampling unit, ``example`` or ``document``."""
    resamples: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        require_count("--resamples", self.resamples, most=MOST_RESAMPLES)


@dataclass(frozen=True, kw_only=True)
class SystemComparison:
    """The counts of a metric for each run of each system on the same gold."""

    files: Sequence[tuple[Path, ...]]
    counts: Sequence[Sequence[Counts]]
    metric: str
    lower_is_better: bool
    unit: str
    runs: Sequence[Tables]
    positive_note: str
    notes: Sequence[str]
    """By system: labels that it lacks, that it predicts none of gold, or how often it abstains."""
    options: ComparisonOptions

    @property
    def how(self) -> dict[str, Any]:
        """The arguments of tests and intervals."""
        resamples, seed = self.options.resamples, self.options.seed
        return {"num_resamples": resamples, "seed": seed, "limits": score_limits(self.metric)}

    @property
    def result(self) -> Comparison:
        """The comparison of the first two systems."""
        return significance.compare(*self.counts[:2], **self.how)


def compare_systems(
    first: str, second: str, *, options: ComparisonOptions | None = None
) -> SystemComparison:
    """Compare two systems, each named as ``find_system`` reads it."""
    return _count([first, second], options or ComparisonOptions())


def _count(systems: Sequence[str], options: ComparisonOptions) -> SystemComparison:
    files = [find_system(system, options.split) for system in systems]
    runs = align_runs(list(chain.from_iterable(files)), options.source)
    type, metric = runs[0].type, options.metric
    if metric is not None and ".py:" in metric:
        metric, custom = load_metric(metric)
        counts, lower = significance.custom_counts(custom, runs), custom.lower_is_better
    else:
        run = RunFolder.open(files[0][0].parent)
        usual = run.usual_metric(options.split, type.default)
        try:
            counts = significance.count_metric(metric or usual, runs)
            metric = metric or usual
        except UserError:
            if metric is not None:
                raise
            metric = type.default  # a custom metric selected the model
            counts = significance.count_metric(metric, runs)
        lower = properties_of(metric).lower_is_better
    for name, option, value in (
        ("f1", "--positive", options.source.positive),
        ("mean_cost", "--costs", options.source.costs),
    ):
        if value and metric != name:
            raise UserError(
                f"{option}: it is for --metric {name}, and the metric is {metric}: name the metric "
                f"{name}, or leave {option} out."
            )
    units = runs[0].unit
    if options.unit == "document":
        first, units = runs[0], "document"
        if all(name is None for name in first.documents):
            raise DataError(
                f"{first.files[1]}: --unit document: its examples name no documents: -DOCSTART- or "
                "# newdoc lines in columns, a column `document` in tables; or leave --unit out."
            )
        counts = [replace(of_run, unit=first.clusters) for of_run in counts]
    remaining, remaining_runs, notes = iter(counts), iter(runs), list[str]()
    for system in files:
        of_system = dict[str, None]()
        for file, tables in zip(system, remaining_runs, strict=False):
            of_system |= dict.fromkeys(notes_on(tables, file.parent))
        notes.append(" ".join(of_system))
    return SystemComparison(
        files=files,
        counts=[[next(remaining) for _ in system] for system in files],
        metric=metric,
        lower_is_better=lower,
        unit=units,
        runs=runs,
        positive_note=choose_positive(runs, options.source.positive)[1] if metric == "f1" else "",
        notes=notes,
        options=options,
    )


class Entry(NamedTuple):
    """A system on a data set, as the user named both; ``find_system`` gives its ``runs``."""

    system: str
    data: str
    runs: str


def score_systems(
    entries: Sequence[Entry], *, baseline: str, options: ComparisonOptions
) -> tuple[TableRows, list[str]]:
    """Score systems on data sets, test each against the ``baseline``, and write notes.

    A row has the ``mean`` over the runs of a system on a data set with its interval, and their
    standard ``deviation``, None for one run. The test is None for the baseline, and if the baseline
    has no run on the data set; its ``p`` is adjusted for all comparisons of the table (Holm).
    """
    rows, notes = TableRows(), list[str]()
    for data in dict.fromkeys(entry.data for entry in entries):
        names = [entry.system for entry in entries if entry.data == data]
        counted = _count([entry.runs for entry in entries if entry.data == data], options)
        named = zip(names, counted.notes, strict=True)
        notes += [f"{data}: {counted.positive_note}"] if counted.positive_note else []
        notes += [f"{data}, {name}: {note}" for name, note in named if note]
        scores = [significance.observed_scores(runs).tolist() for runs in counted.counts]
        means = [float(np.mean(of_runs)) for of_runs in scores]
        best = min(means) if counted.lower_is_better else max(means)
        against = counted.counts[names.index(baseline)] if baseline in names else None
        for index, (name, runs) in enumerate(zip(names, counted.counts, strict=True)):
            test = None
            if against and name != baseline:
                test = significance.compare(runs, against, **counted.how)
            estimate = significance.estimate(runs, **counted.how)
            rows.append(
                {
                    **{"system": name, "data": data, "metric": counted.metric},
                    **dict(zip(("mean", "low", "high"), estimate, strict=True)),
                    "deviation": standard_deviation(scores[index]),
                    "runs": len(runs),
                    "best": math.isclose(means[index], best, rel_tol=1e-9),
                    "p_bootstrap": test and test.p_bootstrap,
                    "p_randomization": test and test.p_randomization,
                    "p": test and max(test.p_bootstrap, test.p_randomization),
                }
            )
    adjusted = iter(significance.holm([row["p"] for row in rows if row["p"] is not None]))
    for row in rows:
        row["p"] = None if row["p"] is None else next(adjusted)
        row["significant"] = row["p"] is not None and row["p"] < ALPHA
    return rows, notes


def compare_folds(
    first: Path, second: Path, metric: str | None = None
) -> tuple[str, list[Estimate], float, int]:
    """Compare two systems of ``--folds`` by the corrected t-test of Nadeau & Bengio (2003).

    Returns:
        The metric; the mean scores of both, and their difference; the p-value of the difference;
        and the number of folds.
    """
    summaries = [read_summary(folder) for folder in (first, second)]
    for name in ("data", "folds", "seed"):
        one, other = (content.get(name) for content in summaries)
        if one != other:
            values = "their data differ" if name == "data" else f"--{name} is {one} and {other}"
            raise UserError(
                f"{first} and {second} have other folds, as {values}: train both with the same "
                "data, --folds, --limit and --seed."
            )
    tests = [(content.get("metrics") or {}).get("test", {}) for content in summaries]
    shared = [name for name in tests[0] if name in tests[1]]
    metric = metric or next((name for name in DEFAULT_METRICS.values() if name in shared), "")
    if metric not in shared:
        raise UserError(f"--metric {metric}: both runs of folds have {', '.join(shared)}.")
    scores = [of_test[metric]["seeds"] for of_test in tests]
    names = [name for name in scores[0] if name in scores[1]]
    if len(names) < 2:
        raise UserError(f"{first} and {second} have {quantity(len(names), 'fold')} in common.")
    ratio = summaries[0]["ratio"]
    pairs = [(scores[0][name], scores[1][name]) for name in names]
    limits = score_limits(metric)
    one, other = (
        significance.fold_test(side, ratio, limits)[0] for side in zip(*pairs, strict=True)
    )
    difference, p = significance.fold_test([a - b for a, b in pairs], ratio)
    return metric, [one, other, difference], p, len(names)


def verdict(result: Comparison, lower_is_better: bool) -> str:
    """Say in one sentence whether the difference is significant, which takes both tests."""
    both = result.p_bootstrap < ALPHA, result.p_randomization < ALPHA
    if all(both):
        first = (result.difference.value > 0) != lower_is_better
        return f"The difference is significant at {ALPHA}: {'A' if first else 'B'} is better."
    if not any(both):
        return f"The difference is not significant at {ALPHA}."
    if both[1] and result.deviation is not None:
        return (
            f"The difference is not significant at {ALPHA}: these runs differ, but runs with other "
            "seeds may not."
        )
    return f"The two tests disagree at {ALPHA}, so the difference may not be significant."


def seed_note(result: Comparison) -> str:
    """Say whether the verdict holds for runs with other seeds."""
    if result.deviation is None:
        return "With one run of each system, the result may not hold for other seeds."
    degrees = sum(len(values) - 1 for values in result.runs)
    few = " Give three or more runs of each system for a reliable estimate." if degrees <= 2 else ""
    return (
        f"The standard deviation over the runs of a system is {result.deviation:.4f} beyond the "
        "effect of their different predictions. The bootstrap includes this variance, the "
        f"randomization test does not.{few}"
    )


def comparison_dict(comparison: SystemComparison) -> dict[str, Any]:
    """Convert the comparison to JSON values."""
    result = comparison.result
    sides = zip("ab", (result.first, result.second), result.runs, comparison.files, strict=True)
    estimates = {
        name: estimate._asdict() | {"runs": list(runs), "files": list(map(str, files))}
        for name, estimate, runs, files in sides
    }
    return {
        "metric": comparison.metric,
        "gold": comparison.runs[0].files[1],
        "aligned_by": comparison.runs[0].aligned_by,
        "unit": f"{comparison.unit}s",
        "num_units": result.num_units,
        "resamples": result.num_resamples,
        "seed": comparison.options.seed,
        **estimates,
        "difference": result.difference._asdict(),
        "p_bootstrap": result.p_bootstrap,
        "p_randomization": result.p_randomization,
        "deviation_between_runs": result.deviation,
        "level": ALPHA,
        "verdict": verdict(result, comparison.lower_is_better),
    }
