"""One label for each text or pair of texts.

Averages equal scikit-learn's, over the labels that occur. Two labels also have the ``f1`` of the
positive class. Texts with votes of annotators also have the scores of ``votes``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.files import DataFile
from finetune.data.labels import canonical_names, convert_labels, read_votes
from finetune.data.texts import read_text_file
from finetune.evaluation import hierarchy
from finetune.evaluation.items import (
    Grouping,
    PredictionType,
    Tables,
    Wording,
    probability,
    sorted_names,
    withheld_in,
)
from finetune.evaluation.metrics import (
    Metric,
    class_counts,
    expected_calibration_error,
    f1,
    item_counts,
    macro_f1,
    matthews,
    mean,
    recall,
    weighted_f1,
)
from finetune.evaluation.positive import named_positive, positive_label
from finetune.evaluation.prediction_types import votes
from finetune.evaluation.prediction_types.texts import (
    best_labels,
    by_length,
    decided_items,
    taken_for,
    text_of_row,
)
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.types import TextExample, TextPrediction, UserError

if TYPE_CHECKING:
    from finetune.evaluation.predictions import Gold, GoldSource, PredictionFile

NO_LABEL = ""
"""The prediction for a blank text: no gold label agrees with it, and it is no class."""


# --- Shared with several labels and numbers -------------------------------------------------------


def label_value(prediction: TextPrediction) -> Any:
    """Return the predicted label, labels or number."""
    return NO_LABEL if prediction.label is None else prediction.label


def read_gold_labels(file: str | DataFile, source: GoldSource) -> Sequence[TextExample]:
    """Return the texts of a file with their labels."""
    examples = list(read_text_file(file, **source.reading))
    return convert_labels({"gold": examples}, typed=False)[0]["gold"]


def label_of_row(index: int, where: str, row: Mapping[str, Any]) -> TextExample:
    """Return the text of a row with its gold, and with the votes for it if it has some."""
    example = text_of_row(index, where, row)
    return replace(example, votes=read_votes(row["votes"], where)) if "votes" in row else example


def parse_label(row: Mapping[str, Any], where: str, example: TextExample) -> TextPrediction:
    """Return a predicted label with the probabilities that are known."""
    label = tuple(row["label"]) if isinstance(row["label"], list) else row["label"]
    label = None if label == NO_LABEL else label
    scores, score, known = row.get("scores"), row.get("score"), None
    if isinstance(scores, dict):
        values = {name: p for name, v in scores.items() if (p := probability(v)) is not None}
        known = values if len(values) == len(scores) else None
    if score is None and isinstance(scores, dict):
        score = scores.get(str(row["label"]))
    return TextPrediction(
        example.id,
        label,
        probability(score),
        known,
        row.get("positive_label"),
        separator=row.get("label_separator"),
        decided=withheld_in(row),
    )


OF_LABELS: dict[str, Any] = {
    "gold": lambda example: example.label,
    "value": label_value,
    "parse": parse_label,
    "read_gold": read_gold_labels,
    "gold_of_row": label_of_row,
    "probabilities": lambda predictions: [prediction.scores for prediction in predictions],
    "repeats": lambda prediction: {prediction.label},
    "ranked": best_labels,
    "without_gold": "no row has a label.",
}


# --- One label ------------------------------------------------------------------------------------


def positive_counts(tables: Tables) -> np.ndarray:
    """Return the ``item_counts`` of the positive class of two labels [N, 3]."""
    return item_counts(tables, name=tables.positive)


def _cost_counts(tables: Tables) -> np.ndarray:
    # a text without a label, as a blank one, costs as much as the dearest label
    rows = zip((tables.costs[gold] for gold in tables.gold), tables.predicted, strict=True)
    costs = [of_gold.get(predicted, max(of_gold.values())) for of_gold, predicted in rows]
    return np.column_stack([costs, np.ones(len(costs))])


def _build(
    gold: Sequence[str],
    predicted: Sequence[str],
    *,
    predictions: Sequence[TextPrediction] = (),
    abstained: Sequence[Any] | None = None,
    labels: Sequence[str] = (),
    positive: str | None = None,
    **facts: Any,
) -> Tables:
    items = decided_items(gold, predicted, predictions, abstained)
    names = sorted_names(items, labels)
    if positive is None and len(labels or names) == 2:
        positive = positive_label(labels or names, Counter(gold))
    facts |= {"predictions": predictions, "positive": positive, "names": names, "labels": labels}
    return Tables.of(LABEL, gold, predicted, items, **facts)


def _together(runs: list[Tables], positive: str | None) -> tuple[list[Tables], str]:
    labels = {name for run in runs for side in (run.gold, run.predicted) for name in side}
    labels.discard(NO_LABEL)
    saved = {p.positive for run in runs for p in run.predictions if p.positive is not None}
    if positive is not None and len({*canonical_names([*labels, *saved])}) > 2:
        raise UserError(f"--positive {positive}: it applies to texts with one of two labels.")
    note = ""
    if len(labels) != 2:
        chosen = positive or next(iter(saved), None) if len(labels) == 1 else None
    else:
        given = positive or (next(iter(saved)) if len(saved) == 1 else "")
        names = canonical_names([*labels, given])
        known = names[-1] if positive or names[-1] in labels else None
        chosen = positive_label(labels, Counter(runs[0].gold), known)
        if not known and not named_positive(labels):
            note = f"f1 scores {chosen!r}, the rarer label of gold; --positive names another."
    return [replace(run, positive=chosen) for run in runs], note


def _align(file: PredictionFile, gold: Gold, type: PredictionType) -> tuple[Tables, str]:
    from finetune.evaluation.prediction_types import label_type  # which imports this type

    return label_type.align(file, gold, type)


def unified_numbers(runs: list[Tables]) -> list[Tables]:
    """Return whole numbers, which are names, as numbers next to runs of other numbers."""
    from finetune.evaluation.prediction_types import label_type  # which imports this type

    return label_type.unified(runs)


def _groupings(tables: Tables, vocabulary: TrainingVocabulary | None) -> dict[str, Grouping]:
    by_votes = {"votes": votes.by_agreement(tables)} if votes.has_votes(tables) else {}
    return {"text length": by_length(tables, "texts")} | by_votes | hierarchy.by_level(tables)


def _uncertainty(prediction: TextPrediction) -> float | None:
    # 1 less the margin between the two best labels (Scheffer et al., 2001)
    if prediction.scores is None or prediction.label is None:
        return None
    values = sorted(prediction.scores.values(), reverse=True)
    return 1 - (values[0] - values[1]) if len(values) > 1 else 0.0


LABEL = PredictionType(
    name="label",
    key="label",
    wording=Wording("a label", "text", "labels"),
    metrics={
        "accuracy": Metric(item_counts, recall),
        "macro_f1": Metric(class_counts, macro_f1, by_class=True),
        "weighted_f1": Metric(class_counts, weighted_f1, by_class=True),
        "matthews": Metric(class_counts, matthews, by_class=True),
        "f1": Metric(positive_counts, f1, lambda tables: tables.positive is not None),
        "micro_f1": Metric(item_counts, f1, reported=False),
        "mean_cost": Metric(_cost_counts, mean, lambda tables: bool(tables.costs)),
        "ece": expected_calibration_error(),
        **votes.METRICS,
        **hierarchy.METRICS,
    },
    default="accuracy",
    build=_build,
    one_each=True,
    align=_align,
    unified=unified_numbers,
    together=_together,
    uncertainty=_uncertainty,
    groupings=_groupings,
    further_scores=hierarchy.level_scores,
    analysis_scores=lambda scores, tables: {"micro_f1": scores["accuracy"]},
    categories=taken_for,
    named=(("{}", ""),),
    classes="label",
    has_confusions=True,
    takes_thresholds=True,
    one_class=True,
    pairs_of_labels=True,
    **OF_LABELS,
)
