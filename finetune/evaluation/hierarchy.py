"""Scores of labels that are paths of a hierarchy, such as ``sport/football``.

Hierarchical precision, recall and F1 count a label together with its ancestors, the root left out,
so that ``sport/tennis`` in place of ``sport/football`` is half right (Kiritchenko, Matwin & Famili
2005, "Functional Annotation of Genes Using Hierarchical Text Categorization"; Kiritchenko, Matwin,
Nock & Famili 2006). The predictions name the separator of the levels.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np

from finetune.evaluation.items import Tables
from finetune.evaluation.metrics import RATES, Metric, set_counts
from finetune.types import UserError, abbreviated


def check_paths(labels: Collection[str], separator: str) -> None:
    """Raise UserError unless labels are paths with this separator."""
    empty = [label for label in labels if not all(map(str.strip, label.split(separator)))]
    if empty:
        raise UserError(
            f"--label-separator {separator}: the label {empty[0]!r} has an empty level: correct "
            "the label, or choose another separator."
        )
    if not any(separator in label for label in labels):
        raise UserError(
            f"--label-separator {separator}: no label has levels ({abbreviated(sorted(labels))}): "
            "leave it out, or name the separator of the labels."
        )


def with_ancestors(labels: str | Collection[str], separator: str) -> set[str]:
    """Collect labels and their ancestors; a blank text has none.

    >>> sorted(with_ancestors("sport/football", "/"))
    ['sport', 'sport/football']
    """
    names = [labels] if isinstance(labels, str) else labels
    return {
        path
        for name in names
        if name
        for path in accumulate(name.split(separator), lambda *parts: separator.join(parts))
    }


def at_level(labels: Any, separator: str, level: int) -> Any:
    """Cut a label, or each label of a tuple, after a number of levels.

    >>> at_level("sport/football/women", "/", 2)
    'sport/football'
    """
    if isinstance(labels, str):
        return separator.join(labels.split(separator)[:level])
    return tuple(dict.fromkeys(at_level(label, separator, level) for label in labels))


def _ancestor_counts(tables: Tables) -> np.ndarray:
    separator = tables.separator or ""
    gold, predicted = (
        [with_ancestors(labels, separator) for labels in side]
        for side in (tables.gold, tables.predicted)
    )
    return set_counts(gold, predicted)


METRICS = {
    f"hierarchical_{name}": Metric(_ancestor_counts, value, attrgetter("separator"))
    for name, value in RATES.items()
}
"""Precision, recall and F1 over labels and their ancestors: micro averages."""


def _cut(tables: Tables, level: int) -> Tables:
    cut = partial(at_level, separator=tables.separator or "", level=level)
    sides = tables.gold, tables.predicted, tables.labels, tables.names
    gold, predicted, labels, names = (list(map(cut, side)) for side in sides)
    levels = tables.type.of_values(gold, predicted, labels=list(dict.fromkeys(labels)))
    return replace(levels, names=tuple(sorted({*levels.names, *names})))


def with_levels(tables: Tables) -> Tables:
    """Add the metrics of each level, if the predictions name the separator of levels.

    The main metric and macro F1 are those of labels that are cut after a level, where a label with
    fewer levels stays as it is: ``accuracy_level:1`` is the accuracy of first levels.
    """
    separator = next((p.separator for p in tables.predictions), tables.separator)
    if separator is None:
        return tables
    names = {*tables.labels, *tables.items.gold, *tables.items.answer} - {None}

    def counts(tables: Tables, metric: Metric, level: int) -> np.ndarray:
        return metric.counts(_cut(tables, level))

    metrics = tables.type.metrics
    levels = {
        f"{name}_level:{level + 1}": replace(
            metrics[name], counts=partial(counts, metric=metrics[name], level=level + 1)
        )
        for level in range(1 + max(name.count(separator) for name in names))
        for name in (tables.type.default, "macro_f1")
    }
    return replace(tables, separator=separator, further_metrics=levels)
