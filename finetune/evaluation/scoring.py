"""Score a prediction file of any system against gold, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from finetune.evaluation.alignment import AlignedPredictions
from finetune.evaluation.metrics import scores, span_scores, tagging_scores
from finetune.evaluation.pairs import pair
from finetune.evaluation.runs import align_runs


def score_predictions(
    predictions: Path, gold: str, columns: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Return the metrics of a prediction file by name.

    Predictions are JSON Lines with ``label`` (a name, a list of names, or a number), ``tags``, or
    ``spans`` (in words; in characters where the line has a ``text`` and no words), or words in
    columns of which the last is predicted. Where a line has tags and spans, its tags are scored.

    Args:
        predictions: The prediction file.
        gold: A file with gold, in the same order.
        columns: Names of the columns of the gold file by role, where they cannot be guessed.

    Raises:
        UserError: The files do not belong together.
    """
    (run,) = align_runs([predictions], gold, columns=columns).runs
    return score_aligned(run)


def score_aligned(run: AlignedPredictions) -> dict[str, float]:
    """Return the metrics of aligned predictions by name."""
    gold, predicted = run.gold, run.predicted
    if run.kind == "tags":
        return tagging_scores(gold, predicted, *run.schemes)
    if run.kind == "spans":
        return span_scores(gold, predicted)
    return scores(pair(run.kind, gold, predicted))
