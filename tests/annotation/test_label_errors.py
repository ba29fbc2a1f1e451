"""Label issues from the predictions of models, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from finetune.annotation.cross_validation import OutOfFold
from finetune.annotation.label_errors import (
    CrossFitted,
    LabelIssue,
    file_and_line,
    find_label_issues,
)
from finetune.config.tasks import CONFIGS
from finetune.types import Span, TextExample, TokenExample


def task(name: str, labels: list[str], **more: object) -> SimpleNamespace:
    state = SimpleNamespace(
        labels=labels, prediction_type="spans" if name == "ner" else name, **more
    )
    return SimpleNamespace(description=CONFIGS[name].description, state=state)


def issues_of(task: SimpleNamespace, examples: list, predictions: list) -> list[LabelIssue]:
    return find_label_issues(OutOfFold(task, examples, predictions)).issues  # type: ignore[arg-type]


def test_texts():
    examples = [
        TextExample(i, f"text {i}", "pair", label, where=f"a.jsonl:{i + 1}")
        for i, label in enumerate(["no", "no", "no", "yes", "yes"])
    ]
    predictions = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.5, 0.5]]
    issues = find_label_issues(OutOfFold(task("nli", ["no", "yes"]), examples, predictions))  # type: ignore[arg-type]
    assert issues.number == 5 and issues.share == pytest.approx(0.2)
    assert [row[:2] for row in issues.errors] == [("no", "yes")]
    assert issues.errors[0][2] == pytest.approx(1)
    assert [each.to_dict() for each in issues.issues] == [
        {
            "file": "a.jsonl",
            "line": 3,
            "given": "no",
            "suggested": "yes",
            "confidence": 0.9,
            "given_confidence": 0.1,
            "margin": 0.8,
            "text": "text 2 ||| pair",
            "kind": "label",
        }
    ]


def test_each_of_several_labels():
    examples = [TextExample(i, str(i), label=("a",) if i < 3 else ()) for i in range(6)]
    predictions = [[0.9], [0.8], [0.1], [0.1], [0.2], [0.95]]
    rows = [
        (s.example.text, s.given, s.suggested)
        for s in issues_of(task("classify", ["a"]), examples, predictions)
    ]
    assert rows == [("5", "not a", "a"), ("2", "a", "not a")]


def test_words_by_sentences():
    """The sentence with the most doubtful word comes first, with all its label issues."""
    sure, wrong, doubtful = [0.9, 0.1], [0.02, 0.98], [0.1, 0.9]
    examples = [
        TokenExample(0, ("a", "b", "c"), tags=("X", "X", "X"), where="f:1"),
        TokenExample(1, ("d", "e", "f"), tags=("X", "X", "Y"), where="f:5"),
    ]
    predictions = [[sure, doubtful, sure], [wrong, doubtful, [0.1, 0.9]]]
    issues = issues_of(task("tag", ["X", "Y"], scheme=None), examples, predictions)
    rows = [(s.example.where, s.words, s.suggested, s.worst) for s in issues]
    assert rows == [
        ("f:5", (0, 1), "Y", True),
        ("f:5", (1, 2), "Y", False),
        ("f:1", (1, 2), "Y", True),
    ]
    assert issues[0].to_dict()["end_word"] == 1


def test_words_in_another_scheme_than_the_model_has():
    names = ["O", "B-P", "I-P", "E-P", "S-P"]
    example = TokenExample(0, ("a", "b"), tags=("B-P", "O"), where="f:1")
    predictions = [[[0.1, 0.0, 0.0, 0.0, 0.9], [0.9, 0.1, 0.0, 0.0, 0.0]]]
    bioes = task("tag", names, scheme="BIOES", source="BIO")
    assert issues_of(bioes, [example], predictions) == []


def test_spans_missing_wrong_and_too_many():
    words = ("Ana", "saw", "New", "York", "and", "Bo")
    gold = (Span(0, 1, "PER"), Span(2, 3, "LOC"), Span(4, 5, "LOC"))
    examples = [
        TokenExample(0, words, spans=gold, where="n.jsonl:1"),
        TokenExample(1, words, spans=(Span(0, 1, "PER"), Span(2, 4, "LOC")), where="n.jsonl:2"),
    ]
    predictions = [
        {
            "spans": [[0, 1, "PER", 0.9], [2, 4, "LOC", 0.8], [5, 6, "PER", 0.95]],
            "gold": [0.9, 0.1, 0.02],
        },
        # as sure as 0.5 and 0.8 are, the means of gold spans of the types: no label issues
        {
            "spans": [[0, 1, "PER", 0.7], [2, 4, "LOC", 0.98], [5, 6, "PER", 0.6]],
            "gold": [0.7, 0.98],
        },
    ]
    rows = [
        (s.category, s.given, s.suggested, s.confidence, s.example.where)
        for s in issues_of(task("ner", ["LOC", "PER"]), examples, predictions)
    ]
    assert rows == [
        ("missing span", "nothing", "PER 'Bo'", 0.95, "n.jsonl:1"),
        ("boundary", "LOC 'New'", "LOC 'New York'", 0.8, "n.jsonl:1"),
        ("no span", "LOC 'and'", "nothing", 0.98, "n.jsonl:1"),
    ]


def test_places():
    assert file_and_line("x.parquet:row 7") == ("x.parquet", 7)
    assert file_and_line("set[train]:12") == ("set[train]", 12)
    assert file_and_line("somewhere") == ("somewhere", None)


def test_a_score_that_may_be_chance_is_weak():
    assert CrossFitted("accuracy", 0.56, 0.5, "always predicting 'a'", 100).is_weak
    assert not CrossFitted("accuracy", 0.56, 0.5, "always predicting 'a'", 1000).is_weak
