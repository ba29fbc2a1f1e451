"""Prediction sets that hold the right class with a chosen probability (split conformal prediction).

The guarantee is marginal: over new data of the same kind as the data that the rule was fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finetune.evaluation.decisions import Choice, SetRule, set_score
from finetune.evaluation.tables import TableRows, Tables
from finetune.types import UserError, quantity


def conformal_quantile(scores: Sequence[float], level: float) -> float | None:
    """Find the ⌈(n + 1) level⌉-th smallest score, which a new score exceeds with probability
    1 - level at most; None if there are too few scores (Vovk et al. 2005)."""
    rank = max(1, math.ceil((len(scores) + 1) * level - 1e-9))
    return sorted(scores)[rank - 1] if rank <= len(scores) else None


def fewest_for_level(level: float) -> int:
    """The number of scores that ``conformal_quantile`` needs."""
    return math.ceil(level / (1 - level) - 1e-9)


def fit_sets(tables: Tables, level: float) -> SetRule:
    """Fit the rule whose sets hold the right class with probability ``level``.

    The limit is the conformal quantile of the scores of gold.
    """
    scores = [set_score(probabilities[name]) for probabilities, name in _gold_classes(tables)]
    quantile = conformal_quantile(scores, level)
    if quantile is None:
        raise UserError(
            f"--sets {level:g}: {quantity(len(scores), 'prediction')} with gold, where "
            f"{fewest_for_level(level):,} are needed: add validation data, or lower the level."
        )
    return SetRule(level, quantile)


def _gold_classes(tables: Tables) -> list[tuple[Mapping[Any, float], Any]]:
    # the probabilities of each text, and the class of gold among them
    if not tables.type.one_class:
        raise UserError(
            "--sets: prediction sets are for predictions of one class: labels of texts and choices."
        )
    rows = [prediction.class_probabilities for prediction in tables.predictions]
    classes = [pair for pair in zip(rows, tables.gold, strict=True) if pair[1] in pair[0]]
    if not classes:
        raise UserError(
            "--sets: these predictions have no probabilities of all classes (`scores`)."
        )
    return classes


def table_of_sets(tables: Tables, rule: SetRule) -> TableRows:
    """Tabulate the coverage and the mean size of sets, over all texts and by gold class."""
    gold = _gold_classes(tables)
    groups: dict[str, list[tuple[bool, int]]] = {"(all)": []}
    for probabilities, name in sorted(gold, key=lambda pair: str(pair[1])):
        members = rule.members(probabilities)
        for group in ("(all)", str(name)):
            groups.setdefault(group, []).append((name in members, len(members)))
    rows = []
    for group, counts in groups.items():
        coverage, size = np.mean(counts, axis=0).tolist()
        rows.append({"texts": group, "number": len(counts), "coverage": coverage, "size": size})
    return rows


def choose_sets(runs: Mapping[str, Tables], split: str, level: float) -> Choice:
    """Fit a rule on a split, and tabulate its sets on each split."""
    rule = fit_sets(runs[split], level)
    tables = {f"sets on {name}": table_of_sets(run, rule) for name, run in runs.items()}
    notes = list[str]()
    if level < 0.5:
        notes.append(
            f"--sets {level:g}: a set has the right label with probability {level:g}; for an error "
            f"rate of {level:g} write --sets {1 - level:g}"
        )
    return Choice({"sets": vars(rule)}, {"sets": vars(rule), **tables}, tables, notes)
