"""Significance tests of the difference between two systems, and confidence intervals.

Systems are compared on the same resampling units (sentences, texts or documents): Jurafsky &
Martin, section "Statistical significance testing"; Dror et al. 2018, "The hitchhiker's guide to
testing statistical significance in NLP". Scores such as F1 are not means over units, so every
resample is scored as a whole.

The paired bootstrap (Efron & Tibshirani 1993; Koehn 2004) draws units with replacement, the same
for both systems. The approximate randomization test (Noreen 1989; Yeh 2000) swaps the predictions
of the two systems on each unit with probability one half. Both p-values are two-sided and count the
observed outcome as one of the resamples (Davison & Hinkley 1997; Phipson & Smyth 2010).

Most metrics are functions of sums of counts of each example: one matrix product gives the sums of R
resamples. Correlations and custom metrics take the weights of a resample.

Shapes: R resamples, U resampling units (examples or documents), N examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from finetune.evaluation import metrics
from finetune.evaluation.custom_metrics import CustomMetric
from finetune.evaluation.metrics import Metric
from finetune.evaluation.tables import Tables
from finetune.types import UserError, abbreviated, did_you_mean

ALPHA = 0.05
"""Significance level of the tests; intervals contain 1 - ALPHA of the resamples."""
Z = 1.959963984540054
"""The quantile 1 - ALPHA / 2 of the normal distribution."""
_FEWEST = 10
"""A rate with at least so many right and wrong units has the interval of the bootstrap."""
UNLIMITED = (-math.inf, math.inf)
"""The range of an unbounded metric."""


# --- Counts, from which any resample can be scored ------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """The counts of a run for each example, from which any resample of them can be scored.

    The score of a resample is the ``value`` of the sum of its ``rows`` [N, ...], or of ``weighted``
    rows and the weights of a resample. ``unit`` [N] is the unit of each example, where units hold
    several.
    """

    rows: np.ndarray
    value: Callable[..., np.ndarray]
    weighted: bool = False
    unit: np.ndarray | None = None

    @property
    def num_units(self) -> int:
        """The number of units."""
        return len(self.rows) if self.unit is None else int(self.unit.max()) + 1

    def values(self, weights: np.ndarray) -> np.ndarray:
        """Score resamples in which unit u occurs ``weights[r, u]`` times: [R, U] -> [R]."""
        if self.unit is not None:
            weights = weights[:, self.unit]
        if self.weighted:
            return self.value(self.rows, weights)
        sums = weights @ self.rows.reshape(len(self.rows), -1)
        return self.value(sums.reshape(len(weights), *self.rows.shape[1:]))

    def concatenate(self, other: Counts) -> Counts:
        """Append the units of another run to these."""
        unit = None
        if self.unit is not None and other.unit is not None:
            unit = np.concatenate([self.unit, other.unit + self.num_units])
        rows = np.concatenate([self.rows, other.rows])
        return replace(self, rows=rows, unit=unit)


def custom_counts(metric: CustomMetric, runs: Sequence[Tables]) -> list[Counts]:
    """Collect gold and predictions of each run for a custom metric."""

    def value(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
        drawn = (rows[np.repeat(np.arange(len(rows)), row)] for row in weights.astype(np.int64))
        return np.array([metric(*some.T.tolist()) for some in drawn])

    sides = [[np.fromiter(side, object) for side in metric.sides(run)] for run in runs]
    return [Counts(np.column_stack(both), value, weighted=True) for both in sides]


def count_metric(name: str, runs: Sequence[Tables]) -> list[Counts]:
    """Compute the counts of a metric for each run; the runs predict the same examples."""
    names = tuple(sorted({name for run in runs for name in run.names}))
    runs = [replace(run, names=names) for run in runs]  # columns of counts agree
    metric = find_metric(name, runs)
    rows = (metric.counts(run).astype(np.float64) for run in runs)
    return [Counts(counts, metric.value, metric.weighted) for counts in rows]


def find_metric(metric: str, runs: Sequence[Tables]) -> Metric:
    """Find a metric by its name; a UserError lists the metrics of the predictions.

    The metric is one of the type; the precision, recall or F1 of one label, tag or type, such as
    ``f1:NAME`` and ``span_f1_strict:TYPE``; or the score of a subgroup in a table of
    ``finetune report``.
    """
    type = runs[0].type
    legal = {
        name: m
        for name, m in {**type.metrics, **runs[0].further_metrics}.items()
        if m.applies is None or all(map(m.applies, runs))
    }
    legal |= {
        f"{form.format(rate)}:{name}": Metric(partial(counts, name=name), value)
        for form, counts in (type.classes.forms if type.classes else {}).items()
        for rate, value in metrics.RATES.items()
        for name in runs[0].names
    }
    if metric in legal:
        return legal[metric]
    for run in runs:
        legal |= subgroup_metrics(run)
    chosen = legal.get(metric)
    if chosen is not None and any(chosen.counts(run).any() for run in runs):  # the subgroup occurs
        return chosen
    near = did_you_mean(metric, [type.default] if type.default.startswith(metric) else legal)
    if runs[0].vocabulary is None and type.in_words and "in_training" in metric:
        near = " The training data are not known: name them with --train FILE."
    raise UserError(
        f"--metric {metric} does not fit these predictions: choose {abbreviated(legal, 16)}.{near}"
    )


def subgroup_metrics(tables: Tables) -> dict[str, Metric]:
    """Make a metric of each row of the tables of subgroups.

    Their names join the score, the table and the subgroup, with ``_`` for spaces:
    ``span_f1_length:3``, ``span_f1_in_training:unseen``.
    """

    def counts(tables: Tables, name: str, group: str) -> np.ndarray:
        grouping = tables.groupings()[name]
        sums = np.zeros((len(tables), grouping.counts.shape[1]))
        rows = grouping.group == grouping.order.index(group)
        np.add.at(sums, grouping.example[rows], grouping.counts[rows])
        return sums

    return {
        f"{grouping.prefix}{grouping.rate}_{name}:{group}".replace(" ", "_"): Metric(
            partial(counts, name=name, group=group), grouping.cells[grouping.rate]
        )
        for name, grouping in tables.groupings().items()
        if grouping.shown
        for group in grouping.order
    }


# --- Intervals and tests --------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A score, or a difference of scores, with the ends of its confidence interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """The difference between two systems, whose score is the mean over their ``runs``.

    ``deviation`` is the standard deviation across runs of one system, beyond the effect of their
    different predictions on these units; None where each system has one run.
    """

    first: Estimate
    second: Estimate
    difference: Estimate
    p_bootstrap: float
    p_randomization: float
    runs: tuple[tuple[float, ...], tuple[float, ...]]
    deviation: float | None
    num_units: int
    num_resamples: int


def compare(
    first: Sequence[Counts],
    second: Sequence[Counts],
    *,
    num_resamples: int = 10_000,
    seed: int = 0,
    limits: tuple[float, float] = UNLIMITED,
) -> Comparison:
    """Compare two systems, each given by the counts of its runs, on the same units.

    The null hypothesis of the *bootstrap* is that both systems, trained and tested again, have the
    same expected score. All runs share the drawn units. The variance across runs is added as a
    multivariate Student t: drawing runs with replacement would count the interaction of runs and
    units three times (Owen 2007, "The pigeonhole bootstrap"). For the difference, both systems are
    assumed to have the same variance. With two runs each the test rejects about twice as often as
    it should. p is the fraction of resamples whose difference is at least as far from the observed
    difference as the observed difference is from 0 (Efron & Tibshirani 1993, section 16.4;
    Berg-Kirkpatrick et al. 2012). Intervals are percentiles, cut at ``limits`` and their
    difference; ``estimate`` gives each system's.

    The null hypothesis of the *randomization* test is that these runs, as they are trained, are
    equally good. The predictions of all runs of a system on a unit are swapped together. Runs pair
    up in order; the shorter list is repeated.
    """
    systems = [first, second]
    seeds = np.random.SeedSequence(seed).spawn(3)
    observed = [observed_scores(runs) for runs in systems]
    resampled = _scores_of_resamples(systems, num_resamples, np.random.default_rng(seeds[0]))
    first_estimate, second_estimate = (
        _estimate(runs, scores, values, seeds[1], limits)
        for runs, scores, values in zip(systems, observed, resampled, strict=True)
    )
    means, deviation = _trained_again(observed, resampled, seeds[1])
    value, differences = float(observed[0].mean()) - float(observed[1].mean()), means[0] - means[1]
    swapped = _randomized(systems, num_resamples, np.random.default_rng(seeds[2]))
    return Comparison(
        first_estimate,
        second_estimate,
        _interval(value, differences, (limits[0] - limits[1], limits[1] - limits[0])),
        _p_value(value, differences - value),
        _p_value(value, swapped),
        (tuple(observed[0].tolist()), tuple(observed[1].tolist())),
        deviation,
        first[0].num_units,
        num_resamples,
    )


def estimate(
    runs: Sequence[Counts],
    *,
    num_resamples: int = 10_000,
    seed: int = 0,
    limits: tuple[float, float] = UNLIMITED,
) -> Estimate:
    """Compute the score of one system, the mean over its runs, with its interval.

    The interval is of the expected score of the system if it is trained and tested again: the
    bootstrap over units, plus a Student t of the variance across its own runs (``compare``). It is
    cut at ``limits``, the least and the largest value of the metric.
    """
    seeds = np.random.SeedSequence(seed).spawn(2)
    resampled = _scores_of_resamples([runs], num_resamples, np.random.default_rng(seeds[0]))
    return _estimate(runs, observed_scores(runs), resampled[0], seeds[1], limits)


def fold_test(
    scores: Sequence[float], ratio: float, limits: tuple[float, float] = UNLIMITED
) -> tuple[Estimate, float]:
    """Compute the mean of scores on folds with its interval, by the corrected resampled t.

    The interval is cut at ``limits``. For differences of two systems on the same folds, the second
    value is the p-value.

    Models of different folds share training examples, so their scores are not independent and the
    usual interval is too narrow. Nadeau & Bengio (2003, "Inference for the Generalization Error")
    estimate the variance of the mean of J scores by (1/J + ratio) times their variance; Bouckaert &
    Frank (2004) use it for repeated k-fold, too.

    Args:
        scores: The scores of the J >= 2 folds.
        ratio: Number of test examples over number of training examples of a fold.
    """
    from scipy.stats import t  # imported late: it costs half a second

    values = np.asarray(scores, dtype=float)
    number, mean = len(values), float(values.mean())
    error = math.sqrt((1 / number + ratio) * values.var(ddof=1))
    half = float(t.ppf(1 - ALPHA / 2, number - 1)) * error
    statistic = abs(mean) / error if error else math.inf if mean else 0.0
    interval = Estimate(mean, max(mean - half, limits[0]), min(mean + half, limits[1]))
    return interval, float(2 * t.sf(statistic, number - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for the number of tests.

    The step-down procedure of Holm (1979, "A simple sequentially rejective multiple test
    procedure") bounds the chance of one false rejection among all tests.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def observed_scores(runs: Sequence[Counts]) -> np.ndarray:
    """Score each run on all units [runs]."""
    return np.concatenate([run.values(np.ones((1, run.num_units))) for run in runs])


def _trained_again(
    observed: Sequence[np.ndarray], resampled: Sequence[np.ndarray], seed: np.random.SeedSequence
) -> tuple[list[np.ndarray], float | None]:
    # Adds the variance across the runs of systems, pooled over them, to the means of resamples, and
    # returns these [R] by system, and the deviation. The scores of the runs of each system are
    # observed [runs] and resampled [runs, R].
    means = [values.mean(axis=0) for values in resampled]
    degrees = sum(len(values) - 1 for values in observed)
    if not degrees:
        return means, None
    between, resampled_between = (
        sum(((values - values.mean(axis=0)) ** 2).sum(axis=0) for values in side) / degrees
        for side in (observed, resampled)
    )
    # without the part of their different predictions on these units, which the bootstrap includes
    variance = float(2 * between - np.mean(resampled_between))
    if variance <= 1e-24 * max(float(np.square(values).max()) for values in observed):  # rounding
        return means, 0.0
    random, number = np.random.default_rng(seed), len(means[0])
    scale = np.sqrt(variance * degrees / random.chisquare(degrees, number))
    for mean, scores in zip(means, observed, strict=True):
        mean += scale * random.standard_normal(number) / math.sqrt(len(scores))
    return means, math.sqrt(variance)


def _scores_of_resamples(
    systems: Sequence[Sequence[Counts]], num_resamples: int, random: np.random.Generator
) -> list[np.ndarray]:
    num_units = systems[0][0].num_units

    def draw(number: int) -> list[np.ndarray]:
        drawn = random.integers(0, num_units, size=(number, num_units))
        drawn += num_units * np.arange(number)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=number * num_units)
        weights = counts.reshape(number, num_units).astype(np.float64)
        return [np.stack([run.values(weights) for run in runs]) for runs in systems]

    chunks = list(_in_chunks(draw, num_resamples, num_units))
    return [np.concatenate(values, axis=1) for values in zip(*chunks, strict=True)]


def _randomized(
    systems: Sequence[Sequence[Counts]], num_resamples: int, random: np.random.Generator
) -> np.ndarray:
    num_units = systems[0][0].num_units
    sizes = [len(runs) for runs in systems]
    pairs = [
        systems[0][number % sizes[0]].concatenate(systems[1][number % sizes[1]])
        for number in range(math.lcm(*sizes))
    ]

    def draw(number: int) -> np.ndarray:
        swapped = random.integers(0, 2, size=(number, num_units)).astype(np.float64)
        left, right = np.hstack([1 - swapped, swapped]), np.hstack([swapped, 1 - swapped])
        differences = [pair.values(left) - pair.values(right) for pair in pairs]
        return np.asarray(sum(differences) / len(pairs))

    return np.concatenate(list(_in_chunks(draw, num_resamples, num_units)))


def _in_chunks(draw: Callable[[int], Any], num_resamples: int, num_units: int) -> Iterator[Any]:
    size = max(1, (1 << 20) // num_units)  # 8 MB of weights stay in the cache of the processor
    for start in range(0, num_resamples, size):
        yield draw(min(size, num_resamples - start))


def _estimate(
    runs: Sequence[Counts],
    observed: np.ndarray,
    resampled: np.ndarray,
    seed: np.random.SeedSequence,
    limits: tuple[float, float],
) -> Estimate:
    # The bootstrap cannot see errors that the units do not contain: without any, all resamples are
    # equal. A rate of fewer than ``FEWEST`` right or wrong units, and any score between 0 and 1
    # whose resamples are all equal, also covers the interval of Wilson (1927).
    (means,), _ = _trained_again([observed], [resampled], seed)
    value, low, high = _interval(float(observed.mean()), means)
    units = runs[0].num_units
    is_rate = all(  # the share of units that are right
        (run.unit is None and run.value is metrics.mean)
        and (run.rows[:, 1] == 1).all()
        and np.isin(run.rows[:, 0], (0, 1)).all()
        for run in runs
    )
    is_rare = is_rate and min(value, 1 - value) * units < _FEWEST
    if limits == (0.0, 1.0) and (is_rare or low == high):
        squared = Z**2 / units
        middle = (value + squared / 2) / (1 + squared)
        half = math.sqrt(squared * (value * (1 - value) + squared / 4)) / (1 + squared)
        low, high = min(low, middle - half), max(high, middle + half)
    return Estimate(value, max(low, limits[0]), min(high, limits[1]))


def _interval(
    value: float, resampled: np.ndarray, limits: tuple[float, float] = UNLIMITED
) -> Estimate:
    low, high = np.quantile(resampled, [ALPHA / 2, 1 - ALPHA / 2])
    return Estimate(value, max(float(low), limits[0]), min(float(high), limits[1]))


def _p_value(observed: float, under_null: np.ndarray) -> float:
    as_far = np.abs(under_null) >= abs(observed) * (1 - 1e-9)
    return (1 + int(as_far.sum())) / (1 + len(under_null))
