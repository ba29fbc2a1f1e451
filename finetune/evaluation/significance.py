"""Is the difference between two systems more than chance? Two tests, and intervals, by resampling.

Systems are compared on the same units (sentences, texts or documents): Jurafsky & Martin, *Speech
and Language Processing*, section "Statistical significance testing"; Dror et al. 2018, "The
hitchhiker's guide to testing statistical significance in NLP". Scores such as F1 are no means over
units, so each resample computes the score of the whole anew, from sums of what each unit counts.

The paired bootstrap (Efron & Tibshirani 1993; Koehn 2004) draws units with replacement, the same
for both systems: it stands for another test set of the same kind. The approximate randomization
test (Noreen 1989; Yeh 2000) swaps the answers of the two systems on each unit with probability one
half. Both p-values are two-sided and count the observed outcome as one of the resamples, so that
none is 0 (Davison & Hinkley 1997; Phipson & Smyth 2010). Numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from finetune.types import UserError

ALPHA = 0.05
"""Significance level of the tests; intervals hold 1 - ALPHA of the resamples."""

_CELLS = 1 << 20
"""Weights at a time, 8 MB of them: they stay in the cache of the processor."""


class Counted(Protocol):
    """What a run counts on each of U units, enough to score any resample of them."""

    num_units: int

    def values(self, weights: np.ndarray) -> np.ndarray:
        """The score where unit u occurs ``weights[r, u]`` times: [R, U] -> [R]."""

    def concatenate(self, other: Self) -> Self:
        """2 U units: mine, then those of the other."""


class Estimate(NamedTuple):
    """A score, or a difference of scores, with the ends of its interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """What two systems differ by.

    ``difference`` is that of the first minus the second. ``runs`` are the scores of each system's
    runs; ``deviation`` is the standard deviation between runs of one system that their different
    answers on these units do not explain, None where each system has one run.
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
    first: Sequence[Counted],
    second: Sequence[Counted],
    *,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems, each given by its runs (one or several seeds), on the same units.

    A system's score is the mean over its runs. The *bootstrap* asks: would the first system, if
    both were trained and tested again, have another expected score than the second? Units are
    drawn for all runs alike. To that comes the luck of training, the variance between runs (see
    ``_training_variance``), as a multivariate Student t; drawing runs with replacement instead
    would count the interaction of runs and units three times (Owen 2007, "The pigeonhole
    bootstrap") and take three seeds for all the seeds there are. Runs of both systems are taken to
    vary alike, so one run may stand against several. Simulated false positives at 0.05 are 0.03
    to 0.06 with three runs or more, and 0.10 with two each: too few to say how much they vary.
    p is the share of resamples whose difference is at least as far from the observed one as that
    is from 0 (Efron & Tibshirani 1993, section 16.4; Berg-Kirkpatrick et al. 2012). Intervals are
    percentiles.

    The *randomization* test asks: are these runs, as they are trained, equally good? Its null
    hypothesis is that on each unit it is arbitrary which system gave which answers; the answers of
    all runs of a system on a unit are swapped as one. It says nothing on other seeds. Runs pair up
    in order, those of the shorter list several times.

    Raises ValueError where the numbers of units differ or there is nothing to compare.
    """
    systems = [list(first), list(second)]
    sizes = {run.num_units for runs in systems for run in runs}
    if len(sizes) != 1 or not all(systems) or 0 in sizes or num_resamples < 1:
        raise UserError(
            f"cannot compare {len(first)} and {len(second)} runs on {sorted(sizes)} units with "
            f"{num_resamples} resamples: at least one of each, and the same units for all runs."
        )
    num_units = sizes.pop()
    observed = [observed_scores(runs) for runs in systems]
    for_units, for_luck, for_swaps = map(
        np.random.default_rng, np.random.SeedSequence(seed).spawn(3)
    )
    resampled = _bootstrapped(systems, num_resamples, for_units)
    variance, degrees = _training_variance(observed, resampled)
    lucks = _luck([len(runs) for runs in systems], variance, degrees, num_resamples, for_luck)
    means = [values.mean(axis=0) + luck for values, luck in zip(resampled, lucks, strict=True)]
    scores = [float(values.mean()) for values in observed]
    difference = scores[0] - scores[1]
    differences = means[0] - means[1]
    swapped = _randomized(systems, num_resamples, for_swaps)
    return Comparison(
        _estimate(scores[0], means[0]),
        _estimate(scores[1], means[1]),
        _estimate(difference, differences),
        _p_value(difference, differences - difference),
        _p_value(difference, swapped),
        (tuple(observed[0].tolist()), tuple(observed[1].tolist())),
        math.sqrt(variance) if degrees else None,
        num_units,
        num_resamples,
    )


