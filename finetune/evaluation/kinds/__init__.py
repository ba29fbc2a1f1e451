"""The kinds of predictions, one file for each; extensions add theirs in ``finetune.registry``.

Only these files know what a kind is: all others ask its ``Kind`` (``kind.py``), which a
``Scored`` and the lines of a ``PredictionFile`` lead to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.config.metric_facts import facts_of
from finetune.evaluation.kinds.answers import ANSWERS
from finetune.evaluation.kinds.choice import CHOICE
from finetune.evaluation.kinds.kind import Kind, Scored
from finetune.evaluation.kinds.label import LABEL, LABELS, NUMBER
from finetune.evaluation.kinds.relations import RELATIONS
from finetune.evaluation.kinds.spans import SPANS
from finetune.evaluation.kinds.words import PLAIN_TAGS, TAGS
from finetune.evaluation.metrics import score
from finetune.registry import PREDICTION_KINDS, Registry

_OF_CORE: Sequence[Kind] = (
    RELATIONS,
    TAGS,
    SPANS,
    CHOICE,
    LABEL,
    ANSWERS,
    LABELS,
    NUMBER,
    PLAIN_TAGS,
)
"""The kinds of the core; the first whose key a line has is the kind of the line."""


class _Kinds(Mapping[str, Kind]):
    """The kinds by name; the kinds of extensions are imported on first use."""

    def __init__(self) -> None:
        self._own = {kind.name: kind for kind in _OF_CORE}
        self._of_extensions: Registry[Kind] = Registry(
            {name: paths.kind for name, paths in PREDICTION_KINDS.items()}
        )

    def __getitem__(self, name: str) -> Kind:
        return self._own[name] if name in self._own else self._of_extensions[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*self._own, *self._of_extensions)

    def __len__(self) -> int:
        return len(self._own) + len(self._of_extensions)


KINDS: Mapping[str, Kind] = _Kinds()
"""The kinds of predictions by name, as in the records of models."""

DEFAULT_METRICS: Mapping[str, str] = {
    **{kind.name: kind.default for kind in _OF_CORE},
    **{name: paths.metrics[0] for name, paths in PREDICTION_KINDS.items()},
}
"""The metric that selects models, by kind."""

_METRICS = {
    *(name for kind in _OF_CORE for name in kind.metrics),
    *(name for paths in PREDICTION_KINDS.values() for name in paths.metrics),
}
_KEYS = {kind.key: kind.name for kind in _OF_CORE if kind.key} | {n: n for n in PREDICTION_KINDS}
"""The kind of a line by its keys, of which the first decides."""
_OF_VECTORS = {"ranking_accuracy", "ranking_mrr"}
"""Metrics of vectors, which are no predictions of a kind."""


def kind_of_line(row: Mapping[str, Any]) -> str:
    """Return the name of the kind of a line, by its keys; empty for none."""
    return next((name for key, name in _KEYS.items() if key in row), "")


def common_kinds(kinds: Sequence[Kind]) -> Sequence[Kind]:
    """Return the kinds as which to read files together: tags next to spans as spans."""
    return [SPANS] * len(kinds) if {*kinds} == {TAGS, SPANS} else kinds


def scores_of(
    kind: str, gold: Sequence[Any], predicted: Sequence[Any], **facts: Any
) -> dict[str, float]:
    """Return the scores of gold and predicted values of a kind; ``Scored`` explains the facts.

    >>> scores_of("label", ["a", "b"], ["a", "a"], labels=["a", "b"])["accuracy"]
    0.5
    """
    return score(KINDS[kind].pair(gold, predicted, **facts))


def is_built_in(metric: str) -> bool:
    """Return True for a metric of a kind, and False for a custom metric."""
    return metric in _METRICS


def score_limits(metric: str) -> tuple[float, float]:
    """Return the least and the largest score of a metric; custom metrics have no limits."""
    facts = facts_of(metric)
    if facts.highest > 1 or metric.partition(":")[0] not in _METRICS | _OF_VECTORS:
        return -math.inf, math.inf
    return facts.lowest, facts.highest


__all__ = [
    "DEFAULT_METRICS",
    "KINDS",
    "Kind",
    "Scored",
    "common_kinds",
    "is_built_in",
    "kind_of_line",
    "score",
    "score_limits",
    "scores_of",
]
