"""Any number of labels for each text; averages equal scikit-learn's, over all labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from finetune.evaluation import hierarchy
from finetune.evaluation.items import Items, PredictionType, Tables, Wording, pair_items
from finetune.evaluation.metrics import (
    Metric,
    by_example,
    class_counts,
    expected_calibration_error,
    f1,
    item_counts,
    macro_f1,
    mean,
    ratio,
    weighted_f1,
)
from finetune.evaluation.prediction_types.label import OF_LABELS
from finetune.types import TextPrediction


def set_class_counts(tables: Tables) -> np.ndarray:
    """Return the ``class_counts``, and 1 for the labels of the model [N, C, 4].

    Averages include all of these, as in scikit-learn.
    """
    counts = class_counts(tables)
    of_model = np.isin(tables.names, tables.labels).astype(np.int64)[:, None]
    ones = np.broadcast_to(of_model, (*counts.shape[:2], 1))
    return np.concatenate([counts, ones], axis=-1)


def _wrong(tables: Tables) -> np.ndarray:
    return by_example(~tables.items.credit, tables.items, tables)


def _label_set_counts(tables: Tables) -> np.ndarray:
    equal = _wrong(tables) == 0
    return np.column_stack([equal, np.ones(len(equal))]).astype(np.int64)


def _hamming_counts(tables: Tables) -> np.ndarray:
    wrong = _wrong(tables)
    occurs = set_class_counts(tables)[..., 1:].sum(axis=-1)
    return np.column_stack([wrong, np.ones_like(wrong), occurs])


def hamming_loss(sums: np.ndarray) -> np.ndarray:
    """Return the fraction of wrong decisions [..., 2 + C] -> [...] (Tsoumakas & Katakis 2007)."""
    return ratio(sums[..., 0], sums[..., 1] * (sums[..., 2:] > 0).sum(axis=-1))


def _build(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    *,
    predictions: Sequence[TextPrediction] = (),
    **facts: Any,
) -> Tables:
    scores = [prediction.scores for prediction in predictions]
    all_known = None not in scores

    def score(index: int, known: str | None, label: str | None) -> float:
        row = (scores[index] if scores else None) or {}
        if label is not None:
            return row.get(label, math.nan)
        return 1 - row.get(known or "", math.nan) if all_known else math.nan

    sides = list(zip(map(set, gold), map(set, predicted), strict=True))
    items = pair_items(
        (
            (index, name if name in known else None, name if name in labels else None)
            for index, (known, labels) in enumerate(sides)
            for name in sorted(known | labels)
        ),
        score,
    )
    return Tables.of(LABELS, gold, predicted, items, predictions=predictions, **facts)


def _every_label(tables: Tables) -> Items:
    rows = list(enumerate(zip(tables.all_probabilities, tables.gold, strict=False)))
    flat = [(i, name, p, name in gold) for i, (row, gold) in rows for name, p in row.items()]
    example, names, scores, right = zip(*flat, strict=True) if flat else ((), (), (), ())
    return Items.of(example, names, names, scores, credit=np.array(right, bool))


def _uncertainty(prediction: TextPrediction) -> float | None:
    # the mean of 1 - |2p - 1| over labels
    if prediction.scores is None:
        return None
    return float(np.mean([1 - abs(2 * p - 1) for p in prediction.scores.values()]))


LABELS = PredictionType(
    name="labels",
    wording=Wording("sets of labels", "text", "labels that may apply"),
    metrics={
        "micro_f1": Metric(item_counts, f1),
        "macro_f1": Metric(set_class_counts, macro_f1, by_class=True),
        "weighted_f1": Metric(set_class_counts, weighted_f1, by_class=True),
        "subset_accuracy": Metric(_label_set_counts, mean),
        "hamming_loss": Metric(_hamming_counts, hamming_loss, by_class=True),
        "ece": expected_calibration_error(),
        **hierarchy.METRICS,
    },
    default="micro_f1",
    build=_build,
    uncertainty=_uncertainty,
    tables={"calibration": _every_label},
    groupings=lambda tables, _: hierarchy.by_level(tables),
    further_scores=hierarchy.level_scores,
    categories=lambda tables: [
        "false positive" if gold is None else "miss" for gold in tables.items.gold
    ],
    named=(("{}", ""),),
    classes="label",
    takes_thresholds=True,
    **OF_LABELS,
)
