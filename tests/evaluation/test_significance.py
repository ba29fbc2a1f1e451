"""Resampled scores against scores of resamples, and tests against scipy and against the truth."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from finetune.evaluation import significance
from finetune.evaluation.alignment import AlignedPredictions, with_probabilities
from finetune.evaluation.calibration import error_of_bins
from finetune.evaluation.error_analysis import analyze_predictions
from finetune.evaluation.metrics import METRICS, class_scores, f1, mean, positive_label
from finetune.evaluation.resampling import (
    Sums,
    comparable,
    count_metric,
    default_metric,
    subgroup_counters,
)
from finetune.evaluation.significance import Comparison, compare
from finetune.evaluation.subgroups import TrainingVocabulary
from finetune.types import Example, Span, TextExample, TokenExample

quick = settings(max_examples=40, deadline=None)
GENERATOR = "rng" if "rng" in inspect.signature(stats.bootstrap).parameters else "random_state"
"""What scipy calls its source of random numbers; before 1.15 the second."""
NAMES = ["a", "b", "c"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = ["O", "B-PER", "I-PER", "E-PER", "S-PER", "S-LOC"]
SPANS = [Span(start, end, label) for start in range(3) for end in range(start + 1, 4)
         for label in ("X", "Y")]  # fmt: skip


def answered(
    form: str, *schemes: str | None
) -> st.SearchStrategy[tuple[AlignedPredictions, AlignedPredictions]]:
    """Two runs on the same gold."""
    one = {
        "label": st.sampled_from(NAMES),
        "two": st.sampled_from(NAMES[:2]),
        "labels": st.sets(st.sampled_from(NAMES)).map(lambda names: tuple(sorted(names))),
        "number": st.integers(-4, 4).map(float) | st.floats(-5, 5).map(lambda x: round(x, 2)),
        "spans": st.sets(st.sampled_from(SPANS), max_size=5).map(tuple),
    }
    if form == "tags":
        alphabets = [NAMES if s is None else BIOES if s == "BIOES" else TAGS for s in schemes]
        rows = st.integers(1, 6).flatmap(lambda n: st.tuples(*(
            st.lists(st.sampled_from(alphabet), min_size=n, max_size=n)
            for alphabet in (alphabets[0], alphabets[1], alphabets[1]))))  # fmt: skip
    else:
        rows = st.tuples(*[one[form]] * 3)
    return st.lists(rows, min_size=1, max_size=12).map(lambda rows: tuple(
        asked(AlignedPredictions("label" if form == "two" else form, [row[0] for row in rows],
                      [row[side] for row in rows], schemes or (None, None))) for side in (1, 2)
    ))  # fmt: skip


def asked(run: AlignedPredictions) -> AlignedPredictions:
    """With the examples that were asked, and lines of predictions with probabilities."""
    examples: list[Example] = []
    lines = []
    for number, (gold, answer) in enumerate(zip(run.gold, run.predicted, strict=True)):
        sure = [(7 * number + 3 * place + len(str(answer))) % 20 / 20 for place in range(8)]
        if run.kind in ("tags", "spans"):
            words = [WORDS[(number * place) % 5] for place in range(3, 3 + len(gold))]
            words = words if run.kind == "tags" else WORDS[number % 3 : number % 3 + 3]
            examples.append(TokenExample(number, tuple(words), where=""))
        else:
            examples.append(TextExample(number, "a " * (4 * number + 1), where=""))
        if run.kind == "spans":
            spans = [s._asdict() | {"score": sure[i]} for i, s in enumerate(answer)]
            lines.append({"words": words, "spans": spans})
        elif run.kind == "tags":
            lines.append({"scores": sure[: len(answer)]})
        else:
            scores = dict(zip(NAMES, sure, strict=False))
            lines.append({"label": answer} | ({} if run.kind == "number" else {"scores": scores}))
    return run._replace(examples=examples, rows=lines)


WORDS = ["Ana", "saw", "the", "Oslo", "tram"]
TRAIN = TrainingVocabulary.of([
    TokenExample(0, ("Ana", "the", "Oslo"), (Span(0, 1, "PER"), Span(2, 3, "X")), tuple("aba")),
    TokenExample(1, ("Ana", "saw"), (Span(0, 2, "Y"),), tuple("bb")),
])  # fmt: skip


FORMS = {
    "label": answered("label"),
    "two": answered("two"),
    "labels": answered("labels"),
    "number": answered("number"),
    "plain": answered("tags", None, None),
    "tags": answered("tags", "BIO", "BIO"),
    "other scheme": answered("tags", "BIO", "BIOES"),
    "spans": answered("spans"),
}


def chosen(run: AlignedPredictions, which: Sequence[int]) -> AlignedPredictions:
    sides = ([side[i] for i in which] for side in (run.gold, run.predicted, run.examples, run.rows))
    return run._replace(**dict(zip(("gold", "predicted", "examples", "rows"), sides, strict=True)))


def scores_of(run: AlignedPredictions, names: Sequence[str]) -> dict[str, float]:
    """All scores of `finetune score` and `finetune analyze`, and those of single names, of which
    ``names`` occur in some run."""
    found = analyze_predictions(run, TRAIN)
    scores = dict(found.scores)
    if run.kind == "label":
        by_name = class_scores("label", run.gold, run.predicted)
        if len(names) == 2:
            scores["f1"] = by_name.get(positive_label(names), {"f1": 0.0})["f1"]
        scores |= {f"f1:{name}": by_name.get(name, {"f1": 0.0})["f1"] for name in NAMES}
    elif run.kind == "spans":
        by_name = class_scores("spans", run.gold, run.predicted)
        none = {"f1": 0.0, "recall": 0.0}
        for name in ("X", "Y"):
            scores[f"span_f1_strict:{name}"] = by_name.get(name, none)["f1"]
            scores[f"span_recall_strict:{name}"] = by_name.get(name, none)["recall"]
    for row in found.tables.get("counted", ())[1:]:
        scores |= {
            f"span_{rate}_{row['counted']}": row[rate] for rate in ("precision", "recall", "f1")
        }
    for table, score in product(GROUPED, ("accuracy", "f1")):
        for row in found.tables.get(table, ()):
            if score in row:
                named = f"{'span_' * (score == 'f1')}{score}_{table}:{row[table]}"
                scores[named.replace(" ", "_")] = row[score]
    return scores | ({"ece": error_of_bins(found.bins)} if found.bins else {})


GROUPED = (
    "length", "depth", "sentence length", "first word", "place", "in training", "text length",
)  # fmt: skip


def metrics_of(runs: Sequence[AlignedPredictions]) -> dict[str, list]:
    """Every metric that fits, counted."""
    names = names_of(runs)
    wanted = [*METRICS[comparable(runs)[0].kind], *subgroup_counters(runs, TRAIN)]
    wanted += [name for run in runs for name in scores_of(run, names)]
    counted = {}
    for name in dict.fromkeys(wanted):
        try:
            counted[name] = count_metric(name, runs, TRAIN)
        except ValueError:  # a label, a group or inner spans that do not occur, or a mere count
            continue
    assert default_metric(runs[0]) in counted
    assert ("ece" in counted) == (runs[0].kind != "number" and all(map(with_probabilities, runs)))
    return counted


def names_of(runs: Sequence[AlignedPredictions]) -> list[str]:
    if runs[0].kind != "label":
        return []
    return sorted({name for run in runs for name in (*run.gold, *run.predicted)})


@pytest.mark.parametrize("form", FORMS)
def test_values_are_the_scores_of_the_resample(form: str):
    @quick
    @given(FORMS[form], st.integers(0, 2**32))
    def check(runs: tuple[AlignedPredictions, AlignedPredictions], seed: int) -> None:
        size = len(runs[0].gold)
        drawn = np.random.default_rng(seed).integers(0, size, size=(2, size))
        drawn = np.vstack([np.arange(size), drawn])
        weights = np.stack([np.bincount(row, minlength=size) for row in drawn]).astype(float)
        names, compared = names_of(runs), set()
        scores = [[scores_of(chosen(run, row), names) for row in drawn] for run in runs]
        for name, counted in metrics_of(runs).items():
            for its, of_run in zip(counted, scores, strict=True):
                for of_row, value in zip(of_run, its.values(weights), strict=True):
                    if name in of_row:  # what does not occur in a resample is not told of it
                        compared.add(name)
                        assert value == pytest.approx(of_row[name], abs=1e-9), name
        whole = {name for of_run in scores for name in of_run[0]}
        assert whole - compared <= COUNTS
        assert default_metric(runs[0]) in compared

    check()


COUNTS = {"inner_gold", "inner_predicted", "inner_found", "unseen_words", "unseen_word_accuracy",
          "ece", "f1:a", "f1:b", "f1:c", "f1", *(f"span_{rate}_strict:{name}"
          for rate in ("f1", "recall") for name in "XY")}  # fmt: skip
"""What is no metric, or none where a name, a group or a probability does not occur."""


@pytest.mark.parametrize("form", FORMS)
def test_swapped_answers_score_as_they_would_in_a_file(form: str):
    @quick
    @given(FORMS[form], st.integers(0, 2**32))
    def check(runs: tuple[AlignedPredictions, AlignedPredictions], seed: int) -> None:
        size = len(runs[0].gold)
        swaps = np.random.default_rng(seed).integers(0, 2, size=size)
        ours = [[getattr(runs[swap], side)[i] for i, swap in enumerate(swaps)]
                for side in ("predicted", "rows")]  # fmt: skip
        scores = scores_of(runs[0]._replace(predicted=ours[0], rows=ours[1]), names_of(runs))
        weights = np.concatenate([1 - swaps, swaps])[None].astype(float)
        for name, (first, second) in metrics_of(runs).items():
            value = first.concatenate(second).values(weights)[0]
            assert value == pytest.approx(scores.get(name, value), abs=1e-9), name

    check()


@quick
@given(FORMS["number"], st.data())
def test_documents(runs: tuple[AlignedPredictions, AlignedPredictions], data: st.DataObject):
    size = len(runs[0].gold)
    drawn = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    unit = np.unique(drawn, return_inverse=True)[1]
    weights = np.array([[2.0, 0, 1, 3]])[:, : unit.max() + 1]
    for first, second in metrics_of(runs).values():
        pair = first.by_unit(unit).concatenate(second.by_unit(unit))
        assert first.by_unit(unit).num_units == unit.max() + 1
        both = np.hstack([weights[:, unit], 1 + weights[:, unit]])
        expected = first.concatenate(second).values(both)
        assert pair.values(np.hstack([weights, 1 + weights])) == pytest.approx(expected, abs=1e-9)


def test_far_off_numbers_keep_their_correlation():
    gold, noise = np.arange(50.0), np.sin(np.arange(50))
    near, far = (
        AlignedPredictions("number", gold, offset + 1e-3 * (gold + noise)) for offset in (0, 100)
    )
    expected = stats.pearsonr(gold, gold + noise).statistic
    for run in count_metric("pearson", [near, far]):
        assert run.values(np.ones((1, 50)))[0] == pytest.approx(expected, abs=1e-6)
    constant = AlignedPredictions("number", gold, [100.1] * 50)
    assert count_metric("pearson", [near, constant])[1].values(np.ones((1, 50)))[0] == 0.0


def test_numbers_that_are_none():
    with pytest.raises(ValueError, match="only finite numbers"):
        count_metric("mse", [AlignedPredictions("number", [1.0], [math.nan])])


@pytest.mark.parametrize(("metric", "said"), [
    ("acuracy", "Perhaps you meant 'accuracy'"),
    ("span_f1_conll", "choose accuracy, macro_f1, weighted_f1"),
    ("f1:d", "f1:a, f1:b, f1:c"),
    ("accuracy:a", "does not fit"),
    ("f1", "does not fit"),
])  # fmt: skip
def test_metrics_that_do_not_fit(metric: str, said: str):
    with pytest.raises(ValueError, match=said):
        count_metric(metric, [AlignedPredictions("label", NAMES, NAMES)])


# --- against scipy ---------------------------------------------------------------------------


def correct(rng: np.random.Generator, size: int, chance: float) -> Sums:
    right = (rng.random(size) < chance).astype(float)
    return Sums(np.column_stack([right, np.ones(size)]), mean)


def spans(rng: np.random.Generator, gold: np.ndarray, chance: np.ndarray | float) -> Sums:
    """Right, answered and gold spans of each sentence, each gold span found with a chance."""
    right = rng.binomial(gold, chance)
    return Sums(np.column_stack([right, right + rng.binomial(2, 0.1, len(gold)), gold]) * 1.0, f1)


def permutation_test(first: Sums, second: Sums, resamples: float) -> float:
    rows = np.concatenate([first.rows, second.rows])
    size = first.num_units

    def difference(left: np.ndarray, right: np.ndarray, axis: int) -> np.ndarray:
        sums = (rows[side.astype(int)].sum(axis=axis - 1 if axis < 0 else axis)
                for side in (left, right))  # fmt: skip
        return np.subtract(*map(first.value, sums))

    found = stats.permutation_test(
        (np.arange(size), np.arange(size, 2 * size)), difference, permutation_type="samples",
        n_resamples=resamples, vectorized=True, batch=500, **{GENERATOR: np.random.default_rng(0)},
    )  # fmt: skip
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
            (sample,), np.mean, n_resamples=20_000, method="percentile",
            **{GENERATOR: np.random.default_rng(2)},
        )  # fmt: skip
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


def two(size: int = 80, runs: tuple[int, int] = (1, 1)) -> tuple[list[Sums], list[Sums]]:
    rng = np.random.default_rng(7)
    return tuple([correct(rng, size, 0.8 - 0.08 * side) for _ in range(number)]
                 for side, number in enumerate(runs))  # fmt: skip


def test_the_same_system():
    (first,), _ = two()
    found = compare([first], [first], num_resamples=300)
    assert (found.p_bootstrap, found.p_randomization) == (1.0, 1.0)
    assert tuple(found.difference) == (0.0, 0.0, 0.0) and found.deviation is None


def test_no_p_is_zero():
    ones, zeros = (Sums(np.column_stack([np.full(90, x), np.ones(90)]), mean) for x in (1.0, 0.0))
    found = compare([ones], [zeros], num_resamples=99)
    assert (found.p_bootstrap, found.p_randomization) == (0.01, 0.01)
    assert tuple(found.difference) == (1.0, 1.0, 1.0)


def test_order_and_seed():
    first, second = two()
    found, again = (compare(first, second, num_resamples=500) for _ in range(2))
    turned = compare(second, first, num_resamples=500)
    assert found == again != compare(first, second, num_resamples=500, seed=1)
    assert found.difference.value == -turned.difference.value
    assert (found.p_bootstrap, found.p_randomization) == (
        turned.p_bootstrap, turned.p_randomization)  # fmt: skip


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


def test_nothing_to_compare():
    first, second = two()
    for arguments in (([], second), (first, two(79)[1])):
        with pytest.raises(ValueError, match="the same units for all runs"):
            compare(*arguments)


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
        [spans(rng, gold, 1 / (1 + np.exp(-ease - rng.normal(side * better, spread))))
         for _ in range(number)]
        for side, number in enumerate(runs)
    ]  # fmt: skip
    return compare(*systems, num_resamples=400, seed=int(rng.integers(2**31)))


def false_positives(number: int, runs: tuple[int, int], spread: float) -> tuple[float, float]:
    rng = np.random.default_rng(11)
    found = [simulated(rng, runs, spread) for _ in range(number)]
    return tuple(float(np.mean([each[which] < 0.05 for each in found])) for which in (3, 4))


def test_false_positives_quickly():
    for rate in false_positives(300, (1, 1), 0.0):
        assert abs(rate - 0.05) <= 3.5 * math.sqrt(0.05 * 0.95 / 300)


def test_power():
    rng = np.random.default_rng(12)
    found = [simulated(rng, (1, 1), 0.0, better=-0.8) for _ in range(40)]
    assert (
        np.mean([each.p_bootstrap < 0.05 and each.p_randomization < 0.05 for each in found]) > 0.8
    )


@pytest.mark.slow
def test_false_positives():
    for rate in false_positives(3000, (1, 1), 0.0):
        assert abs(rate - 0.05) <= 3 * math.sqrt(0.05 * 0.95 / 3000)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [(3, 3), (1, 5)])
@pytest.mark.parametrize("spread", [0.0, 0.15, 0.6])
def test_false_positives_over_seeds(runs: tuple[int, int], spread: float):
    """The bootstrap holds its level whatever the share of training in the variance of scores."""
    bootstrap, randomization = false_positives(1000, runs, spread)
    assert 0.015 <= bootstrap <= 0.075
    if spread == 0.0:
        assert abs(randomization - 0.05) <= 3 * math.sqrt(0.05 * 0.95 / 1000)


@quick
@given(FORMS["label"])
def test_the_estimate_of_one_system_is_that_of_a_comparison(
    pair: tuple[AlignedPredictions, AlignedPredictions],
):
    counts = count_metric("accuracy", pair)
    for runs in (counts[:1], counts):
        found = compare(runs, counts[1:], num_resamples=50, seed=3)
        if len(runs) == 1:  # with several, a comparison pools the variance of both sides
            assert significance.estimate(runs, num_resamples=50, seed=3) == found.first
        assert significance.estimate(runs, num_resamples=50, seed=3).value == found.first.value


def test_nothing_has_no_estimate():
    with pytest.raises(ValueError, match="no interval"):
        significance.estimate([])
