"""Score a file of predictions against gold without a model: any system's, not only ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from finetune.evaluation.alignment import AlignedPredictions, align
from finetune.evaluation.gold import Gold
from finetune.evaluation.metrics import (
    classification_scores,
    multilabel_scores,
    regression_scores,
    tagging_scores,
)
from finetune.evaluation.predictions import read_rows
from finetune.evaluation.span_metrics import span_ner_scores


def score_predictions(
    predictions: Path, gold: str, columns: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Metrics by name; lines of both files belong together in order.

    Predictions are JSON lines with ``label`` (a name, a list of names, or a number), ``tags``, or
    ``spans`` (in words; in characters where the line has a ``text`` and no words), or words in
    columns, the last of which is the answer. Tags go before spans where a line has both. Raises
    ValueError where the files do not fit each other.
    """
    return score_answers(align(read_rows(predictions), Gold(gold, columns)))


def score_answers(run: AlignedPredictions) -> dict[str, float]:
    """Metrics by name of answers that lie beside their gold."""
    gold, answers = run.gold, run.predicted
    if run.kind == "tags":
        return tagging_scores(gold, answers, *run.schemes)
    if run.kind == "spans":
        return span_ner_scores(gold, answers)
    if run.kind == "number":
        return regression_scores(gold, answers)
    if run.kind == "label":
        return classification_scores(gold, answers, sorted({*gold, *answers}))
    return multilabel_scores(gold, answers, sorted({n for each in (*gold, *answers) for n in each}))
