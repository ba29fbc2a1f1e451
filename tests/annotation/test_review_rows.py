"""Rows that the page of `finetune review` cannot show are refused, with their line and field."""

from __future__ import annotations

from typing import Any

import pytest

from finetune.annotation.review_page import page
from finetune.types import UserError

SUSPECT = {
    "file": "a",
    "line": 1,
    "text": "Fine",
    "given": "pos",
    "suggested": "neg",
    "confidence": 0.9,
    "given_confidence": 0.1,
    "worst": True,
}
LABEL = {"id": 0, "text": "Fine", "label": "pos", "scores": {"pos": 0.9, "neg": 0.1}}
SENTENCE = {
    "id": 1,
    "text": "Ana saw",
    "words": ["Ana", "saw"],
    "offsets": [[0, 3], [4, 7]],
    "spans": [{"start": 0, "end": 1, "label": "PER", "score": 0.9}],
    "gold": {"spans": [], "unreachable": [[0, 2, "PER"]]},
}
TAGGED = {"id": 1, "words": ["Ana", "saw"], "tags": ["B-PER", "O"], "gold": {"tags": ["O", "O"]}}


def span(**changes: Any) -> list[dict[str, Any]]:
    return [{"start": 0, "end": 1, "label": "PER", "score": 0.9, **changes}]


@pytest.mark.parametrize("row", [SUSPECT, LABEL, SENTENCE, TAGGED])
def test_rows_that_are_shown(row: dict[str, Any]) -> None:
    assert page([row], "x.jsonl")[1] == 1


@pytest.mark.parametrize(
    "row",
    [
        LABEL | {"label": None, "withheld": "unsure"},
        LABEL | {"label": ["pos"], "withheld": ["unsure"]},
        SENTENCE | {"spans": [], "withheld": span(label="unsure")},
        TAGGED | {"tags": [None, "O"], "withheld": span(label="unsure")},
    ],
)
def test_answers_that_are_withheld_are_shown(row: dict[str, Any]) -> None:
    html, number = page([row], "x.jsonl")
    assert number == 1 and "unsure" in html


@pytest.mark.parametrize(
    ("row", "changes", "field"),
    [
        (SUSPECT, {"confidence": None}, "confidence"),
        (SUSPECT, {"given_confidence": "high"}, "given_confidence"),
        (SUSPECT, {"text": None}, "text"),
        (SUSPECT, {"given": ["pos"]}, "given"),
        (SUSPECT, {"line": "1"}, "line"),
        (LABEL, {"scores": {"pos": "0.9"}}, "scores"),
        (LABEL, {"scores": {"pos": None}}, "scores"),
        (LABEL, {"scores": [0.9]}, "scores"),
        (LABEL, {"gold": {"a": 1}}, "gold"),
        (LABEL, {"gold": 3}, "gold"),
        (LABEL, {"gold": ["neg"]}, "gold"),
        (LABEL, {"label": ["pos"], "gold": "neg"}, "gold"),
        (SENTENCE, {"spans": span(end=3)}, "spans"),
        (SENTENCE, {"spans": span(start=None)}, "spans"),
        (SENTENCE, {"spans": span(label=None)}, "spans"),
        (SENTENCE, {"spans": span(score="0.9")}, "spans"),
        (SENTENCE, {"spans": ["PER"]}, "spans"),
        (SENTENCE, {"words": ["Ana", 3]}, "words"),
        (SENTENCE, {"offsets": [[0, 3], [4, 70]]}, "offsets"),
        (SENTENCE, {"offsets": [[0, 3]]}, "offsets"),
        (SENTENCE, {"offsets": [0, 3]}, "offsets"),
        (SENTENCE, {"gold": []}, "gold"),
        (SENTENCE, {"gold": {"unreachable": [[0, 99, "PER"]]}}, "unreachable"),
        (SENTENCE, {"uncertainty": "low"}, "uncertainty"),
        (TAGGED, {"tags": ["O"]}, "tags"),
        (TAGGED, {"gold": {"tags": [None, "O"]}}, "tags"),
    ],
)
def test_malformed_rows(row: dict[str, Any], changes: dict[str, Any], field: str) -> None:
    with pytest.raises(UserError, match=rf"^x.jsonl:2: `{field}` cannot be .* write the file"):
        page([row, row | changes], "x.jsonl")


def test_blank_texts_are_left_out() -> None:
    blank = {"id": 1, "text": " ", "label": None, "score": None, "scores": {"pos": None}}
    assert page([LABEL, blank], "x.jsonl")[1] == 1
