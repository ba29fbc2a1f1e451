"""Label issues from the predictions of models, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from finetune.annotation.label_errors import (
    CrossFitted,
    OutOfFold,
    cross_fitted_score,
    file_and_line,
    find_label_issues,
)
from finetune.types import TextExample


def test_texts():
    examples = [
        TextExample(i, f"text {i}", "pair", label, where=f"a.jsonl:{i + 1}")
        for i, label in enumerate(["no", "no", "no", "yes", "yes"])
    ]
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.5, 0.5]])
    folds = OutOfFold(examples, ["no", "yes"], probabilities)
    issues = find_label_issues(folds)
    assert issues.number == 5 and issues.share == pytest.approx(0.2)
    assert [row[:2] for row in issues.errors] == [("no", "yes")]
    assert issues.errors[0][2] == pytest.approx(1)
    assert [issue.to_dict() for issue in issues.issues] == [
        {
            "file": "a.jsonl",
            "line": 3,
            "given": "no",
            "suggested": "yes",
            "confidence": 0.9,
            "given_confidence": 0.1,
            "margin": 0.8,
            "text": "text 2 ||| pair",
        }
    ]
    score = cross_fitted_score(folds)
    assert (score.value, score.baseline) == (0.6, 0.6)


def test_each_of_several_labels():
    examples = [TextExample(i, str(i), label=("a",) if i < 3 else ()) for i in range(6)]
    probabilities = np.array([[0.9], [0.8], [0.1], [0.1], [0.2], [0.95]])
    folds = OutOfFold(examples, ["a"], probabilities)
    rows = [(s.example.text, s.given, s.suggested) for s in find_label_issues(folds).issues]
    assert rows == [("5", "not a", "a"), ("2", "a", "not a")]
    score = cross_fitted_score(folds)
    assert (score.value, score.baseline) == (pytest.approx(4 / 6), 0.5)


def test_places():
    assert file_and_line("x.parquet:row 7") == ("x.parquet", 7)
    assert file_and_line("set[train]:12") == ("set[train]", 12)
    assert file_and_line("somewhere") == ("somewhere", None)


def test_a_score_that_may_be_chance_is_weak():
    assert CrossFitted(0.56, 0.5, "always predicting 'a'", 100).is_weak
    assert not CrossFitted(0.56, 0.5, "always predicting 'a'", 1000).is_weak
