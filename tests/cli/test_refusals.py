"""Values that no command can use end it at once, in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import small_data
from tests.command import run
from tests.small_data import write_jsonl
from tests.tiny import save_tiny_checkpoint


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    save_tiny_checkpoint(folder / "bert", "bert")
    small_data.sentiment(folder / "data")
    small_data.running_text(folder / "text")
    small_data.relations(folder / "relations")
    (folder / "empty.txt").write_text("", "utf-8")
    (folder / "words.txt").write_text("the bank\nthe die is cast\na die\n", "utf-8")
    return folder


REFUSED = {
    "map bert --file words.txt --word die --out x.csv --seed 4294967296": "--seed 4294967296",
    "similarity bert --data words.txt --seed -1": "--seed -1: must be from 0",
    "compare a b --seed -1": "--seed -1: must be from 0",
    "geometry bert --data empty.txt": "empty.txt",
    "classify --model bert --data data --out r --tuning lora --lora 1000000": "32 or less",
    "sentence --model bert --data words.txt --objective simcse --batch-size 1": "of a batch",
}


@pytest.mark.parametrize("command", REFUSED)
def test_refusals(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    done = run(*command.split())
    assert done.code == 2 and REFUSED[command] in done.err, done.err
    assert done.err.splitlines()[-1].startswith("error: ")


def test_damaged_folders_of_runs(place: Path, tmp_path: Path) -> None:
    words = (
        "classify",
        "--model",
        place / "bert",
        "--data",
        place / "data",
        "--steps",
        "1",
        "--few-shot",
        "--per-class",
        "4",
        "--out",
        tmp_path / "few",
    )
    assert run(*words).code == 0
    (tmp_path / "few" / "best" / "classifier.safetensors").unlink()
    done = run("predict", tmp_path / "few", "--text", "a")
    assert done.code == 2 and "classifier.safetensors: is missing" in done.err
    search = (
        "search",
        "classify",
        "--model",
        place / "bert",
        "--data",
        place / "data",
        "--steps",
        "1",
        "--trials",
        "1",
        "--out",
        tmp_path / "found",
    )
    assert run(*search).code == 0
    (tmp_path / "found" / "search.db").write_bytes(b"no database" * 500)
    done = run(*search)
    assert done.code == 2 and "search.db: damaged" in done.err


def test_relations_have_no_advice_on_labels_of_spans(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "relations", tmp_path / "data")
    path = next((tmp_path / "data").glob("train.*"))
    row = json.loads(path.read_text("utf-8").splitlines()[0])
    row["spans"].append({**row["spans"][0], "label": "OTHER"})
    with path.open("a", encoding="utf-8") as file:
        file.write((json.dumps(row) + "\n") * 20)
    done = run(
        "relations",
        "--model",
        place / "bert",
        "--data",
        tmp_path / "data",
        "--steps",
        "1",
        "--out",
        tmp_path / "run",
    )
    assert done.code == 0 and "--multi-label" not in done.out + done.err


def test_equal_labels_of_sentence_pairs_are_said(place: Path, tmp_path: Path) -> None:
    rows = [{"text": f"a {n}", "text_pair": f"b {n}", "label": 1.0} for n in range(9)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    done = run(
        "sentence",
        "--model",
        place / "bert",
        "--data",
        f"train={tmp_path / 'train.jsonl'}",
        "--objective",
        "cosine",
        "--steps",
        "1",
        "--out",
        tmp_path / "run",
    )
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


def test_markup_in_labels_is_text_in_the_readme(place: Path, tmp_path: Path) -> None:
    label = "<img src=x onerror=alert(1)> [a](b) `c`"
    for split, number in (("train", 20), ("test", 6)):
        rows = [{"text": f"room {n}", "label": (label, "plain")[n % 5 == 0]} for n in range(number)]
        write_jsonl(tmp_path / "data" / f"{split}.jsonl", rows)
    done = run(
        "classify",
        "--model",
        place / "bert",
        "--data",
        tmp_path / "data",
        "--steps",
        "1",
        "--out",
        tmp_path / "run",
    )
    assert done.code == 0, done.err
    text = (tmp_path / "run" / "README.md").read_text("utf-8")
    outside = "".join(part for n, part in enumerate(text.split("`")) if n % 2 == 0)
    assert "<img" not in outside and "[a](b)" not in outside.replace("\\[", "")


def test_thresholds_need_some_examples_of_a_label(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "data", tmp_path / "data")
    (tmp_path / "data" / "validation.jsonl").unlink()  # a tenth of the few examples is held out
    done = run(
        "classify",
        "--model",
        place / "bert",
        "--data",
        tmp_path / "data",
        "--few-shot",
        "--per-class",
        "4",
        "--steps",
        "1",
        "--out",
        tmp_path / "run",
    )
    assert done.code == 0, done.err
    done = run("thresholds", tmp_path / "run")
    assert done.code == 2 and "no label has 5 gold examples in validation" in done.err
