"""Scores of labels against the votes of annotators (soft labels).

Uma, Fornaciari, Hovy, Paun, Plank & Poesio 2021, "Learning from Disagreement: A Survey". What
bounds the scores: ``agreement``, the expected accuracy of one vote, and ``votes_entropy``.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter

import numpy as np

from finetune.data.labels import agreement, canonical_names
from finetune.evaluation.items import Tables
from finetune.evaluation.metrics import Metric, mean, means, ratio


def _distributions(tables: Tables) -> np.ndarray:
    # of the votes, and of the probabilities if they are known [1 or 2, N, C]
    sides = [tables.distributions, tables.all_probabilities]
    sides = sides if sides[1] else sides[:1]
    names = list(dict.fromkeys(name for side in sides for row in side for name in row))
    canonical = canonical_names(names)
    number = {name: index for index, name in enumerate(dict.fromkeys(canonical.values()))}
    column = {name: number[standard] for name, standard in canonical.items()}
    arrays = np.zeros((len(sides), len(tables), len(number)))
    for array, side in zip(arrays, sides, strict=True):
        for row, values in zip(array, side, strict=True):
            for name, value in values.items():
                row[column[name]] += value
    rounded = np.round(arrays[1:], 6)  # the digits of prediction files
    sums = np.broadcast_to(rounded.sum(-1, keepdims=True), rounded.shape)
    return np.concatenate([arrays[:1], ratio(rounded, sums)])


def _cross_entropies(tables: Tables, side: int) -> np.ndarray:
    distributions = _distributions(tables)
    # 1e-6 is the least probability of prediction files that is not 0
    logs = np.log(np.maximum(distributions[side], 1e-6))
    return means(0.0 - (distributions[0] * logs).sum(-1))


def _majority_shares(tables: Tables) -> np.ndarray:
    votes = (example.votes for example in tables.examples)
    return np.array([(agreement(of_text)[1], 1) if of_text else (0, 0) for of_text in votes])


VOTE_METRICS = {
    "soft_cross_entropy": Metric(
        partial(_cross_entropies, side=1),
        mean,
        lambda tables: tables.distributions and tables.all_probabilities,
    ),
    "agreement": Metric(_majority_shares, mean, attrgetter("distributions")),
    "votes_entropy": Metric(partial(_cross_entropies, side=0), mean, attrgetter("distributions")),
}
"""The metrics of texts with votes."""
