"""Labels under other names: one spelling for several, and a file of names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finetune.config.tasks import CONFIGS
from finetune.data import DataError, check_data, read_text, read_tokens
from finetune.data.label_names import read_label_map, renamed
from finetune.tasks import load_task
from tests import laboratory as lab

NAMES = ["Pos", "pos", "pos", "POS ", "neg", "Neg", "neg", "neutral"]


def texts(names: list[str]) -> list[dict[str, object]]:
    return [{"text": f"text {i}", "label": name} for i, name in enumerate(names)]


def labels(data) -> list:
    return [row.label for row in data.splits["train"]]


def test_fold_takes_the_most_frequent_spelling() -> None:
    data = renamed(read_text(texts(NAMES)), fold=True, map_file=None)
    assert labels(data) == ["pos"] * 4 + ["neg"] * 3 + ["neutral"]
    assert data.notes[-1] == "--labels-case fold: one spelling each of neg, pos"
    several = [{"text": "a", "label": ["Joy", "joy"]}, {"text": "b", "label": ["joy", "fear"]}]
    assert labels(renamed(read_text(several), fold=True, map_file=None)) == [
        ("joy",),
        ("joy", "fear"),
    ]


def test_labels_of_texts_have_no_prefixes(tmp_path: Path) -> None:
    names = {"B-cell": "lymphocyte B", "T-cell": "lymphocyte T"}
    (tmp_path / "map.json").write_text(json.dumps(names))
    data = read_text(texts([*names]))
    assert labels(renamed(data, fold=False, map_file=str(tmp_path / "map.json"))) == [
        "lymphocyte B",
        "lymphocyte T",
    ]


def test_words_and_spans() -> None:
    rows = [
        {"tokens": ["A", "b"], "tags": ["B-PER", "B-per"]},
        {"tokens": ["c", "d"], "tags": ["B-per", "I-per"]},
    ]
    data = renamed(read_tokens(rows), fold=True, map_file=None)
    assert [row.tags for row in data.splits["train"]] == [("B-per", "B-per"), ("B-per", "I-per")]
    assert {span.label for row in data.splits["train"] for span in row.spans} == {"per"}


def test_a_file_of_names(tmp_path: Path) -> None:
    contents = {
        "a.json": json.dumps({"Pos": "good", "pos": "good", "POS": "good"}),
        "a.csv": "name,label\ngood,Pos\ngood,pos\ngood,POS\n",
        "a.tsv": "Pos\tgood\npos\tgood\nPOS\tgood\n",
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_text(content)
        data = renamed(read_text(texts(NAMES)), fold=True, map_file=str(path))
        assert labels(data) == ["good"] * 4 + ["neg"] * 3 + ["neutral"], name
    assert "--label-map: renamed 3 labels, 4 times" in data.notes


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[1]", "there is no label in it"),
        ("a.json", '{"pos": 1}', "is not a label and its new name: write a JSON object"),
        ("a.csv", "pos\n", "is not a label and its new name"),
        ("a.csv", "label,name\npos,\n", "is not a label and its new name"),
        ("a.tsv", "pos\ta\npos\tb\n", "'pos' has two names, 'a' and 'b'"),
        ("a.json", "{", "a.json"),
        ("a.conll", "pos O\n", "a.conll: write a JSON object"),
        ("a.csv", "positive,a\n", r"none of its labels is one of the data \(Neg, POS, Pos"),
        ("map.conll", "Ana B-PER\nran O\n", "write a JSON object"),
    ],
)
def test_files_that_are_no_names(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_label_map(str(path))
        renamed(read_text(texts(NAMES)), fold=False, map_file=str(path))


def test_the_warning_names_the_options_once() -> None:
    found = [
        each
        for each in check_data(read_text(texts(NAMES)), max_length=None)
        if "differ only in case" in each.message
    ]
    (warning,) = found
    assert "'Neg' (1), 'neg' (2); 'POS' (1), 'Pos' (1), 'pos' (2)" in warning.message
    assert "--labels-case fold" in warning.message and "--label-map FILE" in warning.message


def test_training_reads_them(tmp_path: Path) -> None:
    model = str(lab.checkpoint())
    config = CONFIGS["classify"](model=model, labels_case="fold")
    task, data = load_task(config, "classify", texts(NAMES * 3))
    assert list(task.record.labels) == ["neg", "neutral", "pos"]
    assert not any("differ only in case" in note for note in data.notes)
