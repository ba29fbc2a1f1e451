"""Label issues from the predictions of models: by hand, and planted ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finetune.annotation.label_errors import (
    confident_joint,
    decisions_of,
    find_label_issues,
    read_folds,
)
from finetune.types import TextExample
from tests.small_data import write_jsonl


def issues_of(probabilities: np.ndarray, labels: np.ndarray) -> list[tuple[int, int]]:
    """The index of each text whose label is probably wrong, and the suggested class."""
    names = [str(number) for number in range(probabilities.shape[1])]
    examples = [TextExample(i, str(i), label=names[label]) for i, label in enumerate(labels)]
    issues = find_label_issues(examples, decisions_of(examples, names, probabilities))
    return [(int(issue["text"]), int(issue["suggested"])) for issue in issues]


def test_by_hand():
    """Thresholds are (0.9 + 0.8 + 0.1) / 3 = 0.6 for "no" and (0.7 + 0.5) / 2 = 0.6 for "yes"."""
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.5, 0.5]])
    labels = ["no", "no", "no", "yes", "yes"]
    examples = [
        TextExample(i, f"text {i}", "pair", label, where=f"a.jsonl:{i + 1}")
        for i, label in enumerate(labels)
    ]
    issues = find_label_issues(examples, decisions_of(examples, ["no", "yes"], probabilities))
    assert issues == [
        {
            "where": "a.jsonl:3",
            "given": "no",
            "suggested": "yes",
            "confidence": 0.9,
            "given_confidence": 0.1,
            "text": "text 2 ||| pair",
        }
    ]
    given = np.array([0, 0, 0, 1, 1])
    joint = confident_joint(probabilities, given)
    assert (np.trace(joint), joint[0, 1]) == (pytest.approx(0.8), pytest.approx(0.2))
    probabilities[4] = 0.62, 0.38  # now 0.54 for class 1, and the last is confidently of class 0
    assert issues_of(probabilities, given) == [(2, 1), (4, 0)]


def test_each_of_several_labels():
    examples = [TextExample(i, str(i), label=("a",) if i < 3 else ()) for i in range(6)]
    probabilities = np.array([[0.9], [0.8], [0.1], [0.1], [0.2], [0.95]])
    issues = find_label_issues(examples, decisions_of(examples, ["a"], probabilities))
    rows = [(issue["text"], issue["given"], issue["suggested"]) for issue in issues]
    assert rows == [("5", "not a", "a"), ("2", "a", "not a")]


def test_labels_are_spelled_as_in_the_data(tmp_path: Path):
    """NLI labels have their usual names in predictions that are scored."""
    names = ("ENTAILMENT", "CONTRADICTION")
    (tmp_path / "folds.json").write_text('{"folds": 2}')
    for number, (gold, other) in enumerate((names, names[::-1]), 1):
        fold = tmp_path / f"fold-1.{number}"
        row = {"label": other, "scores": {names[0]: 0.2, names[1]: 0.8}, "text": "a", "gold": gold}
        write_jsonl(fold / "predictions.test.jsonl", [row])
        for file in ("metrics.json", "environment.json", "README.md"):
            (fold / file).write_text("{}")
    _, (decisions,) = read_folds(tmp_path)
    assert decisions.classes == [*names] and decisions.labels.tolist() == [0, 1]
    assert decisions.probabilities.tolist() == [[0.2, 0.8]] * 2


def test_noise_is_found_in_order_of_doubt_and_estimated():
    rng = np.random.default_rng(1)
    true = rng.integers(0, 4, 3000)
    logits = rng.normal(0, 1, (3000, 4)) + 4 * np.eye(4)[true]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wrong = rng.random(3000) < 0.08
    given = np.where(wrong, (true + rng.integers(1, 4, 3000)) % 4, true)
    found = issues_of(probabilities, given)
    suspects = np.array([index for index, _ in found])
    assert wrong[suspects].mean() > 0.85 and wrong[suspects].sum() > 0.8 * wrong.sum()
    assert wrong[suspects[:50]].all()
    assert np.mean([label == true[index] for index, label in found if wrong[index]]) > 0.95
    joint = confident_joint(probabilities, given)
    real = np.array([[np.mean((given == i) & (true == j)) for j in range(4)] for i in range(4)])
    assert np.abs(joint - real).max() < 0.01
    assert np.allclose(joint.sum(1), np.bincount(given) / 3000)


def test_a_class_that_never_occurs_and_ties():
    sure = np.array([[0.05, 0.05, 0.9], [0.9, 0.05, 0.05]])
    assert issues_of(sure, np.array([0, 0])) == [], "class 2 has no example"
    assert issues_of(np.full((4, 2), 0.5), np.array([0, 0, 1, 1])) == []


def test_a_class_that_models_do_not_know():
    """Of class 2 the model says 0.01 everywhere, its one example as well: all reach that mean, and
    the two of class 0 that fall short of theirs, 0.78, would be called class 2."""
    first = np.array([0.9, 0.9, 0.8, 0.7, 0.6, 0.3])
    probabilities = np.stack([first, 0.99 - first, np.full(6, 0.01)], 1)
    given = np.array([0, 0, 0, 0, 0, 2])
    assert issues_of(probabilities, given) == []
    assert np.trace(confident_joint(probabilities, given)) == pytest.approx(1)
