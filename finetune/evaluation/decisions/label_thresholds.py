"""Choose the probabilities from which labels are predicted, on predictions with gold.

A threshold decides between two labels, or whether a label of a set applies. The best threshold is
just below the probability of an example with the label: a lower one only adds errors. The candidate
("cut") is the middle between this probability and the next lower one.

Shapes: N examples, C labels with a threshold (of two labels only the positive one), K cuts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, permutations
from typing import Any

import numpy as np

from finetune.config.metric_properties import properties_of
from finetune.data.labels import canonical_names
from finetune.data.splitting import halves
from finetune.evaluation.decisions import Choice
from finetune.evaluation.metrics import RATES, Metric, item_counts, precision, recall
from finetune.evaluation.prediction_types.labels import LABEL, LABELS
from finetune.evaluation.significance import find_metric
from finetune.evaluation.tables import TableRows, Tables
from finetune.types import UserError, abbreviated

_FEWEST = 5
"""A label with fewer gold examples keeps its threshold."""


@dataclass(frozen=True)
class Goal:
    """The quantity to maximize: a metric, recall at a precision, or precision at a recall."""

    metric: str | None = None
    """Metric of labels to maximize. Default: `f1` for two labels, `micro_f1` for multi-label
    data."""
    precision: float | None = None
    """Maximize the recall of each label at this precision."""
    recall: float | None = None
    """Maximize the precision of each label at this recall."""

    def __str__(self) -> str:
        if self.precision is not None:
            return f"recall at a precision of {self.precision:g}"
        if self.recall is not None:
            return f"precision at a recall of {self.recall:g}"
        return str(self.metric)

    def rate(self, counts: np.ndarray) -> np.ndarray:
        """Rank the counts of a label: if they have the wanted rate by the other one, else by it."""
        fixed, free = precision(counts), recall(counts)
        if self.precision is None:
            fixed, free = free, fixed
        reached = fixed >= (self.precision or self.recall or 0.0) - 1e-12
        return np.where(reached, 1 + free, fixed + 1e-9 * free)


@dataclass(frozen=True)
class LabelProbabilities:
    """Gold and probabilities of examples: ``applies`` and ``scores`` [N, C] of ``columns`` [C].

    ``names`` are all labels. With two labels, ``columns`` holds only the positive one.
    ``separator`` divides the levels of labels.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    examples: Sequence[Any]
    gold: Sequence[Any]
    scores: np.ndarray
    separator: str | None = None

    @classmethod
    def of(cls, run: Tables, names: Sequence[str], positive: str | None) -> LabelProbabilities:
        """Collect the gold and the probabilities of a model's labels from aligned predictions."""
        columns = tuple(names) if positive is None else (positive,)
        # predictions have the usual names of NLI labels in place of those of the model
        standard = canonical_names(names) if run.type.one_class else {name: name for name in names}
        rows, wanted = run.all_probabilities, {standard[name] for name in columns}
        if not rows or not all(wanted <= row.keys() for row in rows):
            raise UserError("these predictions have no probabilities of all labels (`scores`).")
        values = [[row[standard[name]] for name in columns] for row in rows]
        scores = np.array(values, dtype=float).reshape(len(rows), len(columns))
        gold = run.gold
        if run.type.one_class:
            of_model = {other: name for name, other in standard.items()}
            gold = [(of_model.get(name, name),) for name in gold]
        return cls(tuple(names), columns, run.examples, gold, scores, run.separator)

    @property
    def applies(self) -> np.ndarray:
        """The gold labels of each example as booleans [N, C]."""
        rows = [[name in labels for name in self.columns] for labels in self.gold]
        return np.array(rows, dtype=bool).reshape(self.scores.shape)

    def take(self, rows: Sequence[int]) -> LabelProbabilities:
        """Take some of the examples."""
        some = [[values[row] for row in rows] for values in (self.examples, self.gold)]
        return replace(self, examples=some[0], gold=some[1], scores=self.scores[list(rows)])

    def tables(self, decided: np.ndarray) -> Tables:
        """Make the tables of gold and of decisions [N, C]."""
        fields: dict[str, Any] = {"labels": self.names, "separator": self.separator}
        if len(self.columns) == len(self.names):
            predicted = [tuple(compress(self.columns, row)) for row in decided.tolist()]
            return LABELS.of_values(self.gold, predicted, **fields)
        (positive,) = self.columns
        other = next(name for name in self.names if name != positive)
        answers, gold = np.where(decided[:, 0], positive, other).tolist(), [g for (g,) in self.gold]
        return LABEL.of_values(gold, answers, positive=positive, **fields)

    def value(self, name: str, thresholds: np.ndarray) -> float:
        """Compute a score under thresholds [C], or under those of each example [N, C]."""
        tables = self.tables(self.scores >= thresholds)
        return find_metric(name, [tables]).score(tables)


