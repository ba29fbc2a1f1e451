"""``predict`` takes what ``train`` takes, and finds the columns that training named."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import finetune
from finetune.runtime.row_files import write_rows
from finetune.types import TextExample, TokenExample, UserError
from tests import fixtures as fx
from tests import small_data
from tests.command import run
from tests.small_data import read_jsonl

TICKETS = [
    {"Ticket": f"a {word} room {i}", "Team": word, "Id": i}
    for i, word in enumerate(["bright", "dull"] * 10)
]
TEXTS = [row["Ticket"] for row in TICKETS]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on texts and on words whose columns have unusual names."""
    folder = tmp_path_factory.mktemp("tables")
    model = str(fx.checkpoint())
    settings: dict[str, Any] = {"steps": 2, "quiet": True}
    columns = {"text": "Ticket", "label": "Team"}
    finetune.train("classify", TICKETS, model, columns=columns, out=str(folder / "run"), **settings)
    words = read_jsonl(fx.data("entities") / "train.jsonl")
    rows = [{"Sentence": row["tokens"], "Marks": row["tags"]} for row in words]
    columns = ["words=Sentence", "tags=Marks"]
    finetune.train("tag", rows, model, columns=columns, out=str(folder / "tagged"), **settings)
    (folder / "rows.json").write_text(json.dumps(rows))
    return folder


def tables() -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    return {
        "list of dicts": TICKETS,
        "dict of columns": {name: [row[name] for row in TICKETS] for name in TICKETS[0]},
        "data frame": pandas.DataFrame(TICKETS, index=range(7, 27)),
        "columns of a frame": {"Ticket": pandas.DataFrame(TICKETS)["Ticket"]},
        "dataset": datasets.Dataset.from_list(TICKETS),
    }


def test_tables_are_rows_not_their_headings(workdir: Path) -> None:
    model = finetune.load(workdir / "run")
    expected = model.predict(TEXTS)
    for setup, table in tables().items():
        assert model.predict(table) == expected, setup
    other = [{"Body": text} for text in TEXTS]
    assert model.predict(other, columns={"text": "Body"}) == expected
    for empty in ([], {"text": []}, {"text": [], "Id": ()}):
        assert model.predict(empty) == []


def test_words_of_tables(workdir: Path) -> None:
    model = finetune.load(workdir / "tagged")
    rows = json.loads((workdir / "rows.json").read_text())
    words = [row["Sentence"] for row in rows]
    assert model.predict(rows) == model.predict(words)
    arrays = pandas.Series([np.array(sentence) for sentence in words])  # as Parquet is read
    assert model.predict(arrays) == model.predict(words)


