"""Learning curves: the scores of models by amount of training data, as a table and a page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from finetune.config.tasks import TrainConfig
from finetune.evaluation.kinds import DEFAULT_METRICS
from finetune.reporting.charts import line_chart
from finetune.reporting.rendering import Section, Table, page_of
from finetune.runtime.files import write_text
from finetune.training.repeated_runs import RunResults
from finetune.types import UserError

CURVE_FILE, PAGE_FILE = "curve.json", "curve.html"


class LearningCurve(NamedTuple):
    """Scores by number of training examples."""

    metric: str
    split: str
    scores: Mapping[int, Sequence[float]]

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows: the mean score of each size."""
        rows = [
            [
                size,
                len(found),
                float(np.mean(found)),
                float(np.std(found, ddof=1)) if len(found) > 1 else None,
            ]
            for size, found in sorted(self.scores.items())
        ]
        return ["examples", "runs", self.metric, "deviation"], rows


def write_curve(folder: Path, curve: LearningCurve) -> Path:
    """Write the numbers and the page of a curve into its folder; return the path of the page."""
    text = json.dumps(curve._asdict(), indent=2, ensure_ascii=False) + "\n"
    write_text(folder / CURVE_FILE, text)
    columns, rows = curve.table()
    means = [(float(size), mean) for size, _, mean, _ in rows]
    title = f"{curve.metric} on {curve.split}"
    label = f"{title} by number of training examples"
    chart = line_chart(title, label, [("mean of the runs", means)], "training examples")
    table = Table("Scores", columns, rows)
    section = Section("Score by amount of training data", charts=[chart], tables=[table])
    page = page_of("learning curve", title, [section], command="finetune, with --sizes")
    write_text(folder / PAGE_FILE, page)
    return folder / PAGE_FILE


def curve_of(results: RunResults, config: TrainConfig) -> LearningCurve:
    """Return the curve of the scores on test, else on validation."""
    finished = list(results.metrics.items())
    if not finished:
        raise UserError("--sizes: no run has a score: all diverged.")
    scored = finished[0][1]
    split = next((name for name in ("test", "validation", *scored) if name in scored), None)
    if split is None:
        raise UserError("--sizes: no run has a score: no split but train has labels.")
    names = list(finished[0][1][split])
    metric = config.metric or next((m for m in DEFAULT_METRICS.values() if m in names), names[0])
    scores: dict[int, list[float]] = {}
    for name, metrics in finished:
        if math.isfinite(value := metrics[split].get(metric, math.nan)):
            scores.setdefault(int(name.split("-")[1]), []).append(value)
    if not scores:
        raise UserError(f"--sizes: no run has a finite {metric} on {split}.")
    return LearningCurve(metric, split, scores)
