"""Averages of weights equal plain loops over the weights of each step, and change no training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import finetune
from finetune import CustomMetric
from finetune.config.tasks import ClassifyConfig, TrainConfig
from finetune.tasks import load_task
from finetune.training.trainer import fit
from finetune.types import UserError
from tests import small_data as data
from tests.tiny import save_tiny_checkpoint
from tests.training.test_trajectory import config_of

AVERAGES = (
    {"average": "ema"},
    {"average": "ema:0.3"},
    {"average": "tail:2"},
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("average")
    save_tiny_checkpoint(folder / "bert", "bert", dropout=0.1)
    data.sentiment(folder / "sentiment")
    data.entities(folder / "entities", words=3)
    return folder


class Weights(finetune.Callback):
    """Copies the whole state of a model after each step."""

    def __init__(self, head: torch.nn.Module) -> None:
        self.head = head
        self.steps = [self.copy()]

    def copy(self) -> dict[str, torch.Tensor]:
        return {n: value.detach().double().clone() for n, value in self.head.state_dict().items()}

    def on_step(self, event) -> None:
        self.steps.append(self.copy())


def reference(config: TrainConfig, steps: list[dict[str, torch.Tensor]]) -> dict:
    """Return the average of the weights before step 1, after step 1, …, by a plain loop."""
    kind, _, number = config.average.partition(":")
    if kind == "tail":
        evaluated = steps[config.eval_every :: config.eval_every][-int(number) :]
        return {name: sum(each[name] for each in evaluated) / len(evaluated) for name in steps[0]}
    average = dict(steps[0])
    decay_of_long_runs = float(number or 0.999)
    for step, weights in enumerate(steps[1:], 1):
        decay = min(decay_of_long_runs, (1 + step) / (10 + step))
        average = {n: decay * average[n] + (1 - decay) * weights[n] for n in average}
    return average


@pytest.mark.parametrize(
    ("average", "tuning", "sparse"),
    [
        (AVERAGES[0], "full", "on"),
        (AVERAGES[1], "bitfit", "off"),
        (AVERAGES[2], "full", "on"),
        pytest.param(AVERAGES[1], "full", "off", marks=pytest.mark.slow),
        pytest.param(AVERAGES[2], "bitfit", "off", marks=pytest.mark.slow),
    ],
)
def test_the_saved_average_equals_a_plain_loop(
    average: dict, tuning: str, sparse: str, place: Path, tmp_path: Path
):
    """Also of the embeddings that training leaves to their weight decay."""
    config = config_of(
        "classify",
        place,
        tmp_path / "run",
        steps=8,
        eval_every=2,
        weight_decay=5.0,
        tuning=tuning,
        validation="none",
        sparse_embeddings=sparse,
        **average,
    )
    task, dataset = load_task(config, "classify")
    head = task.head()
    recorded = Weights(head)
    fit(task, dataset, config, head=head, callbacks=[recorded])
    expected = reference(config, recorded.steps)
    saved = load_file(tmp_path / "run" / "best" / "model.safetensors")
    last = load_file(tmp_path / "run" / "last" / "model.safetensors")
    for name, value in saved.items():
        other = expected[next(n for n in expected if n.endswith(name))]
        torch.testing.assert_close(value.double(), other, rtol=1e-5, atol=1e-6, msg=name)
    assert any(not torch.equal(value, last[name]) for name, value in saved.items())


def squares(gold: list, predicted: list) -> float:
    return sum((1 - scores[label]) ** 2 for label, scores in zip(gold, predicted, strict=True))


SQUARES = {"squares": CustomMetric(squares, lower_is_better=True, probabilities=True)}


@pytest.mark.parametrize(
    ("kind", "average", "metric"),
    [("classify", AVERAGES[1], "squares"), ("ner", AVERAGES[2], "span_f1_strict")],
)
def test_an_average_changes_no_step_and_the_better_weights_are_kept(
    kind: str, average: dict, metric: str, place: Path, tmp_path: Path
):
    metrics = SQUARES if metric in SQUARES else {}
    plain = config_of(kind, place, tmp_path / "plain", steps=12, eval_every=2, metric=metric)
    fit(*load_task(plain, kind), plain, metrics=metrics)
    config = replace(plain, out=str(tmp_path / "average"), **average)
    result = fit(*load_task(config, kind), config, metrics=metrics)
    runs = [tmp_path / name for name in ("plain", "average")]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (runs[0] / "last" / name).read_bytes() == (runs[1] / "last" / name).read_bytes()
    lines = [
        [each for each in map(json.loads, (run / "log.jsonl").open()) if "split" in each]
        for run in runs
    ]
    sign = -1 if metrics else 1
    for before, line in zip(*lines, strict=True):
        if "averaged" in line:  # all but the first of a tail
            both = line[f"{metric}_averaged"], line[f"{metric}_plain"]
            assert both[1] == before[metric]
            assert line["averaged"] == (sign * both[0] > sign * both[1])
            assert line[metric] == sign * max(sign * each for each in both)
    first, *others = [line.get("averaged") for line in lines[1]]
    assert (first is None) == config.average.startswith("tail") and None not in others
    if metrics:  # accuracy and F1 of so few examples are often equal
        assert {*others} == {0.0, 1.0}
    kept = lines[1][max(range(6), key=lambda index: (sign * lines[1][index][metric], index))]
    assert result.metrics["validation"][metric] == pytest.approx(kept[metric], abs=1e-6)
    assert result.metrics["validation"]["averaged"] == kept.get("averaged", 0.0)
    assert json.loads((runs[1] / "metrics.json").read_text()) == result.metrics


def test_few_shot_fits_its_classifier_to_both(place: Path, tmp_path: Path):
    config = ClassifyConfig(
        model=str(place / "bert"),
        data=str(place / "sentiment"),
        out=str(tmp_path / "run"),
        few_shot=True,
        per_class=4,
        steps=4,
        eval_every=2,
        average="ema:0.5",
    )
    task, dataset = load_task(config, "classify")
    result = fit(task, dataset, config)
    assert result.metrics["validation"]["averaged"] in (0.0, 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"average": "tail:1"}, "--average must be none, .* of 2 or more, not 'tail:1'"),
        ({"average": "ema:1.0"}, "--average must be none, .* not 'ema:1.0'"),
        ({"average": "ema:0.0"}, "--average must be none"),
        ({"average": "ema", "few_shot": True, "tuning": "head"}, "leave --average out"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict, message: str):
    with pytest.raises(UserError, match=message):
        ClassifyConfig(**settings)
