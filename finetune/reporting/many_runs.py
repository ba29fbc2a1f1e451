"""The files of runs that differ in their settings, or in the size of their training data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config.recipes import recipe_text
from finetune.config.tasks import TrainConfig
from finetune.evaluation.prediction_types import DEFAULT_METRICS
from finetune.evaluation.reproduction import standard_deviation
from finetune.reporting.rendering import PageTable, Section, chart, page_of
from finetune.runtime.files import write_json, write_text
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
    write_json(search.folder / "search.json", content)


def write_best_recipe(search: Search, command: str) -> Path:
    """Write the settings of the best trial as a recipe; return its path."""
    trials = search.trials
    source = f"trial {trials[0].number} of {len(trials)} of: {command}"
    text = recipe_text(search.task, search.best_config(), source)
    write_text(search.folder / RECIPE_FILE, text)
    return search.folder / RECIPE_FILE


def write_curve(results: Runs, config: TrainConfig) -> tuple[list[str], list[list[Any]]]:
    """Write the scores on test, else on validation, by size into ``curve.json`` and ``curve.html``.

    Return the columns and rows of their table, which has the mean score of each size.
    """
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
    columns = ["examples", "runs", metric, "deviation"]
    rows: list[list[Any]] = [
        [size, len(of_size), statistics.fmean(of_size), standard_deviation(of_size)]
        for size, of_size in sorted(scores.items())
    ]
    title = f"{metric} on {split}"
    lines = [("mean of the runs", [(float(size), mean) for size, _, mean, _ in rows])]
    section = Section(
        "Score by amount of training data",
        charts=[chart(title, "training examples", lines=lines)],
        tables=[PageTable("Scores", columns, rows)],
    )
    page = page_of("learning curve", title, [section], command="finetune, with --sizes")
    content = {"metric": metric, "split": split, "scores": scores}
    write_json(results.folder / "curve.json", content)
    write_text(results.folder / "curve.html", page)
    return columns, rows
