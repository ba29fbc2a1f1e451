"""Scores of classes and subgroups: tables of an analysis, and a metric for each of their rows."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np

from finetune.evaluation.items import TableRows, Tables
from finetune.evaluation.metrics import Metric, class_scores, name_of
from finetune.evaluation.training_vocabulary import TrainingVocabulary

NOTHING = "(nothing)"
"""In a confusion matrix of spans: no span corresponds."""


def tables_of_groups(tables: Tables, vocabulary: TrainingVocabulary | None) -> dict[str, TableRows]:
    """Return the tables of an analysis by name."""
    type, found = tables.type, dict(tables.type.first_tables(tables))
    if type.classes:
        found[type.classes] = [
            {type.classes: name} | dict(row) for name, row in class_scores(tables).items()
        ]
    if type.has_confusions:
        found |= confusion_tables(confusions(tables))
    groupings = tables.groupings(vocabulary).items()
    return found | {name: each.table(name) for name, each in groupings if each.shown}


def confusions(tables: Tables) -> Counter[tuple[str, str]]:
    """Count the pairs of gold and predicted classes."""
    gold, predicted = (
        [NOTHING if value is None else name_of(value) for value in side]
        for side in (tables.items.gold, tables.items.given)
    )
    return Counter(zip(gold, predicted, strict=True))


def confusion_tables(pairs: Counter[Any]) -> dict[str, TableRows]:
    """Tabulate the confusion matrix of (gold, predicted) pairs, and the most frequent errors."""
    found = {name for pair in pairs for name in pair}
    names = sorted(found, key=lambda name: (name == NOTHING, name))
    matrix = [
        {"gold": gold, "predicted": {name: pairs[gold, name] for name in names}} for gold in names
    ]
    confused = [
        {"gold": gold, "predicted": predicted, "number": number}
        for (gold, predicted), number in pairs.most_common()
        if gold != predicted and NOTHING not in (gold, predicted)
    ]
    return {"confusion": matrix, "confused": confused}


def subgroup_metrics(tables: Tables, vocabulary: TrainingVocabulary | None) -> dict[str, Metric]:
    """Return a metric for each row of the tables of subgroups.

    Their names join the score, the table and the subgroup, with ``_`` for spaces:
    ``span_f1_length:3``, ``span_f1_in_training:unseen``, ``accuracy_position:1``. The accuracy on
    unseen words has a name of its own.
    """

    def counts(tables: Tables, name: str, group: str) -> np.ndarray:
        return tables.groupings(vocabulary)[name].of_examples(group, len(tables))

    found = {
        f"{each.score}_{name}:{group}".replace(" ", "_"): Metric(
            partial(counts, name=name, group=group), each.value
        )
        for name, each in tables.groupings(vocabulary).items()
        if each.shown
        for group in each.order
    }
    unseen = found.get("accuracy_in_training:unseen")
    return found if unseen is None else found | {"unseen_word_accuracy": unseen}
