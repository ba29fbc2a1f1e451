"""What `convert`, `agreement` and `review` refuse, each in one line with the place in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finetune.annotation.review_page import page
from finetune.types import UserError
from tests.command import run
from tests.small_data import write_jsonl

PREDICTED = {"id": 0, "text": "Where?", "text_pair": "In Oslo", "where": "x:1", "score": 0.9}
ROWS: dict[str, list[dict[str, Any]]] = {
    "labels": [{"id": n, "text": f"t{n}", "label": label} for n, label in enumerate("xy")],
    "texts": [{"id": 0, "text": "other", "label": "x"}],
    "others": [{"id": 9, "text": "other", "label": "x"}],
    "numbers": [{"id": n, "text": f"t{n}", "label": n / 2} for n in range(2)],
    "spans": [{"id": 0, "text": "t0", "spans": [[0, 1, "x y"]]}],
    "two": [{"text": "a", "label": "x", "annotator": who} for who in ("ann", "bob")],
    "answers": [{"text": "Where?", "text_pair": "In Oslo", "answers": [{"text": "Oslo"}]}],
    "choices": [{"text": "Where?", "choices": ["a", "b"], "gold": 1}],
    "answered": [{**PREDICTED, "answer": "Oslo", "gold": [{"text": "Oslo", "start": 3}]}],
    "chosen": [{**PREDICTED, "choice": 1, "choices": ["a", "b"], "gold": 1}],
    "unknown": [{"Message": "a", "label": "x", "gold": "y"}],
}
NOT_HERE = "a task that is not supported here"
REFUSED = {
    "convert labels.jsonl --to conll --out o.conll": "--to conll: the data have texts with labels",
    "convert labels.jsonl --to spacy --out o.json": "--to spacy: the data have texts with labels",
    "convert labels.jsonl --to brat --out .": "--out . exists: name an empty or absent folder",
    "convert labels.jsonl --to jsonl --out labels.jsonl": "would overwrite the input",
    "convert labels.jsonl --to csv --out o.jsonl": "o.jsonl",
    "convert spans.jsonl --to brat --out brat": "a label with white space, 'x y'",
    "convert spans.jsonl --to conll --out o.conll": "a label with white space, 'x y'",
    "convert spans.jsonl --to tsv --out o.tsv": "words, and no reader takes words from a cell",
    "convert numbers.jsonl --to doccano --out o.jsonl": "numbers as labels",
    "convert numbers.jsonl --to prodigy --out o.jsonl": "choose jsonl or label-studio",
    "convert answers.jsonl --to csv --out o.csv": f"questions of qa, {NOT_HERE}",
    "convert choices.jsonl --to csv --out o.csv": f"questions of choice, {NOT_HERE}",
    "convert answered.jsonl --to csv --out o.csv": f"questions of qa, {NOT_HERE}",
    "convert chosen.jsonl --to csv --out o.csv": f"questions of choice, {NOT_HERE}",
    "convert labels.jsonl --to jsonl --out o.jsonl --decisions two.jsonl": "two.jsonl:1: not a dec",
    "agreement labels.jsonl": "no rows of two annotators",
    "agreement labels.jsonl labels.jsonl": "a file is named twice",
    "agreement labels.jsonl texts.jsonl": "id 0 has different texts in",
    "agreement texts.jsonl two.jsonl": "two has 2 annotators, such as ann",
    "agreement labels.jsonl others.jsonl": "no text has labels of two annotators",
    "agreement labels.jsonl numbers.jsonl": "these labels are numbers",
    "agreement labels.jsonl spans.jsonl": "different kinds of labels: label and spans",
    "agreement labels.jsonl texts.jsonl --resamples 0": "--resamples must be 1 or more",
    "agreement labels.jsonl texts.jsonl --resamples 99999999": "must be at most 10,000,000",
    "agreement answers.jsonl labels.jsonl": f"questions of qa, {NOT_HERE}",
    "agreement choices.jsonl labels.jsonl": f"questions of choice, {NOT_HERE}",
    "agreement answered.jsonl labels.jsonl": f"questions of qa, {NOT_HERE}",
    "agreement chosen.jsonl labels.jsonl": f"questions of choice, {NOT_HERE}",
    "review .": ".: a folder: name a file in it",
    "review none.jsonl": "none.jsonl: no such file",
    "review unknown.jsonl": "no column is known to hold the text",
    "review unknown.jsonl --columns text=Mesage": "unknown.jsonl:1: no column 'Mesage'",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_refused(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in ROWS.items():
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    before = sorted(tmp_path.iterdir())
    more = ["--out", "page.html"] if typed.startswith("review") else []
    done = run(*typed.split(), *more)
    assert done.code == 2 and REFUSED[typed] in done.err.splitlines()[-1], done.err
    assert done.err.splitlines()[-1].startswith("error: ")
    assert sorted(tmp_path.iterdir()) == before


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
