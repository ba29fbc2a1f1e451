"""Properties of metrics by name: their limits, the score of chance, and their name on the hub.

A metric from 0 to 1 whose score by chance is 0 and that the hub does not have needs no row, unless
lower is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricProperties:
    """Properties of a metric that follow from its name."""

    lowest: float = 0.0
    """The least possible score."""
    highest: float = 1.0
    """The largest possible score; infinite for errors and counts."""
    chance: float = 0.0
    """The largest score of a degenerate run."""
    lower_is_better: bool = False
    """Whether lower values are better, as of losses."""
    of_gold: bool = False
    """Whether it depends on gold alone, and is the same for every model."""
    hub: str | None = None
    """The name of the metric on the Hugging Face hub; None if the hub does not have it."""


_ACCURACY, _F1 = MetricProperties(hub="accuracy"), MetricProperties(hub="f1")
_PRECISION, _RECALL = MetricProperties(hub="precision"), MetricProperties(hub="recall")
_PEARSON = MetricProperties(-1.0, chance=0.05, hub="pearsonr")
_SPEARMAN = MetricProperties(-1.0, chance=0.05, hub="spearmanr")
_LOSS = MetricProperties(highest=math.inf, lower_is_better=True)

METRIC_PROPERTIES: Mapping[str, MetricProperties] = {
    **dict.fromkeys(("accuracy", "tag_accuracy", "subset_accuracy"), _ACCURACY),
    **dict.fromkeys(("ranking_accuracy", "mlm_accuracy"), _ACCURACY),
    **dict.fromkeys(("f1", "macro_f1", "micro_f1", "weighted_f1"), _F1),
    **dict.fromkeys(("span_f1_conll", "span_f1_strict"), _F1),
    **dict.fromkeys(("span_precision_conll", "span_precision_strict"), _PRECISION),
    **dict.fromkeys(("span_recall_conll", "span_recall_strict"), _RECALL),
    "matthews": MetricProperties(-1.0, chance=0.05, hub="matthews_correlation"),
    **dict.fromkeys(("pearson", "pearson_all"), _PEARSON),
    **dict.fromkeys(("spearman", "spearman_all"), _SPEARMAN),
    "mse": MetricProperties(highest=math.inf, lower_is_better=True, hub="mse"),
    "perplexity": MetricProperties(highest=math.inf, lower_is_better=True, hub="perplexity"),
    **dict.fromkeys(("mlm_loss", "sbo_loss", "soft_cross_entropy", "mean_cost"), _LOSS),
    **dict.fromkeys(
        ("hamming_loss", "ece", "ece_uncalibrated"), MetricProperties(lower_is_better=True)
    ),
    "agreement": MetricProperties(of_gold=True),
    "votes_entropy": MetricProperties(highest=math.inf, of_gold=True),
}
"""The properties of the metrics that need a row."""
METRIC_MEANINGS: Mapping[str, str] = {
    "accuracy": "share of right answers",
    "macro_f1": "mean F1 of the classes",
    "weighted_f1": "mean F1 of the classes, weighted by their number in gold",
    "micro_f1": "F1 of all decisions together",
    "matthews": "correlation of gold and predicted classes",
    "subset_accuracy": "share of texts whose labels are all right",
    "hamming_loss": "share of wrong decisions on single labels",
    "hierarchical_f1": "F1 of labels with their upper levels",
    "mean_cost": "mean cost of the mistakes",
    "soft_cross_entropy": "cross entropy of probabilities and votes",
    "agreement": "expected accuracy of one annotator",
    "votes_entropy": "least possible soft_cross_entropy",
    "ece": "expected calibration error",
    "mse": "mean squared error",
    "span_f1_conll": "F1 of spans, read from tags as conlleval does",
    "span_f1_strict": "F1 of spans with the right start, end and type",
    "span_f1_characters": "F1 of spans in characters",
    "tag_accuracy": "share of words with the right tag",
    "relation_f1_strict": "F1 of relations with the right label, spans and types of spans",
    "relation_f1": "F1 of relations with the right label and spans",
    "relation_f1_macro": "mean F1 of the relation labels",
    "exact_match": "share of answers that equal a gold answer",
    "hasans_f1": "f1 of questions with an answer",
    "noans_f1": "f1 of questions without an answer",
}
"""What metrics count, for readers of a page; of those whose name does not say it."""


def properties_of(metric: str) -> MetricProperties:
    """Look up the properties of a metric; ``f1:NAME`` has the properties of ``f1``."""
    return METRIC_PROPERTIES.get(metric.partition(":")[0], MetricProperties())


def can_select(metric: str) -> bool:
    """Whether a metric can select the best model: better predictions have a higher value."""
    properties = properties_of(metric)
    return not (properties.lower_is_better or properties.of_gold)


def is_overall(metric: str) -> bool:
    """Whether a metric scores a whole split, also at one level of labels, and not a single type.

    >>> is_overall("accuracy_level:1"), is_overall("f1:PER")
    (True, False)
    """
    return ":" not in metric or metric.partition(":")[0].endswith("_level")
