"""Votes of several annotators: one label by majority, and all votes beside it, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from finetune.annotation.conversion import write_annotations
from finetune.annotation.reading import read_annotations
from finetune.data import read_text
from finetune.data.examples import Examples
from finetune.data.labels import with_standard_names
from finetune.types import DataError, TextExample
from tests import fixtures as fx
from tests.command import run
from tests.small_data import write_jsonl

ROWS = [
    {"text": "fine", "label": {"pos": 3, "neg": 1}},
    {"text": "poor", "label": {"neg": 2}},
    {"text": "so so", "label": {"pos": 1.5, "neg": 1.5}},
]
FOUND = [
    ("pos", (("neg", 1), ("pos", 3))),
    ("neg", (("neg", 2),)),
    ("neg", (("neg", 1.5), ("pos", 1.5))),
]
"""The label and the votes of each row: a tie goes to the first label in the alphabet."""


def sides(rows: Any) -> list[tuple[Any, Any]]:
    return [(row.label, row.votes) for row in rows]


def of_csv(folder: Path) -> Any:
    cells = [json.dumps(row["label"]).replace('"', '""') for row in ROWS]
    lines = [f'{row["text"]},"{cell}"' for row, cell in zip(ROWS, cells, strict=True)]
    (folder / "a.csv").write_text("\n".join(["text,label", *lines]))
    return str(folder / "a.csv")


@pytest.mark.parametrize("source", [of_csv, lambda _: ROWS, lambda _: Dataset.from_list(ROWS)])
def test_every_format_has_the_majority_and_the_votes(source: Any, tmp_path: Path) -> None:
    data = read_text(source(tmp_path))
    assert sides(data.splits["train"]) == FOUND
    note = "votes for 3 texts, on average 75.0% of them for the majority; 1 unanimous, 1 tied"
    assert any(note in each for each in data.notes)


def test_votes_and_plain_labels_may_be_mixed(tmp_path: Path) -> None:
    rows = read_text([*ROWS, {"text": "bad", "label": "neg"}]).splits["train"]
    assert sides(rows) == [*FOUND, ("neg", None)]
    assert rows[0].label_distribution() == {"neg": 0.25, "pos": 0.75}
    assert rows[3].label_distribution() == {"neg": 1.0}


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ({"a": -1, "b": 2}, "-1 votes for the label 'a'"),
        ({"a": 1e300}, "1e\\+300 votes for the label 'a'"),
        ({"a": "3"}, "'3' votes for the label 'a'"),
        ({"a": True}, "True votes for the label 'a'"),
        ({"a": [1]}, r"\[1\] votes for the label 'a'"),
        ({" ": 1}, "1 votes for the label ' '"),
        ({}, "no label has a vote"),
        ({"a": 0, "b": 0.0}, "no label has a vote"),
        ({"a": float("nan")}, "nan votes for the label 'a'"),
    ],
)
def test_bad_votes_name_file_and_line(label: Any, problem: str, tmp_path: Path) -> None:
    rows = [{"text": "x", "label": "a"}, {"text": "y", "label": label}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=f"a.jsonl:2: {problem}.*: write the number of votes"):
        read_text(str(path))


def test_votes_beside_lists_of_labels_are_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [*ROWS, {"text": "z", "label": []}])
    with pytest.raises(DataError, match=r"a.jsonl:1: votes for labels where other rows have lists"):
        read_annotations(path)


def test_other_names_add_votes_up() -> None:
    votes = {"e": 2, "entailment": 1, "n": 1, "c": 2}
    pairs = [{"premise": "x", "hypothesis": "y", "label": votes}]
    data = with_standard_names(read_text(pairs))
    expected = (("contradiction", 2), ("entailment", 3), ("neutral", 1))
    assert sides(data.splits["train"]) == [("entailment", expected)]


def test_votes_are_content() -> None:
    plain, voted = TextExample(0, "x", None, "a"), TextExample(0, "x", None, "a", votes=(("a", 1),))
    assert Examples([plain]).digest() != Examples([voted]).digest()


@pytest.mark.parametrize("to", ["jsonl", "label-studio"])
def test_converted_votes_come_back(to: str, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [*ROWS, {"text": "bad", "label": "neg"}])
    suffix = {"label-studio": "json"}.get(to, to)
    notes, _ = write_annotations(read_annotations(source), to, out := tmp_path / f"b.{suffix}")
    rows = read_annotations(out).rows
    if to == suffix:
        assert sides(row.example for row in rows) == [*FOUND, ("neg", (("neg", 1),))]
    else:  # a tool has one label
        assert [row.example.label for row in rows] == ["pos", "neg", "neg", "neg"]
        assert any("with votes of annotators" in note for note in notes)


def test_check_tells_of_votes(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS * 4)
    found = run("check", "--data", path)
    assert "votes for 12 texts, on average 75.0% of them" in found.out + found.err
    write_jsonl(path, [{"text": f"text {n}", "label": {"pos": 1, "neg": 2}} for n in range(4)])
    assert "never has pos" not in run("check", "--data", path).out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["classify", "--problem=multi"], "votes for labels, but each text has any number of"),
        (["classify", "--problem=regression"], "votes for labels, but each text has a number"),
        (["classify", "--few-shot"], "write the label of the majority"),
        (["sentence"], "votes for labels, which sentence encoders do not read"),
    ],
)
def test_votes_are_refused_before_work_starts(
    words: list[str], problem: str, tmp_path: Path
) -> None:
    labels = [{"1": 3, "2": 1}, {"2": 2}]
    rows = [{"text": f"a {i}", "text_pair": "b", "label": labels[i % 2]} for i in range(40)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    found = run(*words, "--data", path, "--model", fx.checkpoint(), "--out", tmp_path / "out")
    assert problem in found.err and not (tmp_path / "out").exists()
