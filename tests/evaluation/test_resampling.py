"""Resampled scores against the scores of the resample itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from finetune.evaluation.error_analysis import analyze_predictions
from finetune.evaluation.metrics import class_scores
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.significance import count_metric, subgroup_metrics
from finetune.evaluation.tables import PredictionType, Tables
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.types import (
    Example,
    Span,
    SpanPrediction,
    TextExample,
    TextPrediction,
    TokenExample,
    TokenPrediction,
)
from tests.covering import few

quick = settings(max_examples=5, deadline=None)
NAMES = ["a", "b", "c"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = ["O", "B-PER", "I-PER", "E-PER", "S-PER", "S-LOC"]
SPANS = [
    Span(start, end, label)
    for start in range(3)
    for end in range(start + 1, 4)
    for label in ("X", "Y")
]


def answered(form: str, *schemes: str | None) -> st.SearchStrategy[tuple[Tables, Tables]]:
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
        rows = st.integers(1, 6).flatmap(
            lambda n: st.tuples(
                *(
                    st.lists(st.sampled_from(alphabet), min_size=n, max_size=n)
                    for alphabet in (alphabets[0], alphabets[1], alphabets[1])
                )
            )
        )
    else:
        rows = st.tuples(*[one[form]] * 3)
    type = TYPES["label" if form == "two" else form]
    fields = {"schemes": schemes} if schemes else {"positive": "b"} if type.name == "label" else {}
    return st.lists(rows, min_size=1, max_size=12).map(
        lambda rows: tuple(
            asked(type, [row[0] for row in rows], [row[side] for row in rows], **fields)
            for side in (1, 2)
        )
    )


def asked(type: PredictionType, gold: list, answers: list, **fields) -> Tables:
    """With the examples that were asked, and predictions with probabilities."""
    examples: list[Example] = []
    predictions: list[object] = []
    for number, (own, answer) in enumerate(zip(gold, answers, strict=True)):
        sure = [(7 * number + 3 * index + len(str(answer))) % 20 / 20 for index in range(8)]
        if type.name == "spans":
            words = tuple(WORDS[number % 3 : number % 3 + 3])
            predictions.append(SpanPrediction(number, words, answer, tuple(sure[: len(answer)])))
        elif type.name == "tags":
            words = tuple(WORDS[(number * index) % 5] for index in range(3, 3 + len(own)))
            predictions.append(TokenPrediction(number, words, answer, tuple(sure[: len(answer)])))
        else:
            scores = dict(zip(NAMES, sure, strict=False))
            label = scores.get(answer) if type.name == "label" else None
            scores = None if type.name == "number" else scores
            examples.append(TextExample(number, "a " * (4 * number + 1), where=""))
            predictions.append(TextPrediction(number, answer, label, scores))
            continue
        examples.append(TokenExample(number, words, where=""))
    fields |= {"examples": examples, "predictions": predictions, "vocabulary": TRAIN}
    return type.of_values(gold, answers, **fields)


WORDS = ["Ana", "saw", "the", "Oslo", "tram"]
TRAIN = TrainingVocabulary.of(
    [
        TokenExample(0, ("Ana", "the", "Oslo"), (Span(0, 1, "PER"), Span(2, 3, "X")), tuple("aba")),
        TokenExample(1, ("Ana", "saw"), (Span(0, 2, "Y"),), tuple("bb")),
    ]
)


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


def chosen(run: Tables, which: Sequence[int]) -> Tables:
    """Some of the examples, as those of a run of their own."""
    gold, predicted, predictions, examples = (
        [side[i] for i in which]
        for side in (run.gold, run.predicted, run.predictions, run.examples)
    )
    fields = {"schemes": run.schemes} if run.schemes != (None, None) else {}
    fields |= {"positive": run.positive} if run.positive else {}
    type = TYPES["tags"] if run.type.name == "plain tags" else run.type
    fields |= {"examples": examples, "predictions": predictions, "vocabulary": TRAIN}
    return type.of_values(gold, predicted, **fields)


def scores_of(run: Tables, names: Sequence[str]) -> dict[str, float]:
    """All scores of `finetune score` and `finetune report`, and those of single names, of which
    ``names`` occur in some run."""
    found = analyze_predictions(run)
    scores = dict(found.scores)
    if run.type.name == "label":
        by_name = class_scores(run)
        scores["f1"] = by_name.get("b", {"f1": 0.0})["f1"]
        scores |= {f"f1:{name}": by_name.get(name, {"f1": 0.0})["f1"] for name in NAMES}
    elif run.type.name == "spans":
        by_name = class_scores(run)
        none = {"f1": 0.0, "recall": 0.0}
        for name in ("X", "Y"):
            scores[f"span_f1_strict:{name}"] = by_name.get(name, none)["f1"]
            scores[f"span_recall_strict:{name}"] = by_name.get(name, none)["recall"]
    for table, score in product(GROUPED, ("accuracy", "f1")):
        for row in found.tables.get(table, ()):
            if score in row:
                named = f"{'span_' * (score == 'f1')}{score}_{table}:{row[table]}"
                scores[named.replace(" ", "_")] = row[score]
    return scores | ({"ece": found.calibration_error} if found.bins else {})


GROUPED = ("length", "depth", "sentence length", "in training", "text length")


def metrics_of(runs: Sequence[Tables]) -> dict[str, list]:
    """Every metric that fits, counted."""
    names = names_of(runs)
    type = runs[0].type
    wanted = [*type.metrics, *subgroup_metrics(runs[0])]
    wanted += [name for run in runs for name in scores_of(run, names)]
    counted = {}
    for name in dict.fromkeys(wanted):
        try:
            counted[name] = count_metric(name, runs)
        except ValueError:  # a label, a group or inner spans that do not occur, or a mere count
            continue
    assert type.default in counted
    assert ("ece" in counted) == all(run.is_rated for run in runs)
    return counted


def names_of(runs: Sequence[Tables]) -> list[str]:
    if runs[0].type.name != "label":
        return []
    return sorted({name for run in runs for name in (*run.gold, *run.predicted)})


@pytest.mark.parametrize("form", few(FORMS, "labels", "number", "other scheme", "spans"))
def test_values_are_the_scores_of_the_resample(form: str):
    @quick
    @given(FORMS[form], st.integers(0, 2**32))
    def check(runs: tuple[Tables, Tables], seed: int) -> None:
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
        assert runs[0].type.default in compared

    check()


COUNTS = {
    "ece",
    "f1:a",
    "f1:b",
    "f1:c",
    "f1",
    *(f"span_{rate}_strict:{name}" for rate in ("f1", "recall") for name in "XY"),
}
"""What is no metric, or none where a name, a group or a probability does not occur."""


@quick
@given(FORMS["number"], st.data())
def test_documents(runs: tuple[Tables, Tables], data: st.DataObject):
    size = len(runs[0].gold)
    drawn = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    unit = np.unique(drawn, return_inverse=True)[1]
    weights = np.array([[2.0, 0, 1, 3]])[:, : unit.max() + 1]
    for first, second in metrics_of(runs).values():
        pair = replace(first, unit=unit).concatenate(replace(second, unit=unit))
        assert replace(first, unit=unit).num_units == unit.max() + 1
        both = np.hstack([weights[:, unit], 1 + weights[:, unit]])
        expected = first.concatenate(second).values(both)
        assert pair.values(np.hstack([weights, 1 + weights])) == pytest.approx(expected, abs=1e-9)


def test_far_off_numbers_keep_their_correlation():
    gold, noise = np.arange(50.0), np.sin(np.arange(50))
    near, far = (
        TYPES["number"].of_values(gold, offset + 1e-3 * (gold + noise)) for offset in (0, 100)
    )
    expected = stats.pearsonr(gold, gold + noise).statistic
    for run in count_metric("pearson", [near, far]):
        assert run.values(np.ones((1, 50)))[0] == pytest.approx(expected, abs=1e-6)
    constant = TYPES["number"].of_values(gold, [100.1] * 50)
    assert count_metric("pearson", [near, constant])[1].values(np.ones((1, 50)))[0] == 0.0


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("acuracy", "Perhaps you meant 'accuracy'"),
        ("span_f1_conll", "choose accuracy, macro_f1, weighted_f1"),
        ("f1:d", "f1:a, f1:b, f1:c"),
        ("accuracy:a", "does not fit"),
        ("f1", "does not fit"),
    ],
)
def test_metrics_that_do_not_fit(metric: str, said: str):
    with pytest.raises(ValueError, match=said):
        count_metric(metric, [TYPES["label"].of_values(NAMES, NAMES)])
