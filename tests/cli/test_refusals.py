"""Values that no command can use end it at once, in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import laboratory as lab
from tests.command import run
from tests.small_data import write_jsonl

REFUSED = {
    "map bert --file words.txt --word die --out x.csv --seed 4294967296": "--seed 4294967296",
    "similarity bert --data words.txt --seed -1": "--seed -1: must be from 0",
    "compare a b --seed -1": "--seed -1: must be from 0",
    "geometry bert --data empty.txt": "empty.txt",
    "classify --model bert --data data --out r --tuning lora --lora 1000000": "32 or less",
    "sentence --model bert --data words.txt --objective simcse --batch-size 1": "of a batch",
}


@pytest.mark.parametrize("command", REFUSED)
def test_refusals(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("", "utf-8")
    Path("words.txt").write_text("the bank\nthe die is cast\na die\n", "utf-8")
    given = {"bert": lab.checkpoint(), "data": lab.data("sentiment")}
    done = run(*(given.get(word, word) for word in command.split()))
    assert done.code == 2 and REFUSED[command] in done.err, done.err
    assert done.err.splitlines()[-1].startswith("error: ")


def test_damaged_folders_of_runs(tmp_path: Path) -> None:
    few = lab.train("classify", tmp_path / "few", few_shot=True, per_class=4)
    assert few.code == 0, few.err
    (tmp_path / "few" / "best" / "classifier.safetensors").unlink()
    done = run("predict", tmp_path / "few", "--text", "a")
    assert done.code == 2 and "classifier.safetensors: is missing" in done.err
    given = ("--model", lab.checkpoint(), "--data", lab.data("sentiment"))
    search = ("search", "classify", *given, "--steps=1", "--trials=1", "--out", tmp_path / "found")
    assert run(*search).code == 0
    (tmp_path / "found" / "search.db").write_bytes(b"no database" * 500)
    done = run(*search)
    assert done.code == 2 and "search.db: damaged" in done.err


def test_relations_have_no_advice_on_labels_of_spans(tmp_path: Path) -> None:
    data = shutil.copytree(lab.data("relations"), tmp_path / "data")
    path = data / "train.jsonl"
    row = json.loads(path.read_text("utf-8").splitlines()[0])
    row["spans"].append({**row["spans"][0], "label": "OTHER"})
    with path.open("a", encoding="utf-8") as file:
        file.write((json.dumps(row) + "\n") * 20)
    done = lab.train("relations", tmp_path / "run", data=data)
    assert done.code == 0 and "--multi-label" not in done.out + done.err


def test_equal_labels_of_sentence_pairs_are_said(tmp_path: Path) -> None:
    rows = [{"text": f"a {n}", "text_pair": f"b {n}", "label": 1.0} for n in range(9)]
    data = f"train={write_jsonl(tmp_path / 'train.jsonl', rows)}"
    done = lab.train("sentence", tmp_path / "run", data=data, objective="cosine")
    assert "warning: all pairs of train have the label" in done.out + done.err


def test_rows_that_are_left_out_are_not_counted(tmp_path: Path) -> None:
    rows = [
        {"tokens": ["a"], "tags": ["O"]},
        {"tokens": [], "tags": []},
        {"tokens": ["b"], "tags": ["B-X"]},
    ]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    done = run("convert", source, "--to", "conll", "--out", tmp_path / "out.conll")
    assert done.code == 0 and "wrote 2 rows" in done.err, done.err


def test_markup_in_labels_is_text_in_the_readme(tmp_path: Path) -> None:
    label = "<img src=x onerror=alert(1)> [a](b) `c`"
    for split, number in (("train", 20), ("test", 6)):
        rows = [{"text": f"room {n}", "label": (label, "plain")[n % 5 == 0]} for n in range(number)]
        write_jsonl(tmp_path / "data" / f"{split}.jsonl", rows)
    done = lab.train("classify", tmp_path / "run", data=tmp_path / "data")
    assert done.code == 0, done.err
    text = (tmp_path / "run" / "README.md").read_text("utf-8")
    outside = "".join(part for n, part in enumerate(text.split("`")) if n % 2 == 0)
    assert "<img" not in outside and "[a](b)" not in outside.replace("\\[", "")


def test_thresholds_need_some_examples_of_a_label(tmp_path: Path) -> None:
    data = shutil.copytree(lab.data("sentiment"), tmp_path / "data")
    (data / "validation.jsonl").unlink()  # a tenth of the few examples is held out
    done = lab.train("classify", tmp_path / "run", data=data, few_shot=True, per_class=4)
    assert done.code == 0, done.err
    done = run("thresholds", tmp_path / "run")
    assert done.code == 2 and "no label has 5 gold examples in validation" in done.err
