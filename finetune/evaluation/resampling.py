"""Counts of a metric for each example of each run, from which any resample can be scored.

Most metrics are functions of sums: one matrix product gives the sums of R resamples. Ranks change
with the resample. R resamples, U resampling units (examples or documents), N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from finetune.data.spans import inner_spans
from finetune.evaluation import metrics, subgroups
from finetune.evaluation.alignment import AlignedPredictions, with_probabilities
from finetune.evaluation.custom_metrics import CustomMetric, probabilities_of_labels
from finetune.evaluation.metrics import METRICS, Metric
from finetune.evaluation.pairs import Pairs, sets_of
from finetune.evaluation.subgroups import TrainingVocabulary
from finetune.types import TokenExample, UserError, abbreviated, did_you_mean


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
        """Whether the score is the share of the units that are right."""
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


def default_metric(run: AlignedPredictions) -> str:
    """Return the metric that selects models of this kind in training."""
    return metrics.DEFAULT_METRICS[comparable([run])[0].kind]


def custom_counts(metric: CustomMetric, runs: Sequence[AlignedPredictions]) -> list[Counts]:
    """Return the counts of a custom metric for each run."""
    found = []
    for run in runs:
        predicted: Sequence[Any] = run.predicted
        if metric.probabilities:
            predicted = probabilities_of_labels([row.get("scores") for row in run.rows])
        rows = np.empty((len(run.gold), 2), dtype=object)
        for index, sides in enumerate(zip(run.gold, predicted, strict=True)):
            rows[index, 0], rows[index, 1] = sides
        found.append(Counts(rows, np.asarray, function=metric))
    return found


def count_metric(
    metric: str, runs: Sequence[AlignedPredictions], train: TrainingVocabulary | None = None
) -> list[Counts]:
    """Return the counts of a metric for each run; the runs predict the same examples.

    The metric is a name in ``metrics.METRICS``; the precision, recall or F1 of one label, tag or
    type, such as ``f1:NAME`` and ``span_f1_strict:TYPE``; or the score of a subgroup in a table of
    ``finetune report`` (``subgroup_metrics``). A UserError names the metrics of the predictions.
    """
    pairs = comparable(runs)
    table = METRICS[pairs[0].kind]
    known = {name: each for name, each in table.items() if all(map(each.applies, pairs))}
    known |= metrics.metrics_of_names(pairs[0])
    of_subgroups = {} if metric in known else subgroup_metrics(runs, train)
    if found := (known | of_subgroups).get(metric):
        ranks = found.counts is metrics.rank_moments
        rows = [np.array([p.gold, p.predicted]).T if ranks else found.counts(p) for p in pairs]
        if not of_subgroups or any(each.any() for each in rows):  # the subgroup occurs
            return [Counts(each.astype(np.float64), found.value, ranks) for each in rows]
    legal = [*known, *of_subgroups]
    usual = default_metric(runs[0])
    near = did_you_mean(metric, [usual] if usual.startswith(metric) else legal)
    if train is None and runs[0].kind in ("tags", "spans"):
        if "in_training" in metric or "unseen" in metric:
            near = " The training data are not known: name them with --train FILE."
    raise UserError(
        f"--metric {metric} does not fit these predictions: choose {abbreviated(legal, 16)}.{near}"
    )


def comparable(runs: Sequence[AlignedPredictions]) -> list[Pairs]:
    """Return the runs for ``metrics``, so that the columns of their counts agree."""
    pairs = [run.pairs() for run in runs]
    names = sorted({name for each in pairs for name in each.names})
    predicted = [number for each in pairs for number in each.all_predicted]
    return [
        replace(
            each, names=tuple(names), all_predicted=predicted, confidences=with_probabilities(run)
        )
        for each, run in zip(pairs, runs, strict=True)
    ]


def subgroup_metrics(
    runs: Sequence[AlignedPredictions], train: TrainingVocabulary | None = None
) -> dict[str, Metric]:
    """Return the metrics of each subgroup in the tables of ``finetune report``.

    Their names join the score, the table and the subgroup, with ``_`` for spaces:
    ``span_f1_length:3``, ``span_f1_in_training:unseen``, ``accuracy_position:1``.
    """
    pairs, examples = comparable(runs), runs[0].examples
    kind = pairs[0].kind
    words = [example.words for example in examples if isinstance(example, TokenExample)]
    if kind == "choice" and examples:
        of_choices = subgroups.choice_groupings(examples)
        return _named("accuracy", of_choices, _counts_of_words, metrics.mean)
    if kind == "label" and examples:
        by_length = subgroups.text_groupings(examples)
        return _named("accuracy", by_length, _counts_of_words, metrics.mean)
    if kind == "senses":
        by_pos = subgroups.target_groupings(examples)
        return _named("f1", by_pos, _counts_of_senses, metrics.f1)
    if kind == "plain tags" and words:
        of_words = subgroups.word_groupings(words, train.word_tags if train else None)
        found = _named("accuracy", of_words, _counts_of_words, metrics.mean)
        if train is not None:
            found["unseen_word_accuracy"] = found[f"accuracy_in_training:{subgroups.SEEN_WORDS[2]}"]
        return found
    if kind in ("tags", "spans") and words:
        groupings = subgroups.span_groupings(words, train.entity_types if train else None)
        sides = (spans for each in pairs for both in sets_of(each) for spans in both)
        if not any(map(inner_spans, sides)):
            del groupings["depth"]
        return _named("span_f1", groupings, _counts_of_spans, metrics.subgroup_f1)
    return {}


def _named(
    score: str,
    groupings: Mapping[str, tuple[Sequence[Sequence[str]] | subgroups.SpanGrouping, Sequence[str]]],
    counts: Callable[..., np.ndarray],
    value: Callable[[np.ndarray], np.ndarray],
) -> dict[str, Metric]:
    return {
        f"{score}_{name}:{group}".replace(" ", "_"): Metric(partial(counts, groups, group), value)
        for name, (groups, order) in groupings.items()
        for group in order
    }


def _counts_of_spans(groups: subgroups.SpanGrouping, group: str, pairs: Pairs) -> np.ndarray:
    """Return the counts of ``metrics.subgroup_f1`` of one subgroup [N, 4]."""
    counts = [subgroups.span_counts(i, *both, groups) for i, both in enumerate(sets_of(pairs))]
    return np.array([each.get(group, [0] * 4) for each in counts])


def _counts_of_senses(groups: Sequence[str], group: str, pairs: Pairs) -> np.ndarray:
    """Return the counts of ``metrics.f1`` of the targets of one subgroup [N, 3]."""
    inside = np.array([name == group for name in groups])
    return np.where(inside[:, None], metrics.sense_counts(pairs), 0)


def _counts_of_words(groups: Sequence[Sequence[str]], group: str, pairs: Pairs) -> np.ndarray:
    """Return the correct and all words, or texts, of one subgroup [N, 2]."""
    rows = []
    for names, gold, predicted in zip(groups, pairs.gold, pairs.predicted, strict=True):
        both = (
            [(gold, predicted)]
            if pairs.kind in ("label", "choice")
            else zip(gold, predicted, strict=True)
        )
        equal = [g == p for name, (g, p) in zip(names, both, strict=True) if name == group]
        rows.append((sum(equal), len(equal)))
    return np.array(rows)
