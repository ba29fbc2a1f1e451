"""Scores of labels against the votes of annotators (soft labels).

Uma, Fornaciari, Hovy, Paun, Plank & Poesio 2021, "Learning from Disagreement: A Survey". What
bounds the scores: ``agreement``, the expected accuracy of one vote, and ``votes_entropy``.
"""

from __future__ import annotations

import numpy as np

from finetune.data.labels import agreement, canonical_names
from finetune.evaluation.items import Tables
from finetune.evaluation.metrics import Metric, mean, means, ratio


def _distributions(tables: Tables) -> tuple[np.ndarray, np.ndarray]:
    sides = tables.distributions, tables.all_probabilities
    names = list(dict.fromkeys(name for side in sides for row in side for name in row))
    canonical = canonical_names(names)
    number = {name: index for index, name in enumerate(dict.fromkeys(canonical.values()))}
    column = {name: number[standard] for name, standard in canonical.items()}
    arrays = np.zeros((2, len(tables), len(number)))
    for array, side in zip(arrays, sides, strict=True):
        for row, values in zip(array, side, strict=True):
            for name, value in values.items():
                row[column[name]] += value
    rounded = np.round(arrays[1], 6)  # the digits of prediction files
    sums = np.broadcast_to(rounded.sum(-1, keepdims=True), rounded.shape)
    return arrays[0], ratio(rounded, sums)


def _entropies(rows: np.ndarray) -> np.ndarray:
    logs = np.log(rows, out=np.zeros_like(rows), where=rows > 0)
    entropies: np.ndarray = 0.0 - (rows * logs).sum(-1)
    return entropies


def _soft_cross_entropies(tables: Tables) -> np.ndarray:
    shares, probabilities = _distributions(tables)
    # 1e-6 is the least probability of prediction files that is not 0
    return means(0.0 - (shares * np.log(np.maximum(probabilities, 1e-6))).sum(-1))


def _majority_shares(tables: Tables) -> np.ndarray:
    votes = (example.votes for example in tables.examples)
    return np.array([(agreement(of_text)[1], 1) if of_text else (0, 0) for of_text in votes])


def _entropies_of_votes(tables: Tables) -> np.ndarray:
    rows = (np.array([list(distribution.values())]) for distribution in tables.distributions)
    return means(np.concatenate(list(map(_entropies, rows))))


def vote_metrics(tables: Tables) -> dict[str, Metric]:
    """Make the metrics of texts with votes."""
    metrics = {
        "agreement": Metric(_majority_shares, mean),
        "votes_entropy": Metric(_entropies_of_votes, mean),
    }
    if not tables.all_probabilities:
        return metrics
    return {"soft_cross_entropy": Metric(_soft_cross_entropies, mean), **metrics}
