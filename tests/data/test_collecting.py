"""Rows of any source become the same examples in a list, and on disk with one or two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from finetune.data import check_data, files, read_text, read_tokens
from finetune.data import examples as holder
from finetune.data.dataset import DataError, Dataset
from finetune.data.rows import made_examples
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.runtime import workers

ROWS = [
    {
        "text": f"Text {i}",
        "label": "ab"[i % 2],
        "id": i,
        "answer": ("accept", "reject")[i % 11 == 10],
    }
    for i in range(43)
]
"""Some are rejected by an annotator, so that chunks differ in size."""


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", "off")


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def jsonl(folder: Path) -> str:
    return str(write_lines(folder / "train.jsonl", ROWS))


def shards(folder: Path) -> str:
    write_lines(folder / "a.jsonl", ROWS[:17])
    pa.parquet.write_table(pa.Table.from_pylist(ROWS[17:30]), folder / "b.parquet")
    write_lines(folder / "c.jsonl", ROWS[30:])
    return f"train={folder / 'a.jsonl'}+{folder / 'b.parquet'}+{folder / 'c.jsonl'}"


def parquet(folder: Path) -> str:
    pa.parquet.write_table(pa.Table.from_pylist(ROWS), folder / "train.parquet", row_group_size=10)
    return str(folder / "train.parquet")


def csv(folder: Path) -> str:
    lines = [",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]
    (folder / "train.csv").write_text("\n".join(lines))
    return str(folder / "train.csv")


def saved(folder: Path) -> str:
    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved")
    return str(folder / "saved")


def small_memory(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setattr(holder, "MOST_IN_MEMORY", 5)
    monkeypatch.setattr(holder, "CHUNK", 4)
    monkeypatch.setattr(files, "BLOCK_LINES", 3)
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda _: range(processes))


@pytest.mark.parametrize("write", [jsonl, shards, parquet, csv, saved])
def test_processes_do_not_matter(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path)
    found: list[Dataset] = [read_text(source)]
    for processes in (1, 2):
        small_memory(monkeypatch, processes)
        found.append(read_text(source))
    stores = [data.splits["train"] for data in found[1:]]
    assert all(rows.is_large for rows in stores)
    assert stores[0].digest() == stores[1].digest()  # type: ignore[attr-defined]
    assert [*found[0].splits["train"]] == [*stores[0]] == [*stores[1]]
    assert found[0].notes == found[1].notes == found[2].notes
    assert "train: 3 rows rejected or ignored" in found[0].notes
    assert len({data.fingerprint for data in found}) == 1
    places = np.array([40 - 3 - 1, 0, 9, 10, 11])
    assert [*stores[0].take(places)] == [found[0].splits["train"][i] for i in places]  # type: ignore[attr-defined]


def test_an_error_in_another_process_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "train.jsonl", [*ROWS[:20], {"text": []}, ["no row"], *ROWS])
    small_memory(monkeypatch, 2)
    with pytest.raises(DataError, match=r"train.jsonl:21: column 'text' holds list"):
        read_text(str(path))
    errors: list[str] = []
    found = read_text(str(path), errors=errors)
    good = read_text(str(write_lines(tmp_path / "good.jsonl", [*ROWS[:20], *ROWS])))
    assert found.fingerprint == good.fingerprint
    assert [error.partition(": ")[0][-2:] for error in errors] == ["21", "22"]


def test_columns_of_later_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_memory(monkeypatch, 2)
    path = write_lines(tmp_path / "a.jsonl", [*ROWS, {**ROWS[0], "stars": 3, "more": 1}])
    notes = read_text(str(path)).notes
    assert "columns that no row has before row 6 are not read: stars, more" in notes


def test_words_that_an_annotator_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"tokens": ["x"] * (i % 5 + (i < 30)), "tags": ["B-A"] * (i % 5 + (i < 30)), "id": i}
        for i in range(41)
    ]
    path = write_lines(
        tmp_path / "train.jsonl",
        [
            {**r, "answer": a}
            for r, a in zip(rows, ["accept", "ignore", "accept"] * 14, strict=False)
        ],
    )
    before = read_tokens(str(path))
    small_memory(monkeypatch, 2)
    after = read_tokens(str(path))
    assert [*after.splits["train"]] == before.splits["train"]
    assert after.notes == before.notes and len(after.notes) > 1


def tagged(**tags: str) -> list[dict[str, Any]]:
    """43 sentences, each with the tags of one of the ``tags``, in turn."""
    kinds = [words.split() for words in tags.values()]
    chosen = (kinds[i % len(kinds)] for i in range(43))
    return [
        {"tokens": [f"w{j}" for j in range(len(t))], "tags": t, "id": i}
        for i, t in enumerate(chosen)
    ]


def spanned(*spans: list[tuple[int, int, str]]) -> list[dict[str, Any]]:
    """43 sentences of three words, each with one of the lists of spans, in turn."""
    return [{"tokens": list("abc"), "spans": spans[i % len(spans)], "id": i} for i in range(43)]


@pytest.mark.parametrize(
    ("rows", "note", "tags"),
    [
        (tagged(a="B-A I-A O", b="O"), "", "B-A I-A O"),
        (tagged(a="B-A I-A O", b="I-A I-A"), "", "B-A I-A O"),  # illegal, and left as it is
        (tagged(a="I-A I-A B-A", b="O"), "tag scheme IOB1", "B-A I-A B-A"),
        (tagged(a="B-A E-A S-A", b="O I-A"), "42 illegal tags read as", "B-A I-A B-A"),
        (tagged(a="A-b A-i o", b="o"), "tags are read in their usual spelling", "B-A I-A O"),
        (tagged(a="A A O O O", b="O"), "tags have no B- or I-", "B-A I-A O O O"),
        (tagged(a="NOUN VERB", b="NOUN"), "", "NOUN VERB"),
        (tagged(a="1 2", b="0"), "tags are numbers without names", "1 2"),
        (spanned([(0, 2, "A")], []), "", "B-A I-A O"),
        (spanned([(0, 2, "A"), (1, 2, "B")], []), "nested spans", None),
    ],
)
def test_tags_of_every_kind(
    rows: Any, note: str, tags: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "train.jsonl", rows)
    data = read_tokens(str(path))
    assert data.splits["train"][0].tags == (None if tags is None else tuple(tags.split()))
    assert any(note in each for each in data.notes) if note else not data.notes
    illegal_or_nested = "illegal" in note or "nested" in note
    for processes in (1, 2) if illegal_or_nested else (1,):
        small_memory(monkeypatch, processes)
        own = read_tokens(str(path))
        assert own.splits["train"].is_large
        assert [*own.splits["train"]] == data.splits["train"]
        assert (check_data(own), own.notes) == (check_data(data), data.notes)
        vocabularies = [TrainingVocabulary.of(each.splits["train"]) for each in (own, data)]
        assert vocabularies[0] == vocabularies[1]


def test_an_odd_tag_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tagged(a="B-A I-A O")
    rows[30]["tags"] = ["B-A", "tag", "O"]
    path = write_lines(tmp_path / "train.jsonl", rows)
    small_memory(monkeypatch, 2)
    with pytest.raises(DataError, match=r"train.jsonl:31: the word 'w1' has the tag 'tag'"):
        read_tokens(str(path))


def test_equal_numbers_are_different_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    small_memory(monkeypatch, 1)
    rows = read_text([{"text": "t", "label": x} for x in (0.0, -0.0, 1.5) * 3]).splits["train"]
    assert rows.is_large and [str(each.label) for each in rows] == ["0.0", "-0.0", "1.5"] * 3


def test_no_row_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "train.jsonl", [{**row, "answer": "reject"} for row in ROWS])
    small_memory(monkeypatch, 2)
    rows, number = made_examples(_table(path), lambda i, row: row.values["answer"])
    assert rows == [] and number == {"reject": len(ROWS)}


def _table(path: Path) -> Any:
    from finetune.data.formats import open_data, read_file

    return read_file(open_data(path))
