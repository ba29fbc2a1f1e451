"""The pages of runs that differ in their settings, or in the size of their training data."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finetune.config.expected_scores import SCORED_SPLITS, Expected, metrics_of
from finetune.config.recipes import recipe_text
from finetune.config.tasks import TrainConfig
from finetune.config.values import shown_value
from finetune.evaluation.prediction_types import DEFAULT_METRICS
from finetune.evaluation.reproduction import standard_deviation
from finetune.reporting.charts import chart
from finetune.reporting.rendering import PageTable, Section, format_score, page_of
from finetune.reporting.runs import gather
from finetune.runtime.files import write_text
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.training.repeated_runs import Runs
    from finetune.training.search import SearchResult

RECIPE_FILE = "best.yaml"
"""The recipe of the best trial, in the folder of a search."""


def write_search(
    result: SearchResult, metrics: Mapping[str, Mapping[str, float]] | None = None
) -> Path:
    """Write the trials of a search, and the scores of the best; return the path of the page."""
    failures = [f"Trial {t.number} failed: {t.error}" for t in result.trials if t.error]
    legend = "A pruned trial has the score of its last evaluation."
    trials = PageTable("Trials, the best first", *result.table())
    sections = [
        Section("The best trial", _best(result, metrics or {})),
        Section("Trials", [*failures, legend], tables=[trials]),
    ]
    kind = f"search over settings of {result.task}"
    page = page_of(kind, result.folder.name, sections, command="finetune search")
    return _write(result.folder, "search", result.to_dict() | {"metrics": metrics}, page)


def _best(result: SearchResult, metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    best = result.best
    if best is None:
        return ["No trial has a score yet."]
    scores = [f"{shown_value(best.score)} on validation"]
    for split, values in metrics.items():
        if result.metric in values and not split.startswith("validation"):
            scores.append(f"{format_score(values[result.metric], result.metric)} on {split}")
    settings = ", ".join(f"{name} = {value}" for name, value in best.settings.items())
    return [
        f"Trial {best.number} of {len(result.trials)}: {result.metric} {', '.join(scores)}.",
        settings or "The settings of the command.",
        "The score on validation is the highest of several, so it is too high. Only a split that "
        "the search did not read, such as test, measures the model.",
    ]


def _write(folder: Path, name: str, numbers: Mapping[str, Any], page: str) -> Path:
    write_text(folder / f"{name}.json", json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / f"{name}.html", page)
    return folder / f"{name}.html"


def write_best_recipe(
    result: SearchResult,
    config: TrainConfig,
    run: Path,
    metrics: Mapping[str, Mapping[str, float]],
    command: str,
) -> Path:
    """Write the settings of the best trial as a recipe; return its path.

    The recipe expects the ``metrics`` of the folder ``run``. The tolerance is half of the 95 %
    interval over the examples, at least 0.01.
    """
    assert result.best is not None
    source = f"trial {result.best.number} of {len(result.trials)} of: {command}"
    expected = []
    for split, values in metrics.items():
        if result.metric not in metrics_of(result.task) or split not in SCORED_SPLITS:
            continue
        model = gather(run, split)
        found = model.score
        wide = (found.estimate.high - found.estimate.low) / 2 if found else 0.0
        expected.append(
            Expected(
                split,
                result.metric,
                round(values[result.metric], 4),
                round(max(wide, 0.01), 4),
                f"{source}; the tolerance is half the 95 % interval over the examples",
                fingerprint=model.runs[0].config["fingerprint"],
            )
        )
    write_text(result.folder / RECIPE_FILE, recipe_text(result.task, config, source, expected))
    return result.folder / RECIPE_FILE


class LearningCurve(NamedTuple):
    """Scores by number of training examples."""

    metric: str
    split: str
    scores: Mapping[int, Sequence[float]]

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows: the mean score of each size."""
        rows = [
            [size, len(scores), statistics.fmean(scores), standard_deviation(scores)]
            for size, scores in sorted(self.scores.items())
        ]
        return ["examples", "runs", self.metric, "deviation"], rows


def write_curve(folder: Path, curve: LearningCurve) -> Path:
    """Write the numbers and the page of a curve into its folder; return the path of the page."""
    columns, rows = curve.table()
    title = f"{curve.metric} on {curve.split}"
    lines = [("mean of the runs", [(float(size), mean) for size, _, mean, _ in rows])]
    section = Section(
        "Score by amount of training data",
        charts=[chart(title, "training examples", lines=lines)],
        tables=[PageTable("Scores", columns, rows)],
    )
    page = page_of("learning curve", title, [section], command="finetune, with --sizes")
    return _write(folder, "curve", curve._asdict(), page)


def curve_of(results: Runs, config: TrainConfig) -> LearningCurve:
    """Return the curve of the scores on test, else on validation."""
    finished = list(results.metrics.items())
    scored = finished[0][1]
    split = next((name for name in ("test", "validation", *scored) if name in scored), None)
    if split is None:
        raise UserError("--sizes: no run has a score: no split but train has labels.")
    names = list(scored[split])
    metric = config.metric or next((m for m in DEFAULT_METRICS.values() if m in names), names[0])
    scores: dict[int, list[float]] = {}
    for name, metrics in finished:
        if math.isfinite(value := metrics[split].get(metric, math.nan)):
            scores.setdefault(int(name.split("-")[1]), []).append(value)
    if not scores:
        raise UserError(f"--sizes: no run has a finite {metric} on {split}.")
    return LearningCurve(metric, split, scores)
