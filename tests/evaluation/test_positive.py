"""The positive class of two labels, the same wherever F1 is told."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score
from transformers import EvalPrediction

from finetune.config.tasks import NliConfig
from finetune.evaluation.hf_trainer import compute_metrics
from finetune.evaluation.metrics import positive_label
from finetune.tasks.text_classification import NliTask, TextClassificationTask, TextRecord
from finetune.types import LabelSet, TextExample, TextPrediction
from tests.command import run
from tests.small_data import write_jsonl

GLUE = {  # positive class first, by the names of the hub
    "cola": ("acceptable", "unacceptable"),
    "sst2": ("positive", "negative"),
    "mrpc": ("equivalent", "not_equivalent"),
    "qqp": ("duplicate", "not_duplicate"),
    "qnli, rte, wnli": ("entailment", "not_entailment"),
}


@pytest.mark.parametrize("positive, negative", [
    *GLUE.values(),
    ("hate", "non-hate"), ("irony", "non_irony"), ("Toxic", "not toxic"), ("event", "no-event"),
    ("offensive", "NotOffensive"), ("known", "UNKNOWN"), ("relevant", "non relevant"),
    ("yes", "no"), ("Yes", "NO"), ("true", "false"), ("pos", "neg"), ("1", "0"), ("1", "-1"),
    ("+", "-"),
    # no such pair: the last in order, of numbers the larger
    ("entailment", "contradiction"), ("spam", "ham"), ("LABEL_1", "LABEL_0"), ("10", "9"),
    ("2", "1"), ("no", "maybe"),
])  # fmt: skip
def test_pairs(positive: str, negative: str):
    assert positive_label([positive, negative]) == positive_label((negative, positive)) == positive


@pytest.mark.parametrize("labels", [["a"], ["a", "a"], ["a", "b", "c"]])
def test_other_numbers_of_labels(labels: list[str]):
    with pytest.raises(ValueError, match="one of two labels"):
        positive_label(labels)


def in_training(task: type[TextClassificationTask], gold: list[str], answers: list[str]) -> float:
    """As at every evaluation; the score that selects models under --metric f1."""
    labels = LabelSet(task.order(set(gold)))
    record = TextRecord(config=NliConfig(), labels=labels, max_length=8, problem="single")
    rows = [TextExample(i, "x", None, label, "") for i, label in enumerate(gold)]
    predicted = [TextPrediction(i, label) for i, label in enumerate(answers)]
    return task(record, tokenizer=None).score(rows, predicted)["f1"]


def in_the_trainer(labels: list[str], gold: list[str], answers: list[str]) -> float:
    sides = [np.array([labels.index(name) for name in side]) for side in (answers, gold)]
    return compute_metrics(labels)(EvalPrediction(*sides))["f1"]


@pytest.mark.parametrize("positive, negative", GLUE.values(), ids=GLUE)
def test_f1_of_glue_is_scikit_learns_in_every_command(
    positive: str, negative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(3)
    gold = [rng.choice([positive, positive, negative]) for _ in range(60)]
    answers = [label if rng.random() < 0.7 else negative for label in gold]
    expected = pytest.approx(f1_score(gold, answers, pos_label=positive))
    assert f1_score(gold, answers, pos_label=negative) != expected
    for task in (TextClassificationTask, NliTask):
        assert in_training(task, gold, answers) == expected
    for labels in ([positive, negative], [negative, positive]):
        assert in_the_trainer(labels, gold, answers) == expected
    write_jsonl(tmp_path / "gold.jsonl", [{"text": "x", "label": label} for label in gold])
    write_jsonl(tmp_path / "answers.jsonl", [{"label": label} for label in answers])
    assert json.loads(run("score", "answers.jsonl", "gold.jsonl").out)["f1"] == expected
    found = json.loads(run("analyze", "answers.jsonl", "gold.jsonl", "--json").out)
    assert found["scores"]["f1"] == expected
    compared = run("compare", "answers.jsonl", "answers.jsonl", "--gold", "gold.jsonl", "--metric",
                   "f1", "--resamples", "20", "--json")  # fmt: skip
    assert json.loads(compared.out)["a"]["value"] == expected


def test_order_of_nli_labels_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    gold, answers = ["entailment", "contradiction"] * 4, ["entailment"] * 5 + ["contradiction"] * 3
    write_jsonl(tmp_path / "gold.jsonl", [{"text": "x", "label": label} for label in gold])
    write_jsonl(tmp_path / "answers.jsonl", [{"label": label} for label in answers])
    assert NliTask.order(set(gold)) == ["entailment", "contradiction"]
    scored = json.loads(run("score", "answers.jsonl", "gold.jsonl").out)["f1"]
    assert in_training(NliTask, gold, answers) == scored
    assert scored == pytest.approx(f1_score(gold, answers, pos_label="entailment"))
