"""The last lines of a run on the terminal: its score with the interval, and its classes."""

from __future__ import annotations

from finetune.evaluation.pairs import metric_title
from finetune.evaluation.significance import ALPHA
from finetune.reporting.rendering import format_score
from finetune.reporting.runs import System
from finetune.types import abbreviated, quantity

MOST_CLASSES = 10
"""Most classes whose scores are listed; the report has all."""
RARE = 10
"""Classes with fewer examples in gold are named as rare."""


def summary_lines(system: System) -> list[str]:
    """Return the score with its interval, the scores of few classes, and the rare classes."""
    headline, run = system.headline, system.runs[0]
    if headline is None:
        return []
    value, low, high = headline.estimate
    name = metric_title(headline.metric, run.positive)
    lines = [
        f"{headline.split} {name} {format_score(value, headline.metric)}, {1 - ALPHA:.0%} interval "
        f"{low:.4f} to {high:.4f} over {quantity(headline.num_units, headline.unit)}"
    ]
    if run.selection_note:
        lines.append(run.selection_note)
    kind, rows = run.class_rows
    if 2 <= len(rows) <= MOST_CLASSES:
        scores = (f"{row[kind]} {row['f1']:.4f} ({row['support']:,})" for row in rows)
        lines.append(f"F1 by {kind} (examples): {', '.join(scores)}")
    if rare := [f"{row[kind]} ({row['support']})" for row in rows if row["support"] < RARE]:
        lines.append(f"rare on {headline.split}, with scores that say little: {abbreviated(rare)}")
    return lines
