"""Data in memory are read like the same rows in a file."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.data import DataError, check_data, read_text, read_tokens

TEXTS = [
    {"id": "a", "text": "Fine film", "label": "pos"},
    {"id": "b", "text": "Dull film", "label": "neg"},
    {"id": "c", "text": "A film", "label": None},
]
WORDS = [
    {"tokens": ["Ana", "saw", "Oslo"], "tags": ["B-PER", "O", "B-LOC"]},
    {"tokens": ["Rain"], "tags": ["O"]},
]
SPANS = [{"tokens": ["New", "York"], "spans": [{"start": 0, "end": 2, "label": "LOC"}]}]


def as_pandas(rows: list[dict]) -> Any:
    return pytest.importorskip("pandas").DataFrame(rows)


def as_polars(rows: list[dict]) -> Any:
    return pytest.importorskip("polars").DataFrame(rows)


def as_datasets(rows: list[dict]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(rows)


def as_arrays(rows: list[dict]) -> Any:
    """What pandas reads from a Parquet file with lists."""

    def is_words(value: Any) -> bool:
        return isinstance(value, list) and isinstance(value[0], str)

    return [{n: np.array(v) if is_words(v) else v for n, v in row.items()} for row in rows]


@pytest.mark.parametrize("convert", [list, as_pandas, as_polars, as_datasets, as_arrays])
@pytest.mark.parametrize(
    ("read", "rows"), [(read_text, TEXTS), (read_tokens, WORDS), (read_tokens, SPANS)]
)
def test_equals_the_file(convert: Any, read: Any, rows: list[dict], tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    from_file = read(str(path))
    found = read(convert(rows))
    assert found.fingerprint == from_file.fingerprint
    assert [e.key for e in found.splits["train"]] == [e.key for e in from_file.splits["train"]]


@pytest.mark.parametrize("format", ["numpy", "torch", "pandas", "arrow"])
def test_the_format_of_a_data_set_changes_nothing(format: str) -> None:
    table = as_datasets([{"tokens": ["a", "b"], "tags": [1, 0]}, {"tokens": ["c"], "tags": [1]}])
    formatted = read_tokens(table.with_format(format))
    assert formatted.fingerprint == read_tokens(table).fingerprint


def test_a_data_set_is_pickled_with_its_fingerprint() -> None:
    data = read_text(TEXTS)
    relabeled = replace(
        data, splits={"train": data.splits["train"].replace("label", "x" * len(TEXTS))}
    )
    assert relabeled.fingerprint == data.fingerprint
    for one in (data, relabeled):
        again = pickle.loads(pickle.dumps(one))
        assert again == one and again.fingerprint == one.fingerprint


def test_a_transform_is_refused() -> None:
    """Its result is what transformers' Trainer would read."""
    table = as_datasets(TEXTS)
    with pytest.raises(DataError, match=r"the Dataset has a transform .*: write its result with"):
        read_text(table.with_transform(lambda batch: {**batch, "label": ["x"] * 3}))
    assert read_text(table).splits["train"][1].where == "data, row 2"


def test_splits_and_class_names() -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    rows = [{"text": "Fine", "label": 1}, {"text": "Dull", "label": 0}]
    table = datasets.Dataset.from_list(rows, features=features)
    data = read_text(datasets.DatasetDict(train=table, test=table))
    assert [example.label for example in data.splits["test"]] == ["pos", "neg"]
    mixed = read_text({"train": table, "dev": as_pandas([{"text": "Fine", "label": "pos"}])})
    assert list(mixed.splits) == ["train", "validation"]
    assert mixed.format == "memory"
    assert mixed.splits["train"][1].where == "data['train'], row 2"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (3, "data: int is not a table"),
        ({"test": "text"}, r"data\['test'\]: str is not a table"),
        ([{"text": "x"}, 1], "data, row 2: 1 is not a dict"),
        ([], "the train split is empty"),
        ({"text": [], "label": []}, "data: there are no rows"),
        ({}, "data: there are no rows"),
        ([{"text": 3.5}, {"text": b"a"}], "data, row 2: column 'text' holds bytes, not a text"),
        (iter(TEXTS), "list_iterator is not a table"),
    ],
)
def test_refuses(data: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        read_text(data)


@pytest.mark.parametrize("source", ["parquet", "shards", "pyarrow", "pandas"])
@pytest.mark.parametrize("read", [read_text, read_tokens])
def test_a_column_twice_is_refused_wherever_it_is(source: str, read: Any, tmp_path: Path) -> None:
    """Rows of a name twice keep the last column only."""
    import pyarrow
    import pyarrow.parquet

    columns = [["Fine film", "Dull film"], ["good", "bad"], ["a", "b"]]
    data: Any = pyarrow.table(columns, names=["text", "label", "label"])
    if source == "pandas":
        data = pytest.importorskip("pandas").DataFrame(zip(*columns, strict=True))
        data.columns = ["text", "label", "label"]
    if source in ("parquet", "shards"):
        (folder := tmp_path / "data").mkdir()
        pyarrow.parquet.write_table(data, folder / "train.parquet")
        data = str(folder) if source == "parquet" else f"train={folder}/train.parquet"
    with pytest.raises(DataError, match="the header has the column 'label' 2 times: rename"):
        read(data)


def test_a_missing_value_does_not_make_numbers_of_classes() -> None:
    """pandas has whole numbers as floats where one is missing."""
    rows = [{"text": f"a {n}", "label": n % 3} for n in range(9)] + [{"text": "b", "label": None}]
    frame = as_pandas(rows)
    assert frame["label"].dtype == float
    expected = [str(n % 3) for n in range(9)] + [None]
    for data in (rows, frame, {"text": frame["text"], "label": frame["label"]}):
        assert [each.label for each in read_text(data).splits["train"]] == expected
    assert frame["label"].dtype == float, "the caller's frame is as before"
    frame.loc[0, "label"] = 0.5
    assert [each.label for each in read_text(frame).splits["train"]][:2] == [0.5, 1.0]


SAVE: dict[str, Any] = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "xlsx": lambda frame, path: frame.to_excel(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
}


@pytest.mark.parametrize("source", [*SAVE, "pandas", "list"])
def test_an_empty_text_is_a_warning_in_every_format(source: str, tmp_path: Path) -> None:
    rows = [{"text": f"a {n}", "label": "xy"[n % 2]} for n in range(6)]
    rows.append({"text": None, "label": "x"})
    data: Any = rows if source == "list" else as_pandas(rows)
    if source in SAVE:
        SAVE[source](data, tmp_path / f"train.{source}")
        data = str(tmp_path / f"train.{source}")
    found = read_text(data)
    assert [each.text for each in found.splits["train"]][-2:] == ["a 5", ""]
    messages = [each.message for each in check_data(found) if each.level != "info"]
    assert messages == ["train: 1 example with an empty text"]
