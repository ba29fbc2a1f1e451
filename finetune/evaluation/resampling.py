"""Counts of a metric for each example of each run, from which any resample can be scored.

Most metrics are functions of sums: one matrix product gives the sums of R resamples. Ranks change
with the resample. R resamples, U resampling units (examples or documents), N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from finetune.evaluation import metrics
from finetune.evaluation.custom_metrics import CustomMetric, probabilities_of_labels
from finetune.evaluation.kinds import Scored
from finetune.evaluation.kinds.label import rank_moments
from finetune.evaluation.metrics import Metric
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.types import UserError, abbreviated, did_you_mean


@dataclass(frozen=True)
class Counts:
    """The counts of a run for each example, from which any resample of them can be scored.

    The score of a resample is the ``value`` of the sum of its ``rows`` [N, ...]; ``ranks`` rows are
    pairs of numbers [N, 2]. ``unit`` [N] is the unit of each example, where units hold several.
    ``subset`` [N] is the number of the subset of each example if the score is the mean over
    subsets.
    """

    rows: np.ndarray
    value: Callable[[np.ndarray], np.ndarray]
    ranks: bool = False
    unit: np.ndarray | None = None
    subset: np.ndarray | None = None
    function: Callable[[Sequence[Any], Sequence[Any]], float] | None = None
    """A custom metric: rows are gold and prediction [N, 2], and it is called for each resample."""

    @property
    def num_units(self) -> int:
        """Return the number of units."""
        return len(self.rows) if self.unit is None else int(self.unit.max()) + 1

    @property
    def is_rate(self) -> bool:
        """True if the score is the share of the units that are right."""
        single = self.unit is None and self.subset is None and self.rows.ndim == 2
        if self.value is not metrics.mean or not single:
            return False
        return bool((self.rows[:, 1] == 1).all() and np.isin(self.rows[:, 0], (0, 1)).all())

    def values(self, weights: np.ndarray) -> np.ndarray:
        """Return the scores where unit u occurs ``weights[r, u]`` times: [R, U] -> [R]."""
        if self.unit is not None:
            weights = weights[:, self.unit]
        if self.subset is not None:
            members = [self.subset == number for number in np.unique(self.subset)]
            scores = [
                Counts(self.rows[m], self.value, self.ranks).values(weights[:, m]) for m in members
            ]
            return np.asarray(np.mean(scores, axis=0))
        if self.function is not None:
            drawn = (
                self.rows[np.repeat(np.arange(len(self.rows)), row)]
                for row in weights.astype(np.int64)
            )
            return np.array([self.function(*rows.T.tolist()) for rows in drawn])
        if not self.ranks:
            sums = weights @ self.rows.reshape(len(self.rows), -1)
            return self.value(sums.reshape(len(weights), *self.rows.shape[1:]))
        number = weights.sum(axis=1)
        center = (number[:, None] + 1) / 2  # the mean of all ranks, exactly
        x, y = (metrics.weighted_ranks(side, weights) - center for side in self.rows.T)
        xy, xx, yy = (
            np.einsum("rn,rn,rn->r", weights, *sides) for sides in ((x, y), (x, x), (y, y))
        )
        zero = np.zeros_like(number)
        return self.value(np.stack([xy, zero, zero, xx, yy, number], axis=-1))

    def concatenate(self, other: Counts) -> Counts:
        """Return these units followed by the units of another run."""
        unit = None
        if self.unit is not None and other.unit is not None:
            unit = np.concatenate([self.unit, other.unit + self.num_units])
        subset = None
        if self.subset is not None and other.subset is not None:
            subset = np.concatenate([self.subset, other.subset])
        rows = np.concatenate([self.rows, other.rows])
        return replace(self, rows=rows, unit=unit, subset=subset)


def custom_counts(metric: CustomMetric, runs: Sequence[Scored]) -> list[Counts]:
    """Return the counts of a custom metric for each run."""
    found = []
    for run in runs:
        predicted: Sequence[Any] = run.predicted
        if metric.probabilities:
            predicted = probabilities_of_labels(run.kind.probabilities(run.predictions))
        rows = np.empty((len(run.gold), 2), dtype=object)
        for index, sides in enumerate(zip(run.gold, predicted, strict=True)):
            rows[index, 0], rows[index, 1] = sides
        found.append(Counts(rows, np.asarray, function=metric))
    return found


def count_metric(
    metric: str, runs: Sequence[Scored], vocabulary: TrainingVocabulary | None = None
) -> list[Counts]:
    """Return the counts of a metric for each run; the runs predict the same examples.

    The metric is one of the kind; the precision, recall or F1 of one label, tag or type, such as
    ``f1:NAME`` and ``span_f1_strict:TYPE``; or the score of a subgroup in a table of
    ``finetune report``. A UserError names the metrics of the predictions.
    """
    runs = comparable(runs)
    kind = runs[0].kind
    known = {name: each for name, each in kind.metrics.items() if all(map(each.applies, runs))}
    known |= metrics.metrics_of_names(runs[0])
    of_subgroups: dict[str, Metric] = {}
    for run in runs if metric not in known else ():
        of_subgroups |= kind.subgroup_metrics(run, vocabulary)
    if found := (known | of_subgroups).get(metric):
        if found.counts is rank_moments:
            return [Counts(np.array([r.gold, r.predicted]).T, found.value, True) for r in runs]
        rows = [found.counts(run) for run in runs]
        if not of_subgroups or any(each.any() for each in rows):  # the subgroup occurs
            return [Counts(each.astype(np.float64), found.value) for each in rows]
    legal = [*known, *of_subgroups]
    near = did_you_mean(metric, [kind.default] if kind.default.startswith(metric) else legal)
    if vocabulary is None and kind.tells_seen and ("in_training" in metric or "unseen" in metric):
        near = " The training data are not known: name them with --train FILE."
    raise UserError(
        f"--metric {metric} does not fit these predictions: choose {abbreviated(legal, 16)}.{near}"
    )


def comparable(runs: Sequence[Scored]) -> list[Scored]:
    """Return the runs with the names and numbers of all, so that the columns of counts agree."""
    names = tuple(sorted({name for run in runs for name in run.names}))
    scale = [number for run in runs for number in run.scale]
    return [replace(run, names=names, scale=scale) for run in runs]
