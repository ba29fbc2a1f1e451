"""From predictions to decisions: risk, prediction sets, costs, and what is withheld."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from finetune import types
from finetune.evaluation.custom_metrics import CustomMetric
from finetune.evaluation.decisions import Decisions, SetRule, abstaining, sets
from finetune.evaluation.decisions.costs import (
    by_cost,
    check_costs,
    choose_costs,
    read_costs,
    with_costs,
)
from finetune.evaluation.decisions.sets import conformal_quantile, fit_sets, table_of_sets
from finetune.evaluation.metrics import Items, score
from finetune.evaluation.prediction_types import TYPES
from finetune.evaluation.significance import custom_counts
from finetune.evaluation.tables import Tables
from finetune.types import Span, TextExample, TokenExample, UserError
from tests.command import run
from tests.small_data import write_jsonl


@functools.cache
def labeled(number: int, names: str = "abc", seed: int = 0, sharp: float = 2.0) -> Tables:
    """Predictions whose gold is drawn from their probabilities."""
    rng = np.random.default_rng(seed)
    logits = sharp * rng.normal(size=(number, len(names)))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gold = [names[rng.choice(len(names), p=row)] for row in probabilities]
    examples = [TextExample(i, f"text {i} {seed}", None, label) for i, label in enumerate(gold)]
    predictions = []
    for i, row in enumerate(probabilities.tolist()):
        scores = dict(zip(names, row, strict=True))
        best = max(names, key=scores.__getitem__)
        predictions.append(types.TextPrediction(i, best, scores[best], scores))
    return TYPES["label"].tables_of(examples, predictions)


def answers(confidence: Any, right: Any, example: Any = None) -> Items:
    index = np.array(range(len(confidence)) if example is None else example)
    sides = [""] * len(confidence), [""] * len(confidence)
    return Items.of(index, *sides, confidence, credit=np.array(right, bool), cluster=index)


# --- Risk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wrong", "number"), [(0, 59), (3, 40), (17, 20), (5, 5)])
def test_the_bound_is_that_of_clopper_and_pearson(wrong: int, number: int) -> None:
    expected = binomtest(wrong, number, alternative="less").proportion_ci(0.95, "exact").high
    assert abstaining.upper_bound(wrong, number) == pytest.approx(expected, abs=1e-12)
    found = answers(np.ones(number), [False] * wrong + [True] * (number - wrong))
    assert abstaining.at_confidence(found, 0.0).bound == pytest.approx(expected, abs=1e-12)


def test_answers_of_one_example_count_as_far_as_they_are_independent() -> None:
    right = np.arange(200) % 10 > 0
    alone = abstaining.at_confidence(answers(np.ones(200), right), 0.0).bound
    mixed = answers(np.ones(400), np.repeat(right, 2), np.repeat(np.arange(200), 2))
    assert abstaining.at_confidence(mixed, 0.0).bound == pytest.approx(
        alone
    )  # copies say nothing new
    one = answers(np.ones(200), right, np.zeros(200, int))
    assert abstaining.at_confidence(one, 0.0).bound > 0.9
    with pytest.raises(UserError, match=r"200 answers \(as good as 1 of .*needs 59 answers"):
        abstaining.at_risk(one, 0.05)


@pytest.mark.parametrize(("number", "even"), [(5, True), (100, False)])
def test_the_bound_holds_for_answers_of_few_examples(number: int, even: bool) -> None:
    rng = np.random.default_rng(0)
    for risk, correlation in ((0.02, 0.2), (0.1, 0.2), (0.1, 0.9)):
        share = (1 - correlation) / correlation
        broken = 0
        for _ in range(200):
            sizes = np.full(number, 30) if even else rng.geometric(1 / 30, number)
            wrong = rng.random(sizes.sum()) < np.repeat(
                rng.beta(risk * share, (1 - risk) * share, number), sizes
            )
            drawn = answers(np.ones(len(wrong)), ~wrong, np.repeat(np.arange(number), sizes))
            broken += abstaining.at_confidence(drawn, 0.0).bound < risk
        assert binomtest(broken, 200, 0.05, alternative="greater").pvalue > 0.01


def test_answers_of_one_document_depend_on_each_other() -> None:
    setup, rows = TYPES["plain tags"], range(6)
    examples = [TokenExample(i, ("a", "b"), None, ("N", "N"), document=f"d{i // 3}") for i in rows]
    predictions = [types.TokenPrediction(i, ("a", "b"), ("N", "N"), (0.9, 0.9)) for i in rows]
    for documents, effective in ((True, 2), (False, 6)):
        known = [e if documents else replace(e, document=None) for e in examples]
        found = abstaining.answers_of(setup.tables_of(known, predictions))
        assert abstaining.num_independent(found) == effective


def test_the_number_needed_is_the_least_that_shows_a_risk() -> None:
    for risk in (0.3, 0.05, 0.01):
        number = abstaining.fewest_for_risk(risk)
        assert abstaining.upper_bound(0, number) <= risk < abstaining.upper_bound(0, number - 1)


def test_a_threshold_keeps_the_risk_and_gives_no_fewer_answers_than_it_must() -> None:
    found = abstaining.answers_of(labeled(4000, sharp=3.0))
    chosen = abstaining.at_risk(found, 0.1)
    given = found.take(found.score >= chosen.confidence)
    assert chosen.risk == abstaining.at_confidence(given, 0.0).risk <= chosen.bound <= 0.1
    lower = np.sort(found.score)[-len(given) - 60]  # the next thresholds do not
    assert abstaining.at_confidence(found, lower).bound > 0.1
    assert abstaining.at_coverage(found, 0.8).coverage == pytest.approx(0.8)
    assert abstaining.at_coverage(found, 1.0).risk == abstaining.at_confidence(found, 0.0).risk


@pytest.mark.slow
def test_the_guarantee_holds_over_draws() -> None:
    world, rng = abstaining.answers_of(labeled(20_000, sharp=3.0)), np.random.default_rng(1)
    broken = 0
    for _ in range(60):
        drawn = world.take(rng.integers(len(world), size=600))
        chosen = abstaining.at_risk(answers(drawn.score, drawn.credit), 0.1)
        broken += abstaining.at_confidence(world, chosen.confidence).risk > 0.1
    assert binomtest(broken, 60, 0.05, alternative="greater").pvalue > 0.01


def test_too_few_answers_and_unsafe_ones_are_refused() -> None:
    with pytest.raises(UserError, match=r"needs 59 answers or more"):
        abstaining.at_risk(answers(np.ones(58), np.ones(58)), 0.05)
    with pytest.raises(UserError, match=r"no confidence is safe.*above 0.001: add validation data"):
        abstaining.at_risk(abstaining.answers_of(labeled(5000)), 0.001)
    with pytest.raises(UserError, match=r"of the 59 most confident answers 2 are wrong"):
        abstaining.at_risk(answers(np.linspace(1, 0.5, 100), np.arange(100) % 50 > 0), 0.05)


# --- Sets -----------------------------------------------------------------------------------------


def test_sets_hold_gold_at_the_level() -> None:
    coverages = []
    for seed in range(20):
        rule = fit_sets(labeled(300, seed=seed), 0.8)
        coverages.append(table_of_sets(labeled(500, seed=100 + seed), rule)[0]["coverage"])
    assert np.mean(coverages) == pytest.approx(0.8, abs=0.02)


def test_the_quantile_by_hand() -> None:
    scores = [0.3, 0.1, 0.2]
    assert [conformal_quantile(scores, level) for level in (0.25, 0.5, 0.75)] == [0.1, 0.2, 0.3]
    assert conformal_quantile(scores, 0.76) is None
    assert conformal_quantile([0.4, *scores], 0.8) == 0.4 and sets.fewest_for_level(0.8) == 4


def test_texts_whose_gold_class_has_no_probability_are_in_no_set() -> None:
    scored = labeled(60)
    unknown = replace(scored, gold=["z", *scored.gold[1:]])
    rule = fit_sets(unknown, 0.8)
    assert table_of_sets(unknown, rule)[0]["number"] == 59


def test_sets_are_those_of_prediction_files() -> None:
    scored = labeled(400)
    in_files = [
        replace(p, scores={name: round(value, 6) for name, value in p.scores.items()})
        for p in scored.predictions
    ]
    rule = fit_sets(scored, 0.8)
    assert fit_sets(replace(scored, predictions=in_files), 0.8) == rule
    rule = replace(rule, quantile=1 - in_files[0].scores["a"])
    for exact, rounded in zip(scored.predictions, in_files, strict=True):
        members = rule.members(exact.scores)
        assert members == rule.members(rounded.scores)
        assert members == sorted(members, key=lambda name: -exact.scores[name])
    assert SetRule(0.9, 0.5).members({"a": 0.2, "b": 0.5, "c": 0.3}) == ["b"]


def test_too_few_predictions_for_a_level() -> None:
    with pytest.raises(UserError, match="50 predictions with gold, where 99 are needed"):
        fit_sets(labeled(50), 0.99)
    with pytest.raises(UserError, match="predictions of one class"):
        fit_sets(TYPES["number"].of_values([1.0], [2.0]), 0.9)


# --- Costs ----------------------------------------------------------------------------------------


def test_the_cheapest_label_is_the_one_of_least_expected_cost() -> None:
    scored = labeled(400)
    rng = np.random.default_rng(3)
    costs = {g: {p: 0.0 if g == p else float(rng.uniform(1, 9)) for p in "abc"} for g in "abc"}
    cheap = by_cost(with_costs(scored, costs))
    matrix = np.array([[costs[g][p] for p in "abc"] for g in "abc"])
    known = np.array([[p.scores[n] for n in "abc"] for p in scored.predictions])
    assert [*cheap.predicted] == ["abc"[i] for i in (known @ matrix).argmin(1)]
    expected = np.mean([costs[g][p] for g, p in zip(cheap.gold, cheap.predicted, strict=True)])
    assert score(cheap)["mean_cost"] == pytest.approx(expected)
    equal = {g: {p: float(g != p) for p in "abc"} for g in "abc"}
    plain = by_cost(with_costs(scored, equal))
    assert plain.predicted == scored.predicted  # equal costs: the most probable label
    blank = Decisions(costs=costs).apply(types.TextPrediction(0, None))
    assert blank.label is None and blank.to_dict()["cost"] is None  # a table has the column


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"a": {"a": 0, "b": 1}}, "gold: costs of a, but the labels are a, b"),
        ({"a": {"a": 0}, "b": {"a": 1, "b": 0}}, "gold 'a': costs of a, but the labels are a, b"),
        ({"a": {"a": 0, "b": 1}, "bb": {"a": 1}, "b": {}}, "gold: costs of a, b, bb, but"),
        ({"a": {"a": 0, "b": -1}, "b": {"a": 1, "b": 0}}, "a cost must be from 0 to 1e"),
    ],
)
def test_wrong_costs_are_refused(costs: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_costs(costs, ["a", "b"], TYPES["label"])
    several = TYPES["labels"].of_values([("a",)], [("b",)])
    with pytest.raises(UserError, match="costs are for models of one label"):
        with_costs(several, costs)


def test_costs_that_rise_are_told(tmp_path) -> None:
    (tmp_path / "costs.csv").write_text("gold,a,b,c\na,0,2,2\nb,1,0,1\nc,1,1,0\n")
    runs = {"validation": labeled(200, sharp=3.0)}
    path = str(tmp_path / "costs.csv")
    assert read_costs(path)["b"] == {"a": 1.0, "b": 0.0, "c": 1.0}
    assert not choose_costs(path, ["a", "b", "c"], TYPES["label"], runs).notes
    flat = [replace(p, scores=flat_scores(p.scores)) for p in runs["validation"].predictions]
    runs = {"validation": replace(runs["validation"], predictions=flat)}
    (note,) = choose_costs(path, ["a", "b", "c"], TYPES["label"], runs).notes
    assert "the cost on validation is higher than before" in note


def flat_scores(scores: Any) -> dict[str, float]:
    return {name: 0.34 if value == max(scores.values()) else 0.33 for name, value in scores.items()}


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.csv", "gold,a,b\na,0,5\nb,dear,0\n", r"a.csv:3: 'dear' for gold 'b' is not a number"),
        ("a.csv", "gold,a\na,0\na,1\n", r"a.csv:3: 'a' is not one row of costs"),
        ("a.tsv", "a\tb\n0\t5\n", r"a.tsv:1: there is no gold label"),
    ],
)
def test_errors_of_costs_name_their_line(name: str, text: str, problem: str, tmp_path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=problem):
        read_costs(str(tmp_path / name))


# --- Withheld answers -----------------------------------------------------------------------------

PER, LOC = Span(0, 2, "PER"), Span(3, 4, "LOC")
WORDS = ("Ana", "Lima", "saw", "Oslo")
RELATIONS = types.Relation(PER, LOC, "in"), types.Relation(LOC, PER, "of")
TAGS = ("B-PER", "I-PER", "O", "B-LOC"), (0.6, 0.6, 0.9, 0.9)
PREDICTIONS: dict[str, tuple[Any, str, Any, Any]] = {
    "label": (types.TextPrediction(0, "a", 0.6, {"a": 0.6, "b": 0.4}), "label", None, "a"),
    "labels": (
        types.TextPrediction(0, ("a", "b"), None, {"a": 0.6, "b": 0.9}),
        "label",
        ["b"],
        ["a"],
    ),
    "choice": (types.ChoicePrediction(0, 1, "x", (0.4, 0.6)), "choice", None, 1),
    "tags": (
        types.TokenPrediction(0, WORDS, *TAGS, (PER, LOC), (0.6, 0.9)),
        "tags",
        ["O", "O", "O", "B-LOC"],
        [PER._asdict() | {"score": 0.6}],
    ),
    "plain tags": (
        types.TokenPrediction(0, WORDS, ("N", "N", "V", "N"), (0.6, 0.9, 0.9, 0.9)),
        "tags",
        [None, "N", "V", "N"],
        [{"start": 0, "end": 1, "label": "N", "score": 0.6}],
    ),
    "spans": (
        types.SpanPrediction(0, WORDS, (PER, LOC), (0.6, 0.9)),
        "spans",
        [LOC._asdict() | {"score": 0.9}],
        [PER._asdict() | {"score": 0.6}],
    ),
    "relations": (
        types.RelationPrediction(0, WORDS, (PER, LOC), RELATIONS, (0.6, 0.9)),
        "relations",
        [{"subject": 1, "object": 0, "label": "of", "score": 0.9}],
        [{"subject": 0, "object": 1, "label": "in", "score": 0.6}],
    ),
    "answers": (
        types.AnswerPrediction(0, types.FoundAnswer(0, 3, "Ana", 0.6), 0.6),
        "answer",
        None,
        "Ana",
    ),
}
"""A prediction, its key in a row, what the model keeps there, and what it withholds."""


@pytest.mark.parametrize("setup", PREDICTIONS)
def test_unsure_answers_are_withheld_and_nothing_else(setup: str) -> None:
    prediction, key, kept, withheld = PREDICTIONS[setup]
    before = prediction.to_dict()
    row = Decisions(confidence=0.7).apply(prediction).to_dict()
    assert row[key] == kept and row["withheld"] == withheld
    assert row.get("scores") == before.get("scores") and row.get("score") == before.get("score")
    nothing = {"withheld": [] if isinstance(withheld, list) else None}
    assert Decisions(confidence=0.6).apply(prediction).to_dict() == before | nothing
    assert Decisions().apply(prediction).to_dict() == before
    ood = Decisions(distance=1.0).apply(prediction, 1.5).to_dict()
    assert ood["ood"] and not any(ood[key] or ()) if key != "tags" else ood["ood"]
    near = Decisions(distance=1.0).apply(prediction, 1.0).to_dict()
    assert near == before | {"distance": 1.0, "ood": False} | nothing


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [
                {"label": "a", "gold": "a"},
                {"label": None, "withheld": "a", "gold": "b"},
                {"label": None, "withheld": "b", "gold": "b"},
                {"label": None, "gold": "b"},  # a blank text
            ],
            "abstained on 2 of 4; accuracy of the answers given 1.000",
        ),
        (
            [
                {"choice": 0, "choices": ["x", "y"], "gold": 0},
                {"choice": None, "withheld": 1, "choices": ["x", "y"], "gold": 0},
            ],
            "abstained on 1 of 2; accuracy of the answers given 1.000",
        ),
        (
            [
                {"answer": "Oslo", "gold": [{"text": "Oslo", "start": 0}]},
                {"answer": None, "withheld": "Rome", "gold": [{"text": "Rome", "start": 0}]},
            ],
            "abstained on 1 of 2; f1 of the answers given 1.000",
        ),
        ([{"label": None, "withheld": "a", "gold": "a"}], "abstained on 1 of 1"),
        (
            [{"label": ["a"], "withheld": ["b"], "scores": {"b": 0.4}, "gold": ["a"]}],
            "abstained from 1 answer, which count as missing",
        ),
    ],
    ids=("label", "choice", "answers", "every label", "labels"),
)
def test_commands_say_what_is_withheld(rows: list[dict], said: str, tmp_path) -> None:
    """The file holds its gold; it may lack the probability of a predicted label."""
    file, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (file, other):
        write_jsonl(path, [{"text": f"text {n}", **row} for n, row in enumerate(rows)])
    assert said in run("score", file).ok().err
    assert said in run("report", file, "--format", "table").ok().out
    assert f"{other}: {said}" in run("compare", file, other, "--resamples", "9").ok().out


def test_a_model_that_withholds_nothing_does_not_abstain(tmp_path) -> None:
    row = {"id": 0, "words": ["Ana"], "spans": [], "relations": [], "withheld": []}
    write_jsonl(tmp_path / "a.jsonl", [{**row, "gold": {"spans": [], "relations": []}}])
    assert run("score", tmp_path / "a.jsonl").ok().err == ""


def test_a_custom_metric_takes_what_is_withheld_as_none_and_no_class_is_made_of_it() -> None:
    def seen(setup: str, gold: Any) -> Any:
        prediction = Decisions(confidence=0.7).apply(PREDICTIONS[setup][0])
        tables = TYPES[setup].of_values([gold], [prediction.value], predictions=[prediction])
        taken: list[Any] = []
        metric = CustomMetric(lambda gold, predicted: taken.extend(predicted) or 1.0)
        custom_counts(metric, [tables])[0].values(np.ones((1, 1)))
        return taken[0], score(tables)

    for setup, gold in (("label", "a"), ("choice", 1), ("answers", ("Ana",))):
        value, scores = seen(setup, gold)
        assert value is None and scores[TYPES[setup].default] == 0
    tags, scores = seen("plain tags", ("N", "N", "V", "N"))
    assert tags == (None, "N", "V", "N") and scores["accuracy"] == 0.75
    assert scores["macro_f1"] == pytest.approx((0.8 + 1) / 2)


def test_decisions_are_saved_as_json_values() -> None:
    rule = SetRule(0.9, 0.5)
    decisions = Decisions(0.5, {"a": {"a": 0.0}}, rule, 2.0)
    assert Decisions.restored(decisions.to_dict()) == decisions
    assert Decisions().to_dict() == {} and Decisions.restored({}) == Decisions()
