"""The files of runs that differ in their settings, or in the size of their training data."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finetune.config.recipes import recipe_text
from finetune.config.tasks import TrainConfig
from finetune.evaluation.prediction_types import DEFAULT_METRICS
from finetune.evaluation.reproduction import standard_deviation
from finetune.reporting.rendering import PageTable, Section, chart, page_of
from finetune.runtime.files import write_text
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.training.repeated_runs import Runs
    from finetune.training.search import Search

RECIPE_FILE = "best.yaml"
"""The recipe of the best trial, in the folder of a search."""


def search_table(search: Search, *, exact: bool = False) -> tuple[list[str], list[list[Any]]]:
    """Make the columns and rows of a table of the ended trials, the best first.

    Numbers among the settings have four digits, or are ``exact``.
    """

    def setting(value: Any) -> Any:
        return f"{value:.4g}" if isinstance(value, float) and not exact else value

    rows = [
        [trial.number, trial.state.name.lower(), trial.value]
        + [setting(trial.params.get(name)) for name in search.space]
        for trial in search.trials
    ]
    return ["trial", "state", search.metric, *search.space], rows


def write_search(search: Search, metrics: Mapping[str, Mapping[str, float]] | None = None) -> None:
    """Write the trials of a search, and the scores of the best, into ``search.json``."""
    content = {
        "task": search.task,
        "metric": search.metric,
        "best": search.best and search.best.number,
        "trials": [
            {
                "number": trial.number,
                "state": trial.state.name.lower(),
                "settings": trial.params,
                "score": trial.value,
                "error": trial.user_attrs.get("error"),
            }
            for trial in search.trials
        ],
        "metrics": metrics,
    }
    _write_json(search.folder / "search.json", content)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_best_recipe(search: Search, command: str) -> Path:
    """Write the settings of the best trial as a recipe; return its path."""
    trials = search.trials
    source = f"trial {trials[0].number} of {len(trials)} of: {command}"
    text = recipe_text(search.task, search.best_config(), source)
    write_text(search.folder / RECIPE_FILE, text)
    return search.folder / RECIPE_FILE


class LearningCurve(NamedTuple):
    """Scores by number of training examples."""

    metric: str
    split: str
    scores: Mapping[int, Sequence[float]]

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Make the columns and rows of a table: the mean score of each size."""
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
    _write_json(folder / "curve.json", curve._asdict())
    write_text(folder / "curve.html", page)
    return folder / "curve.html"


def curve_of(results: Runs, config: TrainConfig) -> LearningCurve:
    """Collect the scores on test, else on validation, by size."""
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
