"""The HTML page of a learning curve: one file that needs no network."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from finetune.config.tasks import TrainConfig
from finetune.evaluation.custom_metrics import custom_metrics
from finetune.evaluation.kinds import DEFAULT_METRICS
from finetune.evaluation.learning_curve import LearningCurve, learning_curve
from finetune.reporting.charts import line_chart
from finetune.reporting.rendering import Section, Table, page_of
from finetune.runtime.files import write_text
from finetune.training.repeated_runs import RunResults
from finetune.types import UserError

CURVE_FILE, PAGE_FILE = "curve.json", "curve.html"


def write_curve(folder: Path, curve: LearningCurve) -> Path:
    """Write the numbers and the page of a curve into its folder; return the path of the page."""
    text = json.dumps(curve.record(), indent=2, ensure_ascii=False) + "\n"
    write_text(folder / CURVE_FILE, text)
    columns, rows = curve.table()
    means: list[tuple[float, float]] = [
        (size, float(np.mean(scores))) for size, scores in sorted(curve.scores.items())
    ]
    series = [("mean of the runs", means)]
    if curve.law is not None:
        law, predicted = curve.law, sorted(curve.predicted.items())
        between = np.geomspace(predicted[0][0], predicted[-1][0], 40)
        series += [
            ("power law", [(float(size), law.at(float(size))) for size in between]),
            ("95 % interval, low", [(size, each.low) for size, each in predicted]),
            ("95 % interval, high", [(size, each.high) for size, each in predicted]),
        ]
    title = f"{curve.metric} on {curve.split}"
    label = f"{title} by number of training examples"
    chart = line_chart(title, label, series, "training examples", dotted=["mean of the runs"])
    table = Table("Scores and predictions", columns, rows)
    section = Section("Score by amount of training data", curve.lines(), [chart], [table])
    page = page_of("learning curve", title, [section], command="finetune, with --sizes")
    write_text(folder / PAGE_FILE, page)
    return folder / PAGE_FILE


def curve_of(results: RunResults, sizes: Sequence[int], config: TrainConfig) -> LearningCurve:
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
    own = custom_metrics(config.custom_metrics, {}).get(metric)
    lower = None if own is None else own.lower_is_better
    return learning_curve(metric, split, scores, [*sizes, 2 * sizes[-1], 4 * sizes[-1]], lower)