def choose(data: LabelProbabilities, goal: Goal, default: float = 0.5) -> dict[str, float]:
    """Choose the threshold of each label for a goal.

    A metric over several labels is raised label by label until no single change helps. Among
    equally good thresholds, the nearest to ``default`` wins. Labels with fewer than ``_FEWEST``
    examples keep it. If no threshold reaches the precision, the threshold with the highest
    precision is chosen.
    """
    applies, best = data.applies, np.full(len(data.columns), default)
    cuts = [_cuts(*column, default) for column in zip(data.scores.T, applies.T, strict=True)]
    enough = np.flatnonzero(applies.sum(axis=0) >= _FEWEST).tolist()
    metrics = [Metric(partial(item_counts, name=name), goal.rate) for name in data.columns]
    sign = 1
    if goal.metric is not None:
        metrics = [find_metric(goal.metric, [data.tables(applies)])] * len(metrics)
        sign = -1 if properties_of(goal.metric).lower_is_better else 1
    decided = data.scores >= best
    for _ in range(5 if len(enough) > 1 else 1):
        before = best.copy()
        for index in enough:
            values = sign * _values_under(data, metrics[index], decided, index, cuts[index])
            best[index] = cuts[index][np.argmax(values > values.max() - 1e-12)]
            decided[:, index] = data.scores[:, index] >= best[index]
        if np.array_equal(before, best):
            break
    return dict(zip(data.columns, best.tolist(), strict=True))


def _values_under(
    data: LabelProbabilities, metric: Metric, decided: np.ndarray, index: int, cuts: np.ndarray
) -> np.ndarray:
    # The metric under each cut of one label, where the decisions on others stay [K]. Examples are
    # in the order of their scores: those before the cut do not have the label.
    order = np.argsort(data.scores[:, index], kind="stable")
    sums = []
    for answer, side in ((False, slice(None)), (True, slice(None, None, -1))):
        decided[:, index] = answer
        counts = metric.counts(data.tables(decided))[order][side]
        sums.append(np.concatenate([np.zeros_like(counts[:1]), counts.cumsum(axis=0)]))
    below = data.scores[order, index].searchsorted(cuts)
    return metric.value(sums[0][below] + sums[1][len(order) - below])


def cross_fitted(data: LabelProbabilities, goal: Goal, default: float = 0.5) -> np.ndarray:
    """Choose thresholds of each example [N, C], on the half of the data without it."""
    fitted = np.empty(data.scores.shape)
    for half, other_half in permutations(halves(data.examples)):
        fitted[half] = list(choose(data.take(other_half), goal, default).values())
    return fitted


def _cuts(scores: np.ndarray, gold: np.ndarray, default: float) -> np.ndarray:
    # below the probabilities of gold examples, one above all, and the default, which wins among
    # equals: cuts are in the order of their distance from it
    levels = np.unique(scores)
    lower = np.concatenate(([0.0], levels[:-1]))
    cuts = (levels + lower)[np.isin(levels, scores[gold])] / 2
    cuts = np.append(cuts, (levels.max(initial=0.0) + 1) / 2)
    cuts = np.unique(np.append(cuts[cuts >= 0], default))
    return cuts[np.argsort(abs(cuts - default), kind="stable")]


def table_of(data: LabelProbabilities, thresholds: Mapping[str, float]) -> TableRows:
    """Tabulate precision, recall, F1, predicted and gold examples of each label."""
    rows, tables = [], data.tables(data.scores >= list(thresholds.values()))
    for name, threshold in thresholds.items():
        counts = item_counts(tables, name).sum(axis=0)
        row = {"label": name, "threshold": threshold}
        row |= {rate: float(value(counts)) for rate, value in RATES.items()}
        rows.append(row | {"predicted": int(counts[1]), "gold": int(counts[2])})
    return rows


def choose_thresholds(
    runs: Mapping[str, Tables],
    split: str,
    labels: Sequence[str],
    positive: str | None,
    default: float,
    goal: Goal,
    *,
    folder: str,
) -> Choice:
    """Choose the threshold of each label, and score each split before and after."""
    splits = {name: LabelProbabilities.of(run, labels, positive) for name, run in runs.items()}
    data, metric = splits[split], goal.metric or ("f1" if positive else "micro_f1")
    by_rate = goal.precision is not None or goal.recall is not None
    goal = replace(goal, metric=None if by_rate else metric)
    chosen = choose(data, goal, default)
    rows, notes = table_of(data, chosen), []
    if few := [row["label"] for row in rows if row["gold"] < _FEWEST]:
        notes.append(f"under {_FEWEST} gold examples, so not chosen: {', '.join(few)}")
    if len(few) == len(rows):
        raise UserError(
            f"{folder}: no label has {_FEWEST} gold examples in {split}, too few to choose a "
            "threshold on: train with more validation data."
        )
    fitted, before_after = cross_fitted(data, goal, default), {}
    for name, of_split in splits.items():
        before = np.full(len(chosen), default)
        after = fitted if name == split else np.array(list(chosen.values()))
        old, new = of_split.value(metric, before), of_split.value(metric, after)
        before_after[name] = {"before": old, "after": new}
        how = " (each half with the threshold of the other)" if name == split else ""
        notes.append(f"{name} {metric}: {old:.4f} at {default:g}, now {new:.4f}{how}")
    fixed, least = ("precision", goal.precision) if goal.recall is None else ("recall", goal.recall)
    if missed := [r["label"] for r in rows if r[fixed] < (least or 0) and r["gold"] >= _FEWEST]:
        notes.append(f"no threshold reaches this for {abbreviated(missed)}: the nearest is taken")
    title = f"{goal}, chosen on {len(data.gold):,} examples of {split}"
    content = {"goal": str(goal), "thresholds": chosen, "metric": metric, "scores": before_after}
    return Choice({"thresholds": chosen}, content, {"": rows}, notes, title)
