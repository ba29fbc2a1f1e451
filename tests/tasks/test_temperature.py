"""`--calibrate temperature`: fitted, kept, applied, and never changing an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import finetune
from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.tasks import load_task, saved_task
from finetune.tasks.calibration import calibrate
from finetune.training.trainer import fit
from finetune.types import TextExample, TextPrediction, WindowOutput
from tests import fixtures as fx
from tests.covering import few
from tests.small_data import read_jsonl, write_jsonl

WORDS = "the train from paris to berlin was late and nobody knew why".split()


def texts(number: int, seed: int, several: bool = False) -> list[dict]:
    """Labels that a word says, but for a third that are drawn: nobody can be sure of them."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        words = [str(word) for word in rng.choice(WORDS, 5)]
        label = "late" if "late" in words or "train" in words else "early"
        if rng.random() < 0.35:
            label = str(rng.choice(["late", "early", "never"]))
        text = " ".join(words)
        rows.append({"text": text, "label": [label] if several else label})
    return rows


def tagged(number: int, seed: int) -> list[dict]:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        words = [str(word) for word in rng.choice(WORDS, 6)]
        tags = ["B-LOC" if word in ("paris", "berlin") else "O" for word in words]
        tags = [
            str(rng.choice(["O", "B-LOC", "B-PER"])) if rng.random() < 0.3 else tag for tag in tags
        ]
        rows.append({"tokens": words, "tags": tags})
    return rows


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("temperature")
    for split, number, seed in (("train", 60, 1), ("validation", 80, 2), ("test", 80, 3)):
        write_jsonl(folder / "single" / f"{split}.jsonl", texts(number, seed))
        write_jsonl(folder / "multi" / f"{split}.jsonl", texts(number, seed, several=True))
        write_jsonl(folder / "tag" / f"{split}.jsonl", tagged(number, seed))
    return folder


def configured(workdir: Path, name: str, out: Path, **changes: Any) -> tuple[TrainConfig, str]:
    task = "tag" if name == "tag" else "classify"
    model, data = str(fx.checkpoint(dropout=0.0, num_hidden_layers=2)), str(workdir / name)
    changes |= {"steps": 40, "eval_every": 40, "lr": 5e-3, "precision": "fp32"}
    config = CONFIGS[task](model=model, data=data, out=str(out), calibrate="temperature", **changes)
    return config, task


@pytest.mark.parametrize("name", few(["single", "multi", "tag"], "single", "tag"))
def test_fitted_kept_and_applied(workdir: Path, tmp_path: Path, name: str):
    config, task_name = configured(workdir, name, tmp_path / "run")
    torch.manual_seed(3)
    task, dataset = load_task(config, task_name)
    result = fit(task, dataset, config)
    temperature = result.task.state.temperature
    assert task.state.temperature is None, "the task given is as it was"
    assert temperature != pytest.approx(1.0, abs=1e-3)
    metrics = result.metrics["test"]
    if name != "multi":  # sure of a third of labels that were drawn
        assert temperature > 1.1 and metrics["ece"] < metrics["ece_uncalibrated"]
    assert any("temperature" in note for note in result.notes)
    assert saved_task(result.folder).state.temperature == temperature
    rows = read_jsonl(result.folder / "predictions.test.jsonl")
    model = finetune.load(result.folder)
    data = read_jsonl(workdir / name / "test.jsonl")
    inputs = [row.get("tokens", row.get("text")) for row in data]
    answers = model.predict(inputs)
    model.task = at(model.task, None)
    plain = model.predict(inputs)
    for row, answer, without in zip(rows, answers, plain, strict=True):
        values, other = answer.to_dict(), without.to_dict()
        assert (values.get("label"), values.get("tags")) == (other.get("label"), other.get("tags"))
        for key in ("score", "scores"):
            if key in row:
                assert values[key] == pytest.approx(row[key], abs=1e-4)
                assert values[key] != pytest.approx(other[key], abs=1e-4)
    again, _ = configured(workdir, name, tmp_path / "run", resume=True)
    assert fit(*load_task(again, task_name), again).metrics == result.metrics


