"""Prediction sets that hold the right class with a chosen probability (split conformal prediction).

The guarantee is marginal: over new data of the same kind as the data that the rule was fitted on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from finetune.data import halves
from finetune.data.labels import canonical_names
from finetune.evaluation.decisions import Choice, SetRule, set_scores
from finetune.evaluation.items import TableRows, Tables
from finetune.types import UserError, quantity

ALL = "(all)"
"""The name of the row of all texts."""


def conformal_quantile(scores: Sequence[float], level: float) -> float | None:
    """Find the ⌈(n + 1) level⌉-th smallest score, which a new score exceeds with probability
    1 - level at most; None if there are too few scores (Vovk et al. 2005)."""
    rank = max(1, math.ceil((len(scores) + 1) * level - 1e-9))
    return sorted(scores)[rank - 1] if rank <= len(scores) else None


def fewest_for_level(level: float) -> int:
    """The number of scores that ``conformal_quantile`` needs."""
    return math.ceil(level / (1 - level) - 1e-9)


def fit_sets(tables: Tables, level: float, how: str, per_class: bool) -> SetRule:
    """Fit the rule whose sets hold the right class with probability ``level``.

    The limit is the conformal quantile of the scores of gold. ``per_class`` fits it for each gold
    class apart (Vovk 2012), so that the level holds for each; a class with too few examples is in
    every set.
    """
    gold = _gold_classes(tables)
    texts = json.dumps([example.texts() for example in tables.examples])
    salt = hashlib.blake2b(texts.encode(), digest_size=8).hexdigest()
    return _fitted(tables, gold, SetRule(how, level, {}, salt), per_class)


def _gold_classes(tables: Tables) -> dict[int, Any]:
    if not tables.type.one_class:
        raise UserError(
            "--sets: prediction sets are for predictions of one class: labels of texts and choices."
        )
    classes = {}
    for index, (prediction, gold) in enumerate(zip(tables.predictions, tables.gold, strict=True)):
        probabilities = prediction.class_probabilities
        standard = canonical_names(map(str, probabilities))
        names = {standard[str(name)]: name for name in probabilities}
        if (key := gold if gold in probabilities else names.get(gold)) in probabilities:
            classes[index] = key
    if not classes:
        raise UserError(
            "--sets: these predictions have no probabilities of all classes (`scores`)."
        )
    return classes


def _fitted(tables: Tables, gold: Mapping[int, Any], rule: SetRule, per_class: bool) -> SetRule:
    by_class: dict[str, list[float]] = {}
    for index, name in gold.items():
        probabilities = tables.predictions[index].class_probabilities
        scores = set_scores(probabilities, rule.scores, tables.examples[index].texts(), rule.salt)
        by_class.setdefault(str(name) if per_class else "", []).append(scores[name])
    quantiles = {
        name: quantile
        for name, scores in by_class.items()
        if (quantile := conformal_quantile(scores, rule.level)) is not None
    }
    if not quantiles:
        what = "of a class" if per_class else "with gold"
        most = quantity(max(map(len, by_class.values())), "prediction")
        fewest = fewest_for_level(rule.level)
        raise UserError(
            f"--sets {rule.level:g}: {most} {what}, where {fewest:,} are needed: add validation "
            "data, or lower the level."
        )
    return replace(rule, quantiles=quantiles)


def table_of_sets(tables: Tables, rule: SetRule, *, refit: bool = False) -> TableRows:
    """Tabulate the coverage and the mean size of sets, over all texts and by gold class.

    With ``refit``, each half of the texts has the rule that is fitted on the other half.
    """
    gold = _gold_classes(tables)
    rules = dict.fromkeys(gold, rule)
    if refit:
        per_class = "" not in rule.quantiles
        for half, other_half in permutations(halves(tables.examples)):
            gold_of_half = {index: gold[index] for index in other_half if index in gold}
            fitted = _fitted(tables, gold_of_half, rule, per_class)
            rules |= dict.fromkeys(gold.keys() & half, fitted)
    groups: dict[str, list[tuple[bool, int]]] = {ALL: []}
    groups |= {name: [] for name in sorted(map(str, gold.values()))}
    for index, name in gold.items():
        texts = tables.examples[index].texts()
        members = rules[index].members(tables.predictions[index].class_probabilities, texts)
        for group in (ALL, str(name)):
            groups[group].append((name in members, len(members)))
    rows = []
    for group, counts in groups.items():
        held, size = np.sum(counts, axis=0).tolist()
        number = len(counts)
        rows.append(
            {"texts": group, "number": number, "coverage": held / number, "size": size / number}
        )
    return rows


def choose_sets(
    runs: Mapping[str, Tables], split: str, level: float, how: str, per_class: bool
) -> Choice:
    """Fit a rule on a split, and tabulate its sets on each split."""
    rule, tables = fit_sets(runs[split], level, how, per_class), dict[str, TableRows]()
    for name, run in runs.items():
        with contextlib.suppress(UserError):  # half of validation may be too small
            halved = ", each half with the rule of the other" if name == split else ""
            tables[f"sets on {name}{halved}"] = table_of_sets(run, rule, refit=name == split)
    return Choice({"sets": vars(rule)}, {"sets": vars(rule), **tables}, tables)
