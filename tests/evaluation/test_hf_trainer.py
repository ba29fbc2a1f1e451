"""The scores in other libraries: evaluate, and the Trainer of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest
from seqeval.metrics import f1_score
from sklearn.metrics import f1_score as class_f1
from transformers import AutoModelForTokenClassification, EvalPrediction, Trainer, TrainingArguments

import finetune
from finetune.evaluation.evaluate_modules import SPAN_F1
from finetune.types import UserError
from tests.tiny import save_tiny_checkpoint

GOLD = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC"], ["O"]]
ANSWERS = [["B-PER", "I-PER", "O", "I-LOC"], ["B-PER", "B-LOC"], ["O"]]
LABELS = ["O", "I-PER", "B-PER", "I-LOC", "B-LOC"]


def test_evaluate_of_tags(tmp_path: Path):
    metric = evaluate.load(SPAN_F1, cache_dir=str(tmp_path))
    scores = metric.compute(predictions=ANSWERS, references=GOLD)
    assert scores["span_f1_conll"] == pytest.approx(f1_score(GOLD, ANSWERS))
    assert scores["span_f1_strict"] < scores["span_f1_conll"]
    assert scores["span_f1_conll:LOC"] == 1.0 and scores["span_f1_conll:PER"] < 1
    outside = metric.compute(predictions=[["S-PER"]], references=[["O"]], scheme="BIOES")
    assert outside["span_f1_conll"] == 0.0
    for answer, gold in zip(ANSWERS, GOLD, strict=True):
        metric.add(prediction=answer, reference=gold)
    assert metric.compute() == scores


def test_evaluate_refuses(tmp_path: Path):
    with pytest.raises(ValueError, match="do not spell entities"):
        evaluate.load(SPAN_F1, cache_dir=str(tmp_path)).compute(
            predictions=[["N"]], references=[["N"]]
        )


def evaluated(predictions: Any, label_ids: Any) -> Any:
    return EvalPrediction(predictions=predictions, label_ids=np.array(label_ids))


def test_tags_of_arrays():
    """Padding and further pieces do not count; the scores are those of the words."""
    ids = np.full((3, 7), -100)
    logits = np.random.default_rng(0).normal(size=(3, 7, 5))
    for row, (gold, answers) in enumerate(zip(GOLD, ANSWERS, strict=True)):
        positions = np.arange(1, len(gold) + 1) + (row == 0)  # a piece in front in the first
        ids[row, positions] = [LABELS.index(tag) for tag in gold]
        logits[row, positions, [LABELS.index(tag) for tag in answers]] = 9.0
    compute = finetune.compute_metrics(LABELS)
    scores = compute(evaluated(logits, ids))
    assert scores["span_f1_conll"] == pytest.approx(f1_score(GOLD, ANSWERS))
    assert compute(evaluated((logits, "hidden"), ids)) == scores
    assert compute(evaluated(logits.argmax(-1), ids)) == scores
    assert compute((logits, ids)) == compute(evaluated(logits, ids))
    plain = finetune.compute_metrics(LABELS, scheme=None)(evaluated(logits, ids))
    assert plain["accuracy"] == scores["tag_accuracy"]
    assert "accuracy" in finetune.compute_metrics(["DET", "NOUN"])(
        evaluated(np.zeros((1, 2, 2)), [[0, 1]])
    )


def test_labels_sets_and_numbers_of_arrays():
    compute = finetune.compute_metrics(["a", "b", "c"])
    logits, gold = np.eye(3)[[0, 1, 1, 2]], [0, 1, 2, 2]
    assert compute(evaluated(logits, gold))["macro_f1"] == pytest.approx(
        class_f1(gold, [0, 1, 1, 2], average="macro")
    )
    several = compute(evaluated([[2.0, -1, 3], [-1, -1, 0.5]], [[1.0, 0, 0], [0, 0, 1]]))
    assert several["micro_f1"] == pytest.approx(0.8)
    number = finetune.compute_metrics(["score"])
    assert number(evaluated([[1.0], [2.0], [4.0]], [1.0, 2.0, 3.0]))["mse"] == pytest.approx(1 / 3)


def test_what_is_refused():
    with pytest.raises(ValueError, match="3 classes, but compute_metrics was given 2"):
        finetune.compute_metrics(["a", "b"])(evaluated(np.eye(3), [0, 1, 2]))
    with pytest.raises(ValueError, match="shape"):
        finetune.compute_metrics(["a", "b"])(evaluated(np.eye(3), [[0]]))
    for logits, gold in ((np.eye(2), [0, -1]), (np.eye(2), [0, 2]), ([[0, -100]], [[0, 1]])):
        with pytest.raises(UserError, match="is none of the 2 labels, which are numbered from 0"):
            finetune.compute_metrics(["O", "B-A"])(evaluated(logits, gold))
    with pytest.raises(ValueError, match="not in the scheme BIO"):
        finetune.compute_metrics(["O", "S-PER"], scheme="BIO")
    for labels in ({0: "a", 1: "b"}, "ab"):
        with pytest.raises(UserError, match="labels must be a list of texts"):
            finetune.compute_metrics(labels)
    with pytest.raises(UserError, match="logits are NaN"):
        finetune.compute_metrics(["a", "b"])(evaluated([[0.0, np.nan]], [0]))


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ([[0.5, -1.0]], [[1, 0]]),  # several labels as integers
        ([[1, 0]], [[1.0, 0.0]]),  # chosen labels, no logits
        ([[True, False]], [[1.0, 0.0]]),
        ([[1.5], [2.5]], [[1.0], [3.0]]),  # numbers [N, 1]
    ],
)
def test_arrays_of_another_meaning_have_no_scores(predicted: Any, gold: Any):
    with pytest.raises(UserError, match="labels as floats 0 and 1"):
        finetune.compute_metrics(["a", "b"][: len(gold[0])])(evaluated(predicted, gold))


def test_in_the_trainer(tmp_path: Path):
    save_tiny_checkpoint(tmp_path / "bert", "bert")
    model = AutoModelForTokenClassification.from_pretrained(
        tmp_path / "bert", num_labels=len(LABELS)
    )
    rows = [
        {"input_ids": [2, 8, 9, 10, 3], "attention_mask": [1] * 5, "labels": [-100, 2, 1, 0, -100]}
    ]
    arguments = TrainingArguments(
        str(tmp_path / "out"), use_cpu=True, report_to=[], disable_tqdm=True
    )
    trainer = Trainer(model, arguments, compute_metrics=finetune.compute_metrics(LABELS))
    logits, _, found = trainer.predict(rows * 3, metric_key_prefix="eval")
    right = logits.argmax(-1)[0, 1:4] == [2, 1, 0]
    assert found["eval_tag_accuracy"] == pytest.approx(right.mean())
    assert "eval_span_f1_conll" in found