@pytest.mark.parametrize("dtype", ["object", "category"])
def test_missing_texts_of_a_column_are_blank(dtype: Any, workdir: Path) -> None:
    column, blank = pandas.Series(["Fine film", None], dtype=dtype), ["Fine film", ""]
    model, embedder = finetune.load(workdir / "run"), finetune.Embedder(fx.checkpoint())
    assert model.predict(column) == list(model.stream(column)) == model.predict(blank)
    vectors = [[embedding.vectors for embedding in embedder.encode(t)] for t in (column, blank)]
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"test": TICKETS}, "give one split such as data"),
        ({"text": "Fine film"}, "a dict of columns such as"),
        (3, "int is not a table"),
        (None, "NoneType is not a table"),
        ({"text": ["a", "b"], "Id": [1]}, "text has 2, Id has 1"),
        ([*TICKETS, "a text"], "'a text' is not a dict"),
        (["a text", TICKETS[0]], "neither a text nor a pair of texts"),
        ([{"Note": "x"}], "--columns text=NAME"),
        ([{"text": "a", "text_pair": "b"}], "'text' and 'text_pair' are pairs of texts, and sin"),
        (iter([{"Ticket": "x"}]), "list_iterator is not a table"),
    ],
)
def test_anything_else_is_refused(workdir: Path, given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        finetune.load(workdir / "run").predict(given)


@pytest.mark.parametrize("run", [None, {"folder": "runs/x"}])
def test_what_is_no_folder_is_refused(run: Any) -> None:
    for function in (finetune.load, finetune.distill):
        options = {"layers": 1} if function is finetune.distill else {}
        with pytest.raises(UserError, match="is no path: give the folder of a run"):
            function(run, **options)


def test_wrong_calls_of_stream_are_refused(workdir: Path) -> None:
    model = finetune.load(workdir / "run")
    for inputs, message in (
        ("ab", r"write stream\(\['ab'\]\)"),
        ({"text": ["a"]}, "dict is a table: give one of its columns"),
        (pandas.DataFrame({"text": ["a"]}), "DataFrame is a table"),
    ):
        with pytest.raises(UserError, match=message):
            list(model.stream(inputs))
    assert not [*model.stream(["a"], skip=20_000, chunk=20_000)]
    with pytest.raises(UserError, match="skip must be 0 or more, not -1"):
        [*model.stream(["a"], skip=-1)]
    with pytest.raises(UserError, match="neighboring examples have the same id"):
        model.predict([TextExample(0, "a"), TextExample(0, "b")])
    with pytest.raises(UserError, match="--decoding 3: classify models have none"):
        finetune.load(workdir / "run", decoding=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("task", "example"),
    [
        ("classify", TextExample(0, "the train was late", label="unknown")),
        ("classify", TextExample(0, "the train was late", label=0.5)),
        ("nli", TextExample(0, "a man plays", "a dog", label="unknown")),
        ("tag", TokenExample(0, ("Anna", "left"), tags=("unknown", "O"))),
    ],
)
def test_gold_that_the_model_lacks_is_not_read(task: str, example: Any) -> None:
    model = finetune.load(fx.trained(task))
    without = replace(example, **{"tags" if task == "tag" else "label": None})
    assert model.predict([example]) == model.predict([without])
    assert model.explain([example]) == model.explain([without])


def test_training_on_columns_and_settings_as_lists(workdir: Path, tmp_path: Path) -> None:
    columns = {name: [row[name] for row in TICKETS] for name in TICKETS[0]}
    for number, named in enumerate((["text=Ticket", "label=Team"], ("text=Ticket", "label=Team"))):
        settings = {"columns": named, "steps": 2, "out": str(tmp_path / str(number))}
        model = str(fx.checkpoint())
        again = finetune.train("classify", columns, model, quiet=True, **settings)
        before = json.loads((workdir / "run" / "config.json").read_text())
        after = json.loads((again.folder / "config.json").read_text())
        assert after["fingerprint"] == before["fingerprint"]
        assert after["columns"] == before["columns"] == ["text=Ticket", "label=Team"]
    with pytest.raises(UserError, match="--columns must be a list of texts, not 'text=Ticket'"):
        finetune.train("classify", columns, str(fx.checkpoint()), columns="text=Ticket")


def test_commands_find_the_columns_of_training(workdir: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.csv", TICKETS)
    found = run("predict", workdir / "run", "--file", tmp_path / "new.csv").ok()
    (tmp_path / "out.jsonl").write_text(found.out)
    model = finetune.load(workdir / "run")
    assert [row["label"] for row in found.rows] == [p.label for p in model.predict(TEXTS)]
    usual = tmp_path / "usual.jsonl"  # a file with the usual names is read as before
    small_data.write_jsonl(usual, [{"text": text} for text in TEXTS])
    assert run("predict", workdir / "run", "--file", usual).out == found.out
    held_out = read_jsonl(workdir / "run" / "predictions.validation.jsonl")
    gold = tmp_path / "gold.csv"
    write_rows(gold, [{"Team": row["gold"], "Ticket": row["text"]} for row in held_out])
    options = ("--gold", gold, "--split", "validation")
    run("report", workdir / "run", *options, "--format", "table").ok()
    other = shutil.copytree(workdir / "run", tmp_path / "other")
    run("compare", workdir / "run", other, *options).ok()


def test_blank_texts_have_no_label(workdir: Path, tmp_path: Path) -> None:
    model = finetune.load(workdir / "run")
    found = model.predict(["a room", " \t", "", "a room"])
    assert [each.label for each in found[1:3]] == [None, None]
    assert found[1].to_dict()["scores"] == {"bright": None, "dull": None}
    assert [found[0].label, found[3].label] == [p.label for p in model.predict(["a room"] * 2)]
    file = tmp_path / "blank.csv"
    file.write_text('text\n" "\na room\n" "\n')
    as_json = run("predict", workdir / "run", "--file", file)
    assert [row["label"] for row in as_json.rows][::2] == [None, None]
    assert "2 blank texts not predicted (label null)" in as_json.err
    (tmp_path / "out.jsonl").write_text(as_json.out)
    label = as_json.rows[1]["label"]
    (tmp_path / "gold.csv").write_text(f'text,label\n" ",x\na room,{label}\n" ",x\n')
    scored = run("score", tmp_path / "out.jsonl", tmp_path / "gold.csv", "--json")  # blank: wrong
    assert json.loads(scored.out)["accuracy"] == pytest.approx(1 / 3), scored.err
    run("predict", workdir / "run", "--file", file, "--out", tmp_path / "out.csv").ok()
    header, first, *lines = csv.reader((tmp_path / "out.csv").read_text("utf-8").splitlines())
    assert "score:bright" in header and first[header.index("label")] == "" and len(lines) == 2
    assert [each.label for each in model.predict([" "])] == [None]
    empty = small_data.write_jsonl(tmp_path / "empty.jsonl", [{"text": None}, {"text": "a room"}])
    done = run("predict", workdir / "run", "--file", empty)
    assert [row["label"] for row in done.rows] == [None, label]
    small_data.write_jsonl(tmp_path / "train.jsonl", [{"text": None, "label": "bright"}])
    assert "1 example with an empty text" in run("check", tmp_path / "train.jsonl").out
