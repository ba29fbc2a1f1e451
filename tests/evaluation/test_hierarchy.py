"""Hierarchical labels: scores against scikit-learn's, and the commands that read predictions."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support
from sklearn.preprocessing import MultiLabelBinarizer

import finetune
from finetune.evaluation.metrics import score
from finetune.evaluation.prediction_types import TYPES
from finetune.types import TextExample, TextPrediction
from tests import fixtures as fx
from tests.command import run
from tests.covering import few
from tests.small_data import read_jsonl, write_jsonl

PATHS = ("sport > football", "sport > football > women", "sport > tennis", "art", "art > film")


def tables(gold: Sequence[Any], predicted: Sequence[Any]) -> Any:
    prediction_type = "label" if isinstance(gold[0], str) else "labels"
    examples = [TextExample(i, "x", None, label) for i, label in enumerate(gold)]
    predictions = [TextPrediction(i, y, separator=" > ") for i, y in enumerate(predicted)]
    return TYPES[prediction_type].tables_of(examples, predictions, labels=PATHS)


def ancestors(label: Any) -> list[str]:
    names = [label] if isinstance(label, str) else label or ()
    levels = [name.split(" > ") for name in names]
    return [" > ".join(parts[: end + 1]) for parts in levels for end in range(len(parts))]


def test_one_label_against_scikit_learn() -> None:
    draw = random.Random(1)
    gold, predicted = ([draw.choice(PATHS) for _ in range(60)] for _ in range(2))
    found = score(tables(gold, predicted))
    binary = MultiLabelBinarizer().fit([ancestors(name) for name in PATHS])
    sides = [binary.transform(list(map(ancestors, side))) for side in (gold, predicted)]
    expected = precision_recall_fscore_support(*sides, average="micro")[:3]
    names = ("precision", "recall", "f1")
    assert [found[f"hierarchical_{name}"] for name in names] == pytest.approx(expected)
    for level in (1, 2, 3):
        cut = [[" > ".join(y.split(" > ")[:level]) for y in side] for side in (gold, predicted)]
        assert found[f"accuracy_level:{level}"] == pytest.approx(accuracy_score(*cut))
        macro = f1_score(*cut, average="macro")
        assert found[f"macro_f1_level:{level}"] == pytest.approx(macro)
    assert found["accuracy_level:3"] == found["accuracy"] and "accuracy_level:4" not in found


def test_several_labels_against_scikit_learn() -> None:
    draw = random.Random(2)
    gold, predicted = (
        [tuple(draw.sample(PATHS, draw.randrange(4))) for _ in range(60)] for _ in range(2)
    )
    found = score(tables(gold, predicted))
    binary = MultiLabelBinarizer().fit([ancestors(PATHS)])
    sides = [binary.transform(list(map(ancestors, side))) for side in (gold, predicted)]
    assert found["hierarchical_f1"] == pytest.approx(f1_score(*sides, average="micro"))
    for level in (1, 2, 3):
        cut = [
            [{" > ".join(y.split(" > ")[:level]) for y in labels} for labels in side]
            for side in (gold, predicted)
        ]
        binary = MultiLabelBinarizer().fit(cut[0] + cut[1])
        sides = list(map(binary.transform, cut))
        for average in ("micro", "macro"):
            expected = f1_score(*sides, average=average)
            assert found[f"{average}_f1_level:{level}"] == pytest.approx(expected)


def test_a_blank_text_and_a_sibling() -> None:
    """Paper: a sibling shares all ancestors but itself; no prediction has no ancestors."""
    found = score(tables(["sport > football", "art"], ["sport > tennis", None]))
    assert found["hierarchical_precision"] == pytest.approx(1 / 2)
    assert found["hierarchical_recall"] == pytest.approx(1 / 3)
    assert found["accuracy_level:1"] == pytest.approx(1 / 2)


def written(folder: Path, several: bool = False) -> Path:
    """Texts that name the levels of their labels."""
    for split, size in {"train": 40, "validation": 20, "test": 20}.items():
        paths = [
            f"{'good' if i % 2 else 'bad'}/{'film' if i % 4 < 2 else 'room'}" for i in range(size)
        ]
        rows = [
            {"text": path.replace("/", " ") + f" {i}", "label": [path] if several else path}
            for i, path in enumerate(paths)
        ]
        write_jsonl(folder / f"{split}.jsonl", rows)
    return folder


@pytest.mark.parametrize("several", few([False, True], True))
def test_every_command_knows_the_levels(tmp_path: Path, several: bool) -> None:
    data, out = written(tmp_path / "data", several), tmp_path / "run"
    settings = {"data": data, "label_separator": "/", "metric": "hierarchical_f1", "steps": 12}
    settings |= {"problem": "multi" if several else "single"}
    trained = fx.train("classify", out, **settings).ok()
    saved = json.loads((out / "metrics.json").read_text())["test"]
    (main,) = {"accuracy", "micro_f1"} & {*saved}
    assert f"{main}_level:1 {saved[f'{main}_level:1']:.4f}" in trained.out
    assert saved[f"{main}_level:2"] == saved[main] and "hierarchical_f1" in saved
    rows = read_jsonl(out / "predictions.test.jsonl")
    assert rows[0]["label_separator"] == "/"
    assert {*rows[0]["scores"]} == {"bad/film", "bad/room", "good/film", "good/room"}

    again = run("score", out / "predictions.test.jsonl", data / "test.jsonl", "--format", "json")
    assert json.loads(again.ok().out) == pytest.approx(saved)
    predicted = tmp_path / "predicted.jsonl"
    run("predict", out, "--file", data / "test.jsonl", "--out", predicted).ok()
    again = run("score", predicted, data / "test.jsonl", "--format", "json").ok()
    assert json.loads(again.out) == pytest.approx(saved)
    (answer,) = finetune.load(out).predict(["good film"])
    assert answer.separator == "/" and answer.to_dict()["label_separator"] == "/"

    for metric in ("hierarchical_f1", f"{main}_level:1", "macro_f1_level:1"):
        settings = ["--metric", metric, "--resamples", "20", "--format", "json"]
        compared = json.loads(run("compare", out, predicted, *settings).ok().out)
        assert compared["a"]["value"] == compared["b"]["value"] == pytest.approx(saved[metric])
    assert "hierarchical_f1" in (out / "report.html").read_text("utf-8")
    goal = ["--metric", "macro_f1"] if several else ["--risk", "0.99"]
    run("thresholds", out, *goal, "--dry-run").ok()


@pytest.mark.parametrize(
    ("label", "other", "separator", "message"),
    [
        ("good", "bad", "/", "no label has levels (bad, good)"),
        ("good//film", "bad", "/", "'good//film' has an empty level"),
        (1.5, 2.5, "/", "are numbers, not classes"),
        ("good/film", "bad", "", "at least one character"),
    ],
)
def test_wrong_separators(
    tmp_path: Path, label: Any, other: Any, separator: str, message: str
) -> None:
    rows = [{"text": f"text {i}", "label": label if i % 2 else other} for i in range(8)]
    data = write_jsonl(tmp_path / "train.jsonl", rows)
    found = fx.train("classify", tmp_path / "run", data=data, label_separator=separator)
    found.refused(message)
