"""Pairs with gold similarity: roles, targets, subsets, and errors that name the row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.embeddings.pairs import read_similarity
from finetune.types import UserError


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def row(**more: Any) -> dict[str, Any]:
    return {"text": "the bank of", "text_pair": "a bank", "label": 3, **more}


def test_texts_with_subsets(tmp_path: Path) -> None:
    rows = [row(source="ab"[n % 2], id=f"n{n}") for n in range(20)] + [row(label=None, source="a")]
    data = read_similarity(write(tmp_path / "x.jsonl", rows))
    assert data.gold == [3.0] * 20 and data.subsets == ["a", "b"] * 10
    assert data.notes == ("1 pair without gold left out",) and not data.split
    assert data.pairs[1].example.key == "n1" and data.pairs[0].targets is None
    many = [row(source=f"page {n}") for n in range(20)]
    data = read_similarity(write(tmp_path / "y.jsonl", many))
    assert data.subsets is None and "column 'source' has 20 values" in data.notes[0]
    data = read_similarity(str(tmp_path / "y.jsonl"), columns={"subset": "source"})
    assert data.subsets is not None and len(set(data.subsets)) == 20


def test_targets_by_characters_and_by_words(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(start=4, end=8, start_pair="2", end_pair=6.0)])
    assert read_similarity(path).pairs[0].targets == ((4, 8), (2, 6))
    path = write(tmp_path / "y.jsonl", [row(index=1, index_pair=1, label="same")])
    data = read_similarity(path)
    assert data.pairs[0].targets == ((4, 8), (2, 6)) and data.gold is None
    assert data.notes == ("labels are names such as 'same': cosines have no correlation",)
    path = write(tmp_path / "z.jsonl", [row(i=1, j=0)])
    data = read_similarity(path, columns={"index": "i", "index_pair": "j"})
    assert data.pairs[0].targets == ((4, 8), (0, 1))


def test_splits(tmp_path: Path) -> None:
    for name in ("train", "validation"):
        write(tmp_path / f"{name}.jsonl", [row()])
    with pytest.raises(UserError, match="one split of train, validation with --split"):
        read_similarity(str(tmp_path))
    assert read_similarity(str(tmp_path), split="validation").split == "validation"
    write(tmp_path / "test.jsonl", [row(), row()])
    assert len(read_similarity(str(tmp_path)).pairs) == 2


@pytest.mark.parametrize(
    ("more", "columns", "message"),
    [
        ({"start": 4, "end": 40, "start_pair": 0, "end_pair": 1}, {}, "1: characters 4 to 40 hold"),
        ({"start": 3, "end": 4, "start_pair": 0, "end_pair": 1}, {}, "1: characters 3 to 4 hold"),
        ({"index": 3, "index_pair": 0}, {}, "1: there is no word 3 among 3 words"),
        ({"index": -1, "index_pair": 0}, {}, "index must be a whole number from 0, not -1"),
        ({"index": 1}, {"index": "index"}, "'index_pair' is missing"),
        ({}, {"sourc": "x"}, "'sourc' is not a role"),
    ],
)
def test_errors(more: dict[str, Any], columns: dict[str, str], message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        read_similarity(write(tmp_path / "x.jsonl", [row(**more)]), columns=columns)


def test_a_name_among_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(), row(label="four")])
    with pytest.raises(UserError, match=r"x.jsonl:2: the similarity 'four' is not a finite number"):
        read_similarity(path)
