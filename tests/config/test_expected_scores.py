"""Expected scores: what may stand in a recipe, and what is said of a run."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from finetune.config.description import ECE_METRICS, HIERARCHY, PROBLEMS
from finetune.config.expected_scores import (
    SCORED_SPLITS,
    Expected,
    metrics_of,
    read_expected,
    require_metric,
)
from finetune.config.metric_properties import METRIC_PROPERTIES
from finetune.config.tasks import ClassifyConfig
from finetune.evaluation.metrics import score
from finetune.evaluation.prediction_types import TYPES, scores_of
from finetune.evaluation.prediction_types.labels import HIERARCHICAL_METRICS
from finetune.evaluation.reproduction import ScoreVerdict, summarize, verdicts
from finetune.registry import TASKS
from finetune.types import Span, TextExample, TextPrediction

ENTRY = {
    "split": "test",
    "metric": "accuracy",
    "value": 0.9,
    "tolerance": 0.01,
    "source": "a paper, table 1",
}


def read(task: str = "nli", problem: Any = None, **changes: Any) -> Expected:
    return read_expected("r.yaml:3", task, problem, {**ENTRY, **changes})


def test_the_names_are_those_of_the_metrics():
    """Of everything that tasks score with; what none gives is no legal name."""
    voted = [TextExample(0, "x", None, "a", votes=(("a", 2), ("b", 1)))]
    answer = [TextPrediction(0, "a", 0.9, {"a": 0.9, "b": 0.1})]
    tables = TYPES["label"].tables_of(voted, answer, labels=["a", "b"])
    single = {*score(tables), *ECE_METRICS}
    assert {*PROBLEMS["single"]} == {*metrics_of("nli")} == single
    multi = {**scores_of("labels", [["a"]], [["a"]], labels=["a"]), **dict.fromkeys(ECE_METRICS)}
    assert {*PROBLEMS["multi"]} == {*multi}
    assert {*PROBLEMS["regression"]} == {*scores_of("number", [1.0, 2.0], [1.0, 2.0])}
    assert {*metrics_of("classify")} == {*itertools.chain(*PROBLEMS.values()), *HIERARCHY}
    assert {*HIERARCHY} == {*HIERARCHICAL_METRICS}
    tags = scores_of("tags", [["B-X"]], [["O"]], schemes=("BIO", "BIO"))
    tags |= scores_of("tags", [["X"]], [["Y"]])
    assert {*metrics_of("tag")} == {*tags, *ECE_METRICS}
    nested = [[Span(0, 3, "X"), Span(1, 2, "Y")]]
    spans = {name.partition(":")[0] for name in scores_of("spans", nested, nested)}
    assert {*metrics_of("ner")} == {*spans, "span_f1_uncalibrated"}
    known = {*itertools.chain(*map(metrics_of, TASKS))}
    # costs come after training
    assert {*METRIC_PROPERTIES} - {"mean_cost"} <= known and len(SCORED_SPLITS) == 6
    require_metric("classify", ClassifyConfig(metric="accuracy_level:1"))


def test_a_good_entry():
    assert read() == Expected("test", "accuracy", 0.9, 0.01, "a paper, table 1")
    assert read(value="9e-1").value == 0.9, "YAML 1.1 reads a number so written as a text"
    assert read(metric="matthews", value=-0.1).value == -0.1
    assert read("classify", metric="mse", value=12, tolerance=3).value == 12
    assert read("ner", metric="span_f1_strict:PER").metric == "span_f1_strict:PER"
    assert read("classify", "multi", metric="micro_f1").metric == "micro_f1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "acuracy"}, "unknown metric 'acuracy'.*Perhaps you meant 'accuracy'"),
        ({"metric": ["accuracy"]}, r"metric must be text, not \['accuracy'\]"),
        (
            {"task": "classify", "problem": "regression"},
            "unknown metric 'accuracy'.*pearson, spearman, mse",
        ),
        ({"split": "tst"}, "unknown split 'tst'.*Perhaps you meant 'test'"),
        ({"split": "train"}, "unknown split 'train'.*Legal are validation, "),
        ({"value": 50}, "accuracy must be from 0 to 1, not 50: write 0.9 for 90 %"),
        ({"tolerance": 0}, "tolerance must be above 0, not 0"),
        ({"source_checked": "no"}, "source_checked must be true or false, not 'no'"),
        ({"statistic": "best"}, "unknown statistic 'best'.*Legal are mean, median"),
        ({"tolerence": 1}, "each entry .* has the keys split, .* such as `- {split: test, metric"),
    ],
)
def test_wrong_entries(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^r.yaml:3: {message}"):
        read(**changes)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.85, "reproduced"),
        (0.95, "reproduced"),
        (0.84, "below"),
        (0.96, "above"),
        (math.nan, "not reproduced (no number)"),
        (math.inf, "not reproduced (no number)"),
    ],
)
def test_verdict(value: float, said: str):
    entry = Expected("test", "f1", 0.9, 0.05, "s")
    assert verdicts([entry], {"test": {"f1": value}}, [])[0].verdict == said


def test_verdicts_of_a_run():
    expected = [
        Expected("test", "accuracy", 0.9, 0.01, "a paper"),
        Expected("test", "f1", 0.9, 0.01, "b", source_checked=False),
        Expected("validation", "f1", 0.9, 0.01, "c"),
    ]
    metrics = {"test": {"accuracy": 0.905, "f1": 0.8}}
    found = verdicts(expected, metrics, [])
    assert [verdict.verdict for verdict in found] == ["reproduced", "below", "not measured"]
    assert [verdict.line() for verdict in found] == [
        "test accuracy: expected 0.9 ± 0.01, got 0.9050: reproduced (a paper)",
        "test f1: expected 0.9 ± 0.01, got 0.8000: below (b; source not checked)",
        "validation f1: expected 0.9 ± 0.01: not measured",
    ]
    found = verdicts(expected, metrics, [], num_degenerate=1)
    said = ["not reproduced (degenerate)", "below (degenerate)", "not measured (degenerate)"]
    assert [verdict.verdict for verdict in found] == said
    found = verdicts(expected, metrics, ["lr", "steps"])
    assert found[0].line() == (
        "test accuracy: expected 0.9 ± 0.01, got 0.9050: not comparable (lr, steps changed)"
    )


SUMMARY = summarize(
    {
        1: {"test": {"accuracy": 0.9}},
        2: {"test": {"accuracy": 0.91}},
        3: {"test": {"accuracy": 0.5}},
    }
)
"""Mean 0.77, median 0.9."""


def of_seeds(num_degenerate: int = 0, num_seeds: int = 3, **changes: Any) -> ScoreVerdict:
    numbers = {"num_degenerate": num_degenerate, "num_seeds": num_seeds}
    (verdict,) = verdicts([read(**changes)], SUMMARY, [], **numbers)
    return verdict


def test_means_and_medians_of_seeds():
    said = "test accuracy: expected 0.9 ± 0.01, mean of 3 seeds 0.7700: below (a paper, table 1)"
    assert of_seeds().line() == said
    verdict = of_seeds(statistic="median")
    assert verdict.line() == (
        "test accuracy: expected median 0.9 ± 0.01, median of 3 seeds 0.9000: reproduced (a paper, "
        "table 1)"
    )
    assert verdict.to_dict()["statistic"] == "median" and verdict.to_dict()["value"] == 0.9
    assert of_seeds(metric="f1").line() == "test f1: expected 0.9 ± 0.01: not measured"


def test_degenerate_seeds_are_said_and_reproduce_nothing():
    verdict = of_seeds(1, 4, statistic="median")
    assert verdict.verdict == "reproduced (1 of 4 seeds degenerate)"
    assert verdict.line().endswith("reproduced (1 of 4 seeds degenerate) (a paper, table 1)")
    for value, said in ((0.9, "not reproduced"), (0.8, "not reproduced"), (0.95, "below")):
        verdict = of_seeds(3, 3, statistic="median", value=value)
        assert verdict.verdict == f"{said} (3 of 3 seeds degenerate)"
    assert of_seeds(1, 1, metric="f1").verdict == "not measured (1 of 1 seed degenerate)"
