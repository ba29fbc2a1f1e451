"""The prediction types, one file for each; extensions add theirs in ``finetune.registry``.

Only these files know what a type is: all others read ``Tables``, which lead to their
``PredictionType`` (``items``).
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any, cast

from finetune.config.metric_properties import METRIC_PROPERTIES, properties_of
from finetune.evaluation.metrics import score
from finetune.evaluation.prediction_types.answers import ANSWERS
from finetune.evaluation.prediction_types.choice import CHOICE
from finetune.evaluation.prediction_types.labels import LABEL, LABELS, NUMBER
from finetune.evaluation.prediction_types.relations import RELATIONS
from finetune.evaluation.prediction_types.spans import SPANS
from finetune.evaluation.prediction_types.tags import PLAIN_TAGS, TAGS
from finetune.evaluation.tables import PredictionType
from finetune.registry import PREDICTION_TYPES, Registry

_OF_CORE = {
    type.name: type
    for type in (RELATIONS, TAGS, SPANS, CHOICE, LABEL, ANSWERS, LABELS, NUMBER, PLAIN_TAGS)
}
_OF_EXTENSIONS = {name: paths.type for name, paths in PREDICTION_TYPES.items()}
TYPES: Mapping[str, PredictionType] = ChainMap(_OF_CORE, cast(Any, Registry(_OF_EXTENSIONS)))
"""The prediction types by name, as in `finetune.json`."""
KEYS = {
    **{name: name for name in ("relations", "tags", "spans", "choice", "label")},
    "answer": "answers",
    **{name: name for name in PREDICTION_TYPES},
}
"""The type of a row by its keys; the first key of this table that a row has decides. The values of
labels and tags may then decide another."""
DEFAULT_METRICS: Mapping[str, str] = {
    **{name: type.default for name, type in _OF_CORE.items()},
    **{name: paths.metrics[0] for name, paths in PREDICTION_TYPES.items()},
}
"""The metric that selects models, by type."""

_METRICS = {
    *(name for type in _OF_CORE.values() for name in type.metrics),
    *(name for paths in PREDICTION_TYPES.values() for name in paths.metrics),
}
METRICS_OF_VECTORS = {"ranking_accuracy", "ranking_mrr"}
"""Metrics of vectors, which are no predictions of a type."""


def scores_of(
    type: str, gold: Sequence[Any], predicted: Sequence[Any], **fields: Any
) -> dict[str, float]:
    """Score gold and predicted values of a type; ``fields`` are those of ``Tables``.

    >>> scores_of("label", ["a", "b"], ["a", "a"], labels=["a", "b"])["accuracy"]
    0.5
    """
    return score(TYPES[type].of_values(gold, predicted, **fields))


def is_built_in(metric: str) -> bool:
    """True for a metric of a type, False for a custom metric."""
    return metric in _METRICS


def score_limits(metric: str) -> tuple[float, float]:
    """The least and the largest score of a metric; custom metrics have no limits.

    The names of custom metrics have no colon, as those of a label, a level or a subgroup have.
    """
    built_in = {*METRIC_PROPERTIES, *_METRICS, *METRICS_OF_VECTORS}
    if ":" not in metric and metric.removesuffix("_uncalibrated") not in built_in:
        return -math.inf, math.inf
    properties = properties_of(metric)
    return properties.lowest, properties.highest
