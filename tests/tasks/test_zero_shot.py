"""Labels named at prediction: as transformers' zero-shot pipeline scores them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import pipeline

import finetune
from finetune.config.tasks import NliConfig
from finetune.data import Dataset
from finetune.tasks import load_task, save_task
from finetune.types import TextExample, UserError
from tests import tiny
from tests.command import run

TEXTS = ["The train from Paris was late.", "A man is playing a guitar.", "", "anna saw a dog. " * 5]
LABELS = {"music": "music and songs", "travel": "travel", "animals": "a dog"}


def _save_model(folder: Path, names: tuple[str, ...], **settings) -> Path:
    source = str(tiny.save_tiny_checkpoint(folder / "pretrained", "bert"))
    rows = [TextExample(i, "a dog", "an animal", name) for i, name in enumerate(names * 2)]
    data = Dataset("pairs", {"train": rows, "validation": rows})
    config = NliConfig(model=source, precision="fp32", **settings)
    task, _ = load_task(config, "nli", data)
    head = task.head()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    head.save_pretrained(folder / "best")
    save_task(task, folder / "best")
    return folder / "best"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    names = ("entailment", "neutral", "contradiction")
    return _save_model(tmp_path_factory.mktemp("nli"), names)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("labels", [None, ("entailment", "not_entailment")])
def test_equal_to_the_pipeline_of_transformers(
    folder: Path, tmp_path: Path, labels: tuple[str, ...] | None, multi_label: bool
):
    folder = folder if labels is None else _save_model(tmp_path, labels)
    texts = [text for text in TEXTS if text]  # the pipeline refuses an empty text
    options = {"labels": LABELS, "template": "It is about {}.", "multi_label": multi_label}
    predicted = finetune.load(folder, **options).predict(texts)
    reference = pipeline("zero-shot-classification", model=str(folder), device="cpu")
    for text, prediction in zip(texts, predicted, strict=True):
        words = list(LABELS.values())
        expected = reference(
            text, words, hypothesis_template="It is about {}.", multi_label=multi_label
        )
        scores = dict(zip(expected["labels"], expected["scores"], strict=True))
        assert list(prediction.scores) == list(LABELS)
        np.testing.assert_allclose(
            list(prediction.scores.values()), [scores[each] for each in words], atol=1e-5
        )
        best = max(prediction.scores, key=prediction.scores.__getitem__)
        over = tuple(name for name in LABELS if prediction.scores[name] >= 0.5)
        assert prediction.label == (over if multi_label else best)


def test_each_text_alone_and_as_a_stream(folder: Path):
    together = finetune.load(folder, labels=LABELS).predict(TEXTS)
    alone = finetune.load(folder, labels=LABELS, batching="padded", max_tokens=1)
    for prediction, text in zip(together, TEXTS, strict=True):
        (same,) = alone.predict([text])
        assert same.label == prediction.label
        assert same.scores == pytest.approx(prediction.scores, abs=1e-5, nan_ok=True)
    stream = finetune.load(folder, labels=LABELS).stream(TEXTS)
    assert [each.label for each in stream] == [each.label for each in together]


def test_windows_of_a_hypothesis_are_averaged(tmp_path: Path):
    names = ("entailment", "neutral", "contradiction")
    folder = _save_model(tmp_path, names, max_length=24, long_text="window", overlap=0)
    (whole,) = finetune.load(folder, labels="a,b").predict([TEXTS[3] * 2])
    task = finetune.load(folder, labels="a,b").task
    encoded = task.encode([TextExample(0, TEXTS[3] * 2)])
    assert encoded.num_windows.tolist() == [len(encoded.sequences)] and len(encoded.sequences) >= 4
    assert sorted(encoded.sequences.part) == list(range(len(encoded.sequences)))
    assert sum(whole.scores.values()) == pytest.approx(1)


def test_command(folder: Path, tmp_path: Path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(text for text in TEXTS if text) + "\n")
    outcome = run("predict", folder, "--file", texts, "--labels", "music,animals=a dog")
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [list(row["scores"]) for row in rows] == [["music", "animals"]] * 3
    options = "--labels music,animals --multi-label --threshold 0".split()
    several = run("predict", folder, "--text", TEXTS[0], *options)
    assert json.loads(several.out)["label"] == ["music", "animals"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "sports"}, "two or more"),
        ({"labels": "a,,b"}, "empty"),
        ({"labels": "a,a"}, "given twice"),
        ({"labels": "a,b", "template": "nothing"}, "once, where the label goes"),
        ({"template": "It is {}."}, "--template applies to --labels"),
        ({"multi_label": True}, "--multi-label applies to --labels"),
        ({"labels": "a,b", "threshold": 2}, "must be from 0 to 1"),
    ],
)
def test_errors(folder: Path, options: dict, message: str):
    with pytest.raises(UserError, match=message):
        finetune.load(folder, **options)


def test_a_second_text_has_no_place_beside_labels(folder: Path):
    outcome = run("predict", folder, "--text", "a", "--pair", "b", "--labels", "x,y")
    outcome.refused("this model reads single texts and got a pair: leave the second text out")


def test_another_model_is_refused(tmp_path: Path):
    folder = _save_model(tmp_path, ("equal", "different"))
    with pytest.raises(UserError, match=r"a label entailment.*different"):
        finetune.load(folder, labels="a,b")


def test_decisions_on_other_labels_are_left_out(folder: Path, tmp_path: Path):
    copied = shutil.copytree(folder, tmp_path / "decided")
    path = copied / "finetune.json"
    record = json.loads(path.read_text())
    names = ("entailment", "neutral", "contradiction")
    costs = {gold: dict.fromkeys(names, 1.0) for gold in names}
    record["extra"]["decisions"] = {"costs": costs, "confidence": 0.999, "distance": 0.001}
    path.write_text(json.dumps(record))
    found = finetune.load(copied, labels=LABELS).predict(TEXTS)
    assert [each.record() for each in found] == [
        each.record() for each in finetune.load(folder, labels=LABELS).predict(TEXTS)
    ]