def at(task: Any, temperature: float | None) -> Any:
    """The task with another temperature."""
    return replace(task, state=replace(task.state, temperature=temperature))


@pytest.fixture
def task(workdir: Path, tmp_path: Path) -> Any:
    return load_task(*configured(workdir, "single", tmp_path / "run"))[0]


def decided(task: Any, probabilities: np.ndarray) -> list[TextPrediction]:
    """The predictions of a task for texts with these probabilities [N, C]."""
    scores = [dict(zip(task.state.labels, row.tolist(), strict=True)) for row in probabilities]
    raw = [TextPrediction(id, None, scores=of_text) for id, of_text in enumerate(scores)]
    return [task.state.decide(prediction) for prediction in raw]


def test_windows_are_averaged_before_the_temperature(task: Any):
    """The best label of averaged windows stays the best, which tempering each would not grant."""
    example = TextExample(0, "x")
    windows = [[0.98, 0.01, 0.01], [0.2, 0.79, 0.01], [0.2, 0.79, 0.01]]
    outputs = [WindowOutput(index, np.array(values)) for index, values in enumerate(windows)]
    before = task.postprocess(example, outputs)
    after = at(task, 0.3).postprocess(example, outputs)
    assert before.label == after.label and after.score > before.score
    powers = np.mean(windows, axis=0) ** (1 / 0.3)
    assert list(after.scores.values()) == pytest.approx(list(powers / powers.sum()))


def test_errors_with_and_without(task: Any):
    gold = [TextExample(i, "x", label=label) for i, label in enumerate(["early", "late"])]
    probabilities = np.array([[0.9, 0.05, 0.05], [0.9, 0.05, 0.05]])
    plain = decided(task, probabilities)
    assert "ece" not in task.score(gold, plain)
    task = at(task, 4.0)
    scores = task.score(gold, decided(task, probabilities))
    assert scores["ece_uncalibrated"] == pytest.approx(0.4)
    root = probabilities[0] ** 0.25
    assert scores["ece"] == pytest.approx(abs(root[0] / root.sum() - 0.5))


def test_rows_without_gold_do_not_matter_and_the_task_stays_as_it_was(task: Any):
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([0.3] * 3, 200)
    gold = [TextExample(i, "x", label=str(rng.choice(list(task.state.labels)))) for i in range(200)]
    predicted = decided(task, probabilities)
    fitted, after, _ = calibrate(task, gold, predicted)
    assert [p.label for p in after] == [p.label for p in predicted]
    assert decided(task, probabilities) == predicted
    other = TextPrediction(200, "late", 1.0, dict.fromkeys(task.state.labels, 1 / 3))
    again, *_ = calibrate(task, [*gold, TextExample(200, "x")], [*predicted, other])
    assert again.state.temperature == pytest.approx(fitted.state.temperature, rel=1e-6)


def test_predictions_of_validation_are_cross_fitted(task: Any):
    """The temperature of all examples fits them better than that of the other half."""
    rng = np.random.default_rng(0)
    labels = list(task.state.labels)
    gold = [TextExample(i, f"{i}", label=str(rng.choice(labels))) for i in range(60)]
    predicted = decided(task, rng.dirichlet([0.3] * 3, 60))
    fitted, crossed, note = calibrate(task, gold, predicted)
    same = [fitted.state.decide(prediction) for prediction in predicted]
    loss, best = (
        -sum(np.log(p.scores[e.label]) for e, p in zip(gold, each, strict=True))
        for each in (crossed, same)
    )
    assert loss > best and "fitted on the other half" in note
    errors = task.score(gold, same), fitted.score(gold, crossed), fitted.score(gold, same)
    assert "ece" not in errors[0] and errors[1]["ece"] != errors[2]["ece"]
    assert errors[1]["ece_uncalibrated"] == errors[2]["ece_uncalibrated"]
