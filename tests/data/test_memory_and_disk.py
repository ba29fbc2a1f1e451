"""Data of several chunks in memory and on disk: equal examples, notes, errors and checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from finetune.data import check_data, hold_out, read_text, read_tokens
from finetune.data.examples import Dataset
from finetune.data.questions import QUESTIONS
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from tests.data.conftest import rows_of
from tests.small_data import keep_on_disk

TEXTS = [
    {"text": f"Text {i}", "label": "-ab"[i % 11 % 3], "id": i, "source": "web"} for i in range(43)
]
SQUAD = [
    {
        "context": f"a context {i // 3}",
        "qas": [{"question": f"q {i}", "answers": [{"text": "a", "answer_start": i % 2}]}],
    }
    for i in range(20)
]
Write = Callable[[Path], Any]


def lines(rows: list[Any], name: str = "train.jsonl") -> Write:
    """A file with a row in each line: JSON, or text as it is."""

    def write(folder: Path) -> str:
        texts = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (folder / name).write_text("".join(f"{text}\n" for text in texts))
        return str(folder / name)

    return write


def shards(folder: Path) -> str:
    lines(TEXTS[:17], "a.jsonl")(folder)
    pa.parquet.write_table(pa.Table.from_pylist(TEXTS[17:30]), folder / "b.parquet")
    lines(TEXTS[30:], "c.jsonl")(folder)
    return f"train={folder / 'a.jsonl'}+{folder / 'b.parquet'}+{folder / 'c.jsonl'}"


def saved(folder: Path) -> str:
    datasets.Dataset.from_list(TEXTS).save_to_disk(folder / "saved")
    return str(folder / "saved")


WITHOUT_WORDS = [
    {"tokens": ["x"] * n, "tags": ["B-A"] * n, "document": f"d{i // 2}"}
    for i, n in enumerate([1, 0, 2, 3, 1, 0, 2] * 6)
]
"""Some have no words, so that chunks differ in size. Documents are not divided."""
CASES: dict[str, tuple[Callable[..., Dataset], Write, str]] = {
    "shards": (read_text, shards, "not used"),
    "saved": (read_text, saved, "not used"),
    "memory": (read_text, lambda folder: TEXTS, "not used"),
    "bad rows": (read_text, lines([*TEXTS[:20], {"text": []}, ["no row"], *TEXTS]), ""),
    "bad quotes": (
        read_text,
        lines(["text,label", *["a,x"] * 9, '"b" c,x', *["d,y"] * 9, '"e" f,x'], "train.csv"),
        "",
    ),
    "left out": (read_tokens, lines(WITHOUT_WORDS), "without words skipped"),
    "squad": (
        QUESTIONS.read,
        lines([{"data": [{"title": "t", "paragraphs": [*SQUAD, {"context": 1}, *SQUAD]}]}]),
        "answers moved to the only place",
    ),
}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", "off")


def read_with_errors(read: Callable[..., Dataset], spec: Any) -> tuple[Dataset, Any]:
    """The data, and what a reader says of them."""
    errors: list[str] = []
    data = read(spec, errors=errors)
    return data, (rows_of(data), data.notes, sorted(errors), data.fingerprint)


def computed_from(data: Dataset) -> Any:
    """What is computed from what a reader found."""
    divided = hold_out(data, 0.3) if "train" in data.splits else data
    vocabulary = TrainingVocabulary.of(data.splits["train"])
    fingerprints = data.training_fingerprint, divided.fingerprint
    return rows_of(divided), fingerprints, check_data(data), check_data(divided), vocabulary


@pytest.mark.parametrize("case", CASES)
def test_where_rows_are_does_not_matter(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write, note = CASES[case]
    spec = write(tmp_path)
    data, found = read_with_errors(read, spec)
    computed = computed_from(data)
    keep_on_disk(monkeypatch)
    large, again = read_with_errors(read, spec)
    assert large.splits["train"].is_large
    assert again == found
    assert computed_from(large) == computed
    assert any(note in each for each in found[1]) if note else True
    bad = {
        "bad rows": ["21", "22"],
        "bad quotes": ["11", "21"],
        "squad": ["article 1 (t), paragraph 21"],
    }
    lines_of_errors = [error.removeprefix(str(tmp_path)).split(":")[1] for error in found[2]]
    assert lines_of_errors == bad.get(case, [])


def test_columns_of_later_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_on_disk(monkeypatch)
    notes = read_text(lines([*TEXTS, {**TEXTS[0], "stars": 3, "more": 1}])(tmp_path)).notes
    assert "columns that no row has before row 6 are not read: stars, more" in notes
