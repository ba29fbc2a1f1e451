"""Significance tests against scipy and against the truth."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from scipy import stats

from finetune.evaluation import significance
from finetune.evaluation.metrics import f1, mean
from finetune.evaluation.significance import Comparison, Counts, compare, holm

GENERATOR = "rng" if "rng" in inspect.signature(stats.bootstrap).parameters else "random_state"
"""What scipy calls its source of random numbers; before 1.15 the second."""

# --- against scipy ---------------------------------------------------------------------------


def correct(rng: np.random.Generator, size: int, chance: float) -> Counts:
    right = (rng.random(size) < chance).astype(float)
    return Counts(np.column_stack([right, np.ones(size)]), mean)


def spans(rng: np.random.Generator, gold: np.ndarray, chance: np.ndarray | float) -> Counts:
    """Right, answered and gold spans of each sentence, each gold span found with a chance."""
    right = rng.binomial(gold, chance)
    return Counts(np.column_stack([right, right + rng.binomial(2, 0.1, len(gold)), gold]) * 1.0, f1)


def permutation_test(first: Counts, second: Counts, resamples: float) -> float:
    rows = np.concatenate([first.rows, second.rows])
    size = first.num_units

    def difference(left: np.ndarray, right: np.ndarray, axis: int) -> np.ndarray:
        sums = (
            rows[side.astype(int)].sum(axis=axis - 1 if axis < 0 else axis)
            for side in (left, right)
        )
        return np.subtract(*map(first.value, sums))

    found = stats.permutation_test(
        (np.arange(size), np.arange(size, 2 * size)),
        difference,
        permutation_type="samples",
        n_resamples=resamples,
        vectorized=True,
        batch=500,
        **{GENERATOR: np.random.default_rng(0)},
    )
    return float(found.pvalue)


def sampling_error(chance: float, resamples: float) -> float:
    """Four standard deviations of a share, and the one outcome that is counted as observed."""
    return 4 * math.sqrt(chance * (1 - chance) / resamples) + 2 / resamples


@pytest.mark.parametrize("chances", [(0.75, 0.7), (0.8, 0.66), (0.7, 0.7)])
@pytest.mark.parametrize("metric", ["accuracy", "span_f1"])
def test_randomization_is_scipys_permutation_test(metric: str, chances: tuple[float, float]):
    rng = np.random.default_rng(3)
    if metric == "accuracy":
        first, second = (correct(rng, 150, chance) for chance in chances)
    else:
        gold = rng.poisson(1.5, 150)
        first, second = (spans(rng, gold, chance) for chance in chances)
    expected = permutation_test(first, second, 4000)
    found = compare([first], [second], num_resamples=8000).p_randomization
    assert found == pytest.approx(expected, abs=1.3 * sampling_error(max(expected, 0.01), 4000))


def test_randomization_is_scipys_exact_test():
    """All 4,096 ways to swap 12 sentences."""
    rng = np.random.default_rng(0)
    gold = rng.poisson(2, 12)
    first, second = spans(rng, gold, 0.9), spans(rng, gold, 0.6)
    expected = permutation_test(first, second, np.inf)
    assert 0.01 < expected < 0.5
    found = compare([first], [second], num_resamples=20_000).p_randomization
    assert found == pytest.approx(expected, abs=sampling_error(expected, 20_000))


def test_intervals_are_those_of_scipys_bootstrap():
    rng = np.random.default_rng(1)
    first, second = correct(rng, 200, 0.8), correct(rng, 200, 0.7)
    found = compare([first], [second], num_resamples=20_000)
    values = [run.rows[:, 0] for run in (first, second)]
    for estimate, sample in zip(found[:3], (*values, values[0] - values[1]), strict=True):
        drawn = stats.bootstrap(
            (sample,),
            np.mean,
            n_resamples=20_000,
            method="percentile",
            **{GENERATOR: np.random.default_rng(2)},
        )
        expected = drawn.confidence_interval
        assert estimate.value == pytest.approx(sample.mean())
        assert estimate[1:] == pytest.approx((expected.low, expected.high), abs=0.0051)  # a step


def test_bootstrap_p_of_a_mean_is_that_of_the_normal_distribution():
    rng = np.random.default_rng(5)
    first, second = correct(rng, 2000, 0.72), correct(rng, 2000, 0.7)
    difference = first.rows[:, 0] - second.rows[:, 0]
    z = difference.mean() / (difference.std() / math.sqrt(2000))
    found = compare([first], [second], num_resamples=5000)
    assert found.p_bootstrap == pytest.approx(2 * stats.norm.sf(abs(z)), abs=0.03)


# --- what holds for any two systems ----------------------------------------------------------


def two(size: int = 80, runs: tuple[int, int] = (1, 1)) -> tuple[list[Counts], list[Counts]]:
    rng = np.random.default_rng(7)
    return tuple(
        [correct(rng, size, 0.8 - 0.08 * side) for _ in range(number)]
        for side, number in enumerate(runs)
    )


def test_the_same_system():
    (first,), _ = two()
    found = compare([first], [first], num_resamples=300)
    assert (found.p_bootstrap, found.p_randomization) == (1.0, 1.0)
    assert tuple(found.difference) == (0.0, 0.0, 0.0) and found.deviation is None


def test_no_p_is_zero():
    ones, zeros = (Counts(np.column_stack([np.full(90, x), np.ones(90)]), mean) for x in (1.0, 0.0))
    found = compare([ones], [zeros], num_resamples=99)
    assert (found.p_bootstrap, found.p_randomization) == (0.01, 0.01)
    assert tuple(found.difference) == (1.0, 1.0, 1.0)


def test_order_and_seed():
    first, second = two()
    found, again = (compare(first, second, num_resamples=500) for _ in range(2))
    turned = compare(second, first, num_resamples=500)
    assert found == again != compare(first, second, num_resamples=500, seed=1)
    assert found.difference.value == -turned.difference.value
    p_values = found.p_bootstrap, found.p_randomization
    assert p_values == (turned.p_bootstrap, turned.p_randomization)


def test_copies_of_a_run_are_one_run():
    first, second = two()
    found, copied = (compare(first * k, second * k, num_resamples=500) for k in (1, 3))
    assert copied.deviation == 0.0
    assert copied[3:5] == found[3:5] and copied.runs[0] == found.runs[0] * 3
    for estimate, its_copy in zip(found[:3], copied[:3], strict=True):
        assert its_copy == pytest.approx(estimate)


@pytest.mark.parametrize("runs", [(3, 3), (1, 4), (2, 3)])
def test_runs_of_unequal_number(runs: tuple[int, int]):
    first, second = two(runs=runs)
    found = compare(first, second, num_resamples=300)
    means = [np.mean([run.rows[:, 0].mean() for run in system]) for system in (first, second)]
    assert found.difference.value == pytest.approx(means[0] - means[1])
    assert tuple(map(len, found.runs)) == runs and found.deviation is not None


def test_variance_between_runs_is_found():
    """Runs whose true accuracies differ by 0.05, on sentences that add 0.01 of their own."""
    rng = np.random.default_rng(0)
    first, second = (
        [correct(rng, 2000, 0.7 + rng.normal(0, 0.05)) for _ in range(30)] for _ in range(2)
    )
    found = compare(first, second, num_resamples=200)
    assert found.deviation == pytest.approx(0.05, rel=0.25)
    width = found.difference.high - found.difference.low
    assert width == pytest.approx(2 * 1.96 * 0.05 * math.sqrt(2 / 30), rel=0.35)


# --- the tests tested: how often they find what is not there ----------------------------------


def simulated(
    rng: np.random.Generator, runs: tuple[int, int], spread: float, better: float = 0.0
) -> Comparison:
    """Two recipes on 200 sentences of unlike difficulty; runs differ by ``spread`` in log odds."""
    gold, ease = rng.poisson(1.5, 200), rng.normal(1, 1.5, 200)
    systems = [
        [
            spans(rng, gold, 1 / (1 + np.exp(-ease - rng.normal(side * better, spread))))
            for _ in range(number)
        ]
        for side, number in enumerate(runs)
    ]
    return compare(*systems, num_resamples=400, seed=int(rng.integers(2**31)))


def false_positives(number: int, runs: tuple[int, int], spread: float) -> tuple[float, float]:
    rng = np.random.default_rng(11)
    found = [simulated(rng, runs, spread) for _ in range(number)]
    return tuple(float(np.mean([each[which] < 0.05 for each in found])) for which in (3, 4))


@pytest.mark.parametrize("number", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_false_positives(number: int):
    for rate in false_positives(number, (1, 1), 0.0):
        assert abs(rate - 0.05) <= 3.5 * math.sqrt(0.05 * 0.95 / number)


def test_power():
    rng = np.random.default_rng(12)
    found = [simulated(rng, (1, 1), 0.0, better=-0.8) for _ in range(40)]
    assert (
        np.mean([each.p_bootstrap < 0.05 and each.p_randomization < 0.05 for each in found]) > 0.8
    )


@pytest.mark.slow
@pytest.mark.parametrize("runs", [(3, 3), (1, 5)])
@pytest.mark.parametrize("spread", [0.0, 0.15, 0.6])
def test_false_positives_over_seeds(runs: tuple[int, int], spread: float):
    """The bootstrap holds its level whatever the share of training in the variance of scores."""
    bootstrap, randomization = false_positives(1000, runs, spread)
    assert 0.015 <= bootstrap <= 0.075
    if spread == 0.0:
        assert abs(randomization - 0.05) <= 3 * math.sqrt(0.05 * 0.95 / 1000)


def coverage(number: int, num_runs: int, spread: float) -> float:
    """How often the interval of an accuracy holds the accuracy of other runs on other texts."""
    rng = np.random.default_rng(13)

    def chances(size: int, runs: int) -> np.ndarray:
        ease, skill = rng.normal(1, 1.5, size), rng.normal(0, spread, runs)
        return 1 / (1 + np.exp(-ease[:, None] - skill))

    truth, found = float(chances(20_000, 200).mean()), 0
    for _ in range(number):
        right = (rng.random((200, num_runs)) < chances(200, num_runs)).astype(float)
        runs = [Counts(np.column_stack([each, np.ones(200)]), mean) for each in right.T]
        interval = significance.estimate(runs, num_resamples=400, limits=(0.0, 1.0))
        assert 0.0 <= interval.low <= interval.value <= interval.high <= 1.0
        found += interval.low <= truth <= interval.high
    return found / number


LEAST_COVERAGE = {1: 0.92, 2: 0.85, 3: 0.92, 5: 0.92}
"""By number of runs: the variance of two runs is one number, which is often too small."""


@pytest.mark.parametrize(("num_runs", "spread"), [(1, 0.0), (2, 0.3), (3, 0.3), (5, 0.6)])
def test_coverage_of_intervals_quickly(num_runs: int, spread: float):
    least = LEAST_COVERAGE[num_runs]
    assert coverage(80, num_runs, spread) >= least - 3 * math.sqrt(least * (1 - least) / 80)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.15, 0.3, 0.6])
@pytest.mark.parametrize("num_runs", [2, 3, 5])
def test_coverage_of_intervals(num_runs: int, spread: float):
    assert LEAST_COVERAGE[num_runs] <= coverage(1500, num_runs, spread) <= 0.98


@pytest.mark.parametrize(("right", "units"), [(63, 63), (0, 63), (62, 63), (1, 1), (8, 12)])
def test_rates_of_few_examples_have_wide_intervals(right: int, units: int):
    """At 0 and 1 the bootstrap is empty; the interval of Wilson is not."""
    rows = np.column_stack([np.arange(units) < right, np.ones(units)]).astype(float)
    value, low, high = significance.estimate([Counts(rows, mean)], limits=(0.0, 1.0))
    wilson = stats.binomtest(right, units).proportion_ci(method="wilson")
    assert low <= wilson.low + 1e-9 and high >= wilson.high - 1e-9
    assert value == right / units and low < high


def test_perfect_f1_has_an_interval():
    found = significance.estimate([Counts(np.full((40, 3), 2.0), f1)], limits=(0.0, 1.0))
    assert found.high == 1.0 and 0.9 < found.low < 0.95


def test_estimates_of_a_comparison_are_those_of_each_system():
    rng = np.random.default_rng(4)
    one, other = ([correct(rng, 60, chance) for _ in range(2)] for chance in (0.95, 0.7))
    found = compare(one, other, num_resamples=500, limits=(0.0, 1.0))
    single = [
        significance.estimate(each, num_resamples=500, limits=(0.0, 1.0)) for each in (one, other)
    ]
    assert [found.first, found.second] == single
    assert found.first.high <= 1.0


def test_p_values_adjusted_for_several_tests():
    """The smallest is multiplied by 4, the next by 3, ...; none is below a smaller one."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []
