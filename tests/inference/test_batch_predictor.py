"""A function of batches answers as the command does, whatever table it gets."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from finetune import BatchPredictor, UserError
from finetune.inference import predictor
from finetune.runtime.row_files import with_same_columns
from tests import fixtures as fx
from tests.command import run
from tests.small_data import close, read_jsonl


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert close(found, expected, 2e-6)
    assert [list(row) for row in found] == [list(row) for row in expected]


def rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_batches_have_the_columns_of_the_command(task: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    source = fx.data(task) / "test.jsonl"
    rows = read_jsonl(source)
    out = tmp_path / "expected.jsonl"
    run("predict", fx.trained(task), "--file", source, "--keep-columns", "--out", out).ok()
    expected = [dict(row) for row in with_same_columns(read_jsonl(out))]
    for row in expected:
        del row["id"], row["uncertainty"]
    predict = pickle.loads(pickle.dumps(BatchPredictor(fx.trained(task))))
    table = pyarrow.Table.from_pylist(rows)
    found = predict(table)
    assert isinstance(found, pyarrow.Table) and found.num_rows == table.num_rows
    same(found.to_pylist(), expected)
    frame = pandas.DataFrame(rows, index=range(7, 7 + len(rows)))
    framed = predict(frame)
    assert list(framed.index) == list(frame.index)
    same(framed.to_dict("records"), expected)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    same(rows_of(predict(columns)), expected)
    arrays = {}
    for name, values in columns.items():
        arrays[name] = np.empty(len(values), dtype=object)
        arrays[name][:] = values
    answered = predict(arrays)
    assert all(isinstance(values, np.ndarray) for values in answered.values())
    same(rows_of(answered), expected)
    assert set(columns) == set(rows[0]) and set(frame) == set(rows[0])  # the batch is unchanged


def test_names_of_columns() -> None:
    predict = BatchPredictor(fx.trained("classify"), columns={"text": "body"})
    batch = {"id": ["a", "b"], "body": ["x", "y"], "label": [1, 2], "input_label": [3, 4]}
    found = predict(batch)
    assert found["id"] == ["a", "b"] and found["input_label"] == [3, 4]
    assert found["gold"] == [1, 2] and set(found["label"]) <= {"neg", "pos"}


def test_a_process_loads_a_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    original = predictor.Predictor

    def load(*arguments: Any, **options: Any) -> Any:
        loaded.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(predictor, "Predictor", load)
    for _ in range(3):  # as a worker of Spark gets it, once for each task
        predict = pickle.loads(pickle.dumps(BatchPredictor(fx.trained("classify"), max_tokens=100)))
        predict({"text": ["a room"]})
    assert len(loaded) == 1


def test_blank_and_empty_batches() -> None:
    predict = BatchPredictor(fx.trained("classify"))
    table = pyarrow.table({"text": ["", " "]})
    tables = [predict(table), predict(pyarrow.table({"text": ["a room"]}))]
    found = pyarrow.concat_tables(tables, promote_options="permissive").to_pylist()
    assert [row["label"] is None for row in found] == [True, True, False]
    assert [row["score"] is None for row in found] == [True, True, False]
    mixed = predict({"text": ["a room", "a film"], "by": [{"name": "x"}, {"name": "y"}]})
    assert mixed["by"] == [{"name": "x"}, {"name": "y"}] and len(mixed["label"]) == 2
    assert predict(table[:0]) == table[:0] and predict({"text": []}) == {"text": []}


@pytest.mark.parametrize("batch", [["a room"], "a room", 3, [{"text": "a room"}]])
def test_other_batches_are_refused(batch: Any) -> None:
    with pytest.raises(UserError, match="a batch is a dict of columns"):
        BatchPredictor(fx.trained("classify"))(batch)