def estimate(runs: Sequence[Counted], *, num_resamples: int = 10_000, seed: int = 0) -> Estimate:
    """The score of one system, the mean over its runs, with its interval.

    The bootstrap is that of ``compare``: units are drawn for all runs alike, and with several runs
    the luck of training is counted in. Raises ValueError where there is nothing to draw.
    """
    sizes = {run.num_units for run in runs}
    if len(sizes) != 1 or 0 in sizes or num_resamples < 1:
        raise UserError(f"no interval from {len(runs)} runs on {sorted(sizes)} units")
    observed = observed_scores(runs)
    for_units, for_luck = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(2))
    (resampled,) = _bootstrapped([runs], num_resamples, for_units)
    variance, degrees = _training_variance([observed], [resampled])
    (luck,) = _luck([len(runs)], variance, degrees, num_resamples, for_luck)
    return _estimate(float(observed.mean()), resampled.mean(axis=0) + luck)


def observed_scores(runs: Sequence[Counted]) -> np.ndarray:
    """Return the score of each run on all units [runs]."""
    return np.concatenate([run.values(np.ones((1, run.num_units))) for run in runs])


def _bootstrapped(
    systems: Sequence[Sequence[Counted]], num_resamples: int, random: np.random.Generator
) -> list[np.ndarray]:
    """The score of each run on each resample, by system [runs, R]."""
    num_units = systems[0][0].num_units

    def draw(number: int) -> list[np.ndarray]:
        drawn = random.integers(0, num_units, size=(number, num_units))
        drawn += num_units * np.arange(number)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=number * num_units)
        weights = counts.reshape(number, num_units).astype(np.float64)
        return [np.stack([run.values(weights) for run in runs]) for runs in systems]

    parts = list(_in_parts(draw, num_resamples, num_units))
    return [np.concatenate([part[side] for part in parts], axis=1) for side in range(len(systems))]


def _randomized(
    systems: Sequence[Sequence[Counted]], num_resamples: int, random: np.random.Generator
) -> np.ndarray:
    """The difference of mean scores after each round of swaps [R]."""
    num_units = systems[0][0].num_units
    sizes = [len(runs) for runs in systems]
    pairs = [
        systems[0][number % sizes[0]].concatenate(systems[1][number % sizes[1]])
        for number in range(math.lcm(*sizes))
    ]

    def draw(number: int) -> np.ndarray:
        swapped = random.integers(0, 2, size=(number, num_units)).astype(np.float64)
        ours, theirs = np.hstack([1 - swapped, swapped]), np.hstack([swapped, 1 - swapped])
        return sum(pair.values(ours) - pair.values(theirs) for pair in pairs) / len(pairs)

    return np.concatenate(list(_in_parts(draw, num_resamples, num_units)))


def _in_parts(draw: Callable[[int], Any], num_resamples: int, num_units: int) -> Iterator[Any]:
    at_once = max(1, _CELLS // num_units)
    for start in range(0, num_resamples, at_once):
        yield draw(min(at_once, num_resamples - start))


def _training_variance(
    observed: Sequence[np.ndarray], resampled: Sequence[np.ndarray]
) -> tuple[float, int]:
    """Variance of a run's true score about its system's, and its degrees of freedom.

    Observed scores of runs vary by that and by their different answers on these units. The second
    part is by how much resampling adds to the variance between runs; it is in the bootstrap over
    units already. Both systems are pooled.
    """
    degrees = sum(len(values) - 1 for values in observed)
    if not degrees:
        return 0.0, 0
    between, moved = (
        sum(((values - values.mean(axis=0)) ** 2).sum(axis=0) for values in side) / degrees
        for side in (observed, resampled)
    )
    variance = float(2 * between - np.mean(moved))
    rounding = 1e-24 * max(float(np.square(values).max()) for values in observed)
    return (variance if variance > rounding else 0.0), degrees


def _luck(
    num_runs: Sequence[int],
    variance: float,
    degrees: int,
    num_resamples: int,
    random: np.random.Generator,
) -> list[np.ndarray]:
    """What training again adds to each system's mean score, by system [R]."""
    if not variance:
        return [np.zeros(num_resamples) for _ in num_runs]
    scale = np.sqrt(variance * degrees / random.chisquare(degrees, num_resamples))
    return [scale * random.standard_normal(num_resamples) / math.sqrt(k) for k in num_runs]


def _estimate(value: float, resampled: np.ndarray) -> Estimate:
    low, high = np.quantile(resampled, [ALPHA / 2, 1 - ALPHA / 2])
    return Estimate(value, float(low), float(high))


def _p_value(observed: float, under_null: np.ndarray) -> float:
    """Share of outcomes at least as far from 0; equal ones may differ in their last digits."""
    as_far = np.abs(under_null) >= abs(observed) * (1 - 1e-9)
    return (1 + int(as_far.sum())) / (1 + len(under_null))
