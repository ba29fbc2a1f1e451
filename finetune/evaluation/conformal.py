"""Prediction sets that hold the right class with a chosen probability (split conformal prediction).

The guarantee is marginal: over new data of the same kind as the data that the rule was fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from finetune.data import halved
from finetune.data.labels import canonical_names
from finetune.evaluation.decisions import SetRule, set_scores
from finetune.evaluation.kinds import Scored
from finetune.types import UserError, quantity

ALL = "(all)"
"""The name of the row of all texts."""


class SetRow(NamedTuple):
    """A row of the table of prediction sets: of all texts, of a gold class, or of a subgroup."""

    texts: str
    number: int
    coverage: float
    """The share of sets that hold the gold class."""
    size: float
    """The mean number of classes in a set."""


class _Case(NamedTuple):
    """A prediction with its probabilities, and the key of its gold class among them."""

    number: int
    id: int
    known: Mapping[Any, float]
    gold: Any


def fit_sets(scored: Scored, level: float, how: str, per_class: bool) -> SetRule:
    """Return the rule whose sets hold the right class with probability ``level``.

    The limit is the ⌈(n + 1) level⌉-th smallest score of gold. ``per_class`` fits it for each gold
    class apart (Vovk 2012), so that the level holds for each; a class with too few examples is in
    every set.

    Raises:
        UserError: There are too few predictions, or they have no probabilities of classes.
    """
    return _fitted(_cases(scored), level, how, per_class)


def _cases(scored: Scored) -> list[_Case]:
    if not scored.kind.one_class:
        raise UserError(
            "--sets: prediction sets are for predictions of one class: labels of texts and choices."
        )
    found = []
    for number, (prediction, gold) in enumerate(zip(scored.predictions, scored.gold, strict=True)):
        known = prediction.class_probabilities
        names = dict(zip(canonical_names(map(str, known)), known, strict=True))
        if (key := gold if gold in known else names.get(gold)) in known:
            found.append(_Case(number, prediction.id, known, key))
    if not found:
        raise UserError(
            "--sets: these predictions have no probabilities of all classes (`scores`)."
        )
    return found


def _fitted(cases: Sequence[_Case], level: float, how: str, per_class: bool) -> SetRule:
    by_class: dict[str, list[float]] = {}
    for case in cases:
        values = np.array([list(case.known.values())])
        score = set_scores(values, how, [case.id])[0, list(case.known).index(case.gold)]
        by_class.setdefault(str(case.gold) if per_class else "", []).append(float(score))
    quantiles = {
        name: sorted(scores)[rank - 1]
        for name, scores in by_class.items()
        if (rank := math.ceil((len(scores) + 1) * level - 1e-9)) <= len(scores)
    }
    if not quantiles:
        least = math.ceil(level / (1 - level) - 1e-9)
        what = "of a class" if per_class else "with gold"
        raise UserError(
            f"--sets {level:g}: {quantity(max(map(len, by_class.values())), 'prediction')} {what}, "
            f"where {least:,} are needed: add validation data, or lower the level."
        )
    return SetRule(how, level, quantiles)


class _Made(NamedTuple):
    """A set: the index of its text, its gold class, whether it holds that, and its size."""

    number: int
    gold: str
    holds: bool
    size: int


def _made(scored: Scored, rule: SetRule, refit: bool) -> list[_Made]:
    cases, rules = _cases(scored), [rule, rule]
    halves = [0] * len(scored)
    if refit:
        halves = halved(scored.examples)
        for half in (0, 1):
            others = [case for case in cases if halves[case.number] != half]
            rules[half] = _fitted(others, rule.level, rule.scores, "" not in rule.quantiles)
    found = []
    for case in cases:
        members = rules[halves[case.number]].members(case.known, case.id)
        found.append(_Made(case.number, str(case.gold), case.gold in members, len(members)))
    return found


def table_of_sets(scored: Scored, rule: SetRule, *, refit: bool = False) -> list[SetRow]:
    """Return the coverage and the size of sets, over all texts and by gold class.

    With ``refit``, each half of the texts has the rule that is fitted on the other half: for the
    data that the rule was fitted on.

    Raises:
        UserError: A half is too small to fit a rule.
    """
    made = _made(scored, rule, refit)
    classes = sorted({each.gold for each in made})
    return [_row(ALL, made), *(_row(c, [m for m in made if m.gold == c]) for c in classes)]


def subgroups_of_sets(scored: Scored, rule: SetRule) -> dict[str, list[SetRow]]:
    """Return the coverage and the size of sets by the subgroups of texts, by name of grouping."""
    made = {each.number: each for each in _made(scored, rule, refit=False)}
    found = {}
    for name, grouping in scored.kind.groupings(scored, None).items():
        groups: dict[str, list[_Made]] = {}
        for number, group, _ in grouping.cells(scored):
            groups.setdefault(group, []).extend([made[number]] if number in made else [])
        found[name] = [_row(group, groups[group]) for group in grouping.order if group in groups]
    return found


def _row(name: str, made: Sequence[_Made]) -> SetRow:
    number = max(1, len(made))
    held, size = sum(each.holds for each in made), sum(each.size for each in made)
    return SetRow(name, len(made), held / number, size / number)
