"""The HTML page of a learning curve: one file that needs no network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from finetune.evaluation.learning_curve import LearningCurve
from finetune.reporting.charts import line_chart
from finetune.reporting.rendering import Section, Table, page_of
from finetune.runtime.files import write_text

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
