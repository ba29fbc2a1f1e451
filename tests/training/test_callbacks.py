"""Callbacks and custom metrics: when they are called, what they select, and what errors leave."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import finetune
from finetune import CustomMetric
from finetune.evaluation.compare import ComparisonOptions, compare_systems
from finetune.training import callbacks
from finetune.types import CustomFunctionError, UserError
from tests import fixtures as fx
from tests.small_data import read_jsonl

SETTINGS = {"steps": 4, "batch_size": 8, "eval_every": 2, "lr": 1e-3, "quiet": True}
OWN = """
import finetune

def accuracy_of_mine(gold, predicted):
    return sum(g == p for g, p in zip(gold, predicted)) / len(gold)

errors = finetune.CustomMetric(lambda g, p: 1 - accuracy_of_mine(g, p), lower_is_better=True)

def brier(gold, predicted):
    return sum((1 - p[g]) ** 2 for g, p in zip(gold, predicted)) / len(gold)

squares = finetune.CustomMetric(brier, lower_is_better=True, probabilities=True)

def broken(gold, predicted):
    return gold[0]["no such key"]

unnamed = finetune.CustomMetric(lambda gold, predicted: 1 / 0)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of metrics."""
    (file := tmp_path_factory.mktemp("callbacks") / "own.py").write_text(OWN)
    return file


def train(out: Path, **more) -> finetune.TrainedRun:
    data, model = str(fx.data("sentiment")), str(fx.checkpoint())
    return finetune.train("classify", data, model, out=str(out), **{**SETTINGS, **more})


class Recorder(finetune.Callback):
    def __init__(self, fail_at: int = 0) -> None:
        self.events: list[tuple] = []
        self.fail_at = fail_at

    def on_step(self, event) -> None:
        assert event.loss > 0 and event.gradient_norm > 0 and event.num_steps == 4
        self.events.append(("step", event.step))
        if event.step == self.fail_at:
            raise KeyError("a mistake of mine")

    def on_evaluation(self, event) -> None:
        assert len(event.examples) == len(event.predictions) > 0 and "accuracy" in event.metrics
        self.events.append(("evaluation", event.step, event.is_best))

    def on_save(self, event) -> None:
        assert (event.folder / "model.safetensors").is_file()
        self.events.append(("save", event.step, event.folder.name))


def test_the_order_of_callbacks_and_a_run_that_fails(tmp_path: Path) -> None:
    recorder = Recorder()
    train(tmp_path / "run", callbacks=[recorder])
    found = [event for event in recorder.events if event[:2] != ("evaluation", 4)]
    assert found[:5] == [
        ("step", 1),
        ("step", 2),
        ("save", 2, "best"),
        ("evaluation", 2, True),
        ("save", 2, "last"),
    ]
    assert recorder.events[5:7] == [("step", 3), ("step", 4)]
    assert recorder.events[-1] == ("save", 4, "last") and ("evaluation", 4) in [
        event[:2] for event in recorder.events
    ]
    with pytest.raises(KeyError, match="a mistake of mine"):
        train(tmp_path / "failed", callbacks=[Recorder(fail_at=3)])
    resumed = train(tmp_path / "failed", resume=True)
    assert resumed.metrics == json.loads((tmp_path / "run" / "metrics.json").read_text())
    for name in ("last/model.safetensors", "predictions.test.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (resumed.folder / name).read_bytes()


def test_an_own_metric_selects_the_model(tmp_path: Path) -> None:
    # the check, two evaluations, and at the end
    scores = itertools.chain([0.5, 0.1, 0.7], itertools.repeat(0.3))

    def chosen(gold: list, predicted: list) -> float:
        return next(scores)

    metric = finetune.CustomMetric(chosen, lower_is_better=True)
    recorder = Recorder()
    train(tmp_path / "run", metrics={"mine": metric}, metric="mine", callbacks=[recorder])
    assert [e for e in recorder.events if e[0] == "evaluation"] == [
        ("evaluation", 2, True),
        ("evaluation", 4, False),
    ]


def test_other_callbacks_and_metrics_are_refused(tmp_path: Path) -> None:
    for other in ([None], [finetune.Callback], finetune.Callback(), [print]):
        with pytest.raises(UserError, match="callbacks must be a list of objects"):
            train(tmp_path / "run", callbacks=other)
    for metrics in ([len], {"mine": 3}):
        with pytest.raises(UserError, match="metrics must be a dict of functions"):
            train(tmp_path / "run", metrics=metrics)


def test_own_metrics_of_a_file_train_compare_and_report(own: Path, tmp_path: Path) -> None:
    names = [f"{own}:{n}" for n in ("accuracy_of_mine", "errors", "squares")]
    run = train(tmp_path / "a", custom_metrics=tuple(names), metric="errors")
    test = run.metrics["test"]
    assert test["accuracy_of_mine"] == pytest.approx(test["accuracy"]) == 1 - test["errors"]
    rows = read_jsonl(run.folder / "predictions.test.jsonl")
    expected = np.mean([(1 - row["scores"][row["gold"]]) ** 2 for row in rows])
    assert test["squares"] == pytest.approx(expected, abs=1e-5)
    assert "accuracy_of_mine" in (run.folder / "report.html").read_text()
    other = train(tmp_path / "b", seed=2, steps=1)
    sides = str(run.folder), str(other.folder)
    plain = compare_systems(*sides, options=ComparisonOptions(metric="accuracy", resamples=200))
    own = compare_systems(*sides, options=ComparisonOptions(metric=names[0], resamples=200))
    assert own.result == plain.result and own.metric == "accuracy_of_mine"
    lower = compare_systems(*sides, options=ComparisonOptions(metric=names[1], resamples=50))
    assert lower.lower_is_better
    assert lower.result.difference.value == pytest.approx(-plain.result.difference.value)


def test_errors_of_own_metrics(own: Path, tmp_path: Path):
    with pytest.raises(CustomFunctionError, match="broken raised TypeError") as error:
        train(tmp_path / "run", custom_metrics=(f"{own}:broken",))
    assert isinstance(error.value.__cause__, TypeError)
    outcome = fx.train("classify", tmp_path / "other", custom_metrics=f"{own}:broken")
    named = f"error: the metric {own}:broken raised"
    printed = outcome.refused('gold[0]["no such key"]', named).err
    assert "please report" not in printed
    with pytest.raises(CustomFunctionError, match=r"the metric .*own\.py:unnamed raised Zero"):
        train(tmp_path / "run", custom_metrics=(f"{own}:unnamed",))
    with pytest.raises(CustomFunctionError, match="the metric mine raised IndexError"):
        train(tmp_path / "run", metrics={"mine": lambda gold, predicted: gold[10**6]})
    leaving = CustomMetric(lambda gold, predicted: sys.exit(0))
    with pytest.raises(CustomFunctionError, match="raised SystemExit"):
        leaving(["a"], ["a"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": {"mine": lambda g, p: float("nan")}}, "returned nan: return a finite number"),
        ({"metrics": {"mine": lambda g, p: "high"}}, "returned 'high'"),
        ({"metrics": {"mine": lambda g, p: 10**400}}, "returned 10{59}: return a finite number"),
        ({"metrics": {"accuracy": lambda g, p: 1.0}}, "'accuracy' needs another name"),
        ({"custom_metrics": ("own:f",)}, "must be FILE.py:FUNCTION"),
        ({"custom_metrics": ("none.py:f",)}, "no such file"),
        ({"custom_metrics": ("OWN:nothing",)}, "there is no function 'nothing'"),
    ],
)
def test_wrong_metrics(settings: dict, message: str, own: Path, tmp_path: Path):
    if "custom_metrics" in settings:
        settings = {"custom_metrics": (settings["custom_metrics"][0].replace("OWN", str(own)),)}
    with pytest.raises(finetune.UserError, match=message):
        train(tmp_path / "run", **settings)


def test_other_processes_get_no_results_of_methods(monkeypatch: pytest.MonkeyPatch):
    results: list[object] = []
    monkeypatch.setattr(callbacks, "on_main_process", lambda call: results.append(call()))
    callbacks.notify([results.append], "event")
    assert results == ["event", None]
