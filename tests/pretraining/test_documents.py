"""Documents of running text."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path
from random import Random

import pytest

from finetune.data import examples as holder
from finetune.data import files, read_text
from finetune.data.running_text import text_sources
from finetune.data.sources import input_files
from finetune.pretraining.documents import read_running_text
from finetune.types import UserError


def texts(spec: Path | str, split: str = "train", **options) -> list[str]:
    return [example.text for example in read_running_text(str(spec), **options).splits[split]]


def test_lines_and_documents(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n\n\n three \n \nfour\n\n", "utf-8")
    assert texts(file) == ["one\ntwo", " three ", "four"]
    locations = [example.where for example in read_running_text(str(file)).splits["train"]]
    assert locations == [f"{file}:1", f"{file}:5", f"{file}:7"]
    file.write_text("one\r\ntwo\r\n", "utf-8")
    assert texts(file) == ["one", "two"], "without blank lines each line is a document"
    with gzip.open(tmp_path / "b.txt.gz", "wt") as zipped:
        zipped.write("one\ntwo")
    assert texts(tmp_path / "b.txt.gz") == ["one", "two"]
    file.write_bytes("né\n".encode("cp1252"))
    assert texts(file, encoding="cp1252") == ["né"]


def test_both_texts_of_pairs_are_read_unless_one_is_named(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"premise": "One.", "hypothesis": "Two."}\n')
    assert list(text_sources(str(path))[0].lines()) == ["One.", "Two."]
    for columns, text in (((), "One.\nTwo."), (["text=hypothesis"], "Two.")):
        (document,) = read_running_text(str(path), columns=columns).splits["train"]
        assert (document.text, document.where) == (text, f"{path}:1")


@pytest.mark.parametrize("size", [1, 50, files.PIECE])
def test_documents_of_many_pieces(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of some bytes, in memory and on disk, against a loop over the lines of the file."""
    monkeypatch.setattr(files, "PIECE", size)
    monkeypatch.setattr(holder, "CHUNK", 4)
    blank, draw, spec = ["", " ", "\u00a0", "\t\r"], Random(size), []
    expected = []
    for number, parts in enumerate([[*blank, "ä", "two words", " b "], ["a", "b\r", "\u2028c"]]):
        lines = ["first", *draw.choices(parts, k=200)]
        path = tmp_path / f"{number}.txt"
        path.write_text("\ufeff" * number + "\n".join(lines), "utf-8", newline="")
        spec.append(f"s{number}={path}")
        begun: list[str] = []
        for line_number, line in enumerate([line.rstrip("\r") for line in [*lines, ""]], 1):
            begun += [line] if line.strip() else []
            if begun and (number == 1 or not line.strip()):
                start = f"{path}:{line_number - len(begun) + number}"
                expected.append(("\n".join(begun), start, f"s{number}"))
                begun = []
    for most in (1000, 5):
        monkeypatch.setattr(holder, "MOST_IN_MEMORY", most)
        found = read_running_text(",".join(spec)).splits["train"]
        assert found.is_large == (most == 5)
        assert [(each.text, each.where, each.key) for each in found] == expected
        assert [each.id for each in found] == list(range(len(expected)))


@pytest.mark.skipif(os.name != "posix", reason="pipes with names are of POSIX")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    writer = threading.Thread(target=(tmp_path / "a.txt").write_text, args=("one\ntwo\n\n\n3",))
    writer.start()
    assert texts(tmp_path / "a.txt") == ["one\ntwo", "3"]
    writer.join()


def test_folders_are_read_as_for_other_tasks(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "README.txt", "LICENSE", "_more.txt", "._a.txt"):
        (tmp_path / name).write_text(name, "utf-8")
    with gzip.open(tmp_path / "a.txt.gz", "wt") as zipped:
        zipped.write("a.txt")
    assert texts(tmp_path) == ["a.txt", "b.txt"]
    for path in [*tmp_path.iterdir()]:
        path.rename(path.with_name(path.name.replace("txt", "csv")))
    assert [path.name for path in input_files(tmp_path)] == ["a.csv", "b.csv"]


def test_rows_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one\\n\\ntwo"}\n{"text": "three"}\n', "utf-8")
    assert texts(tmp_path / "a.jsonl") == ["one\ntwo", "three"]
    (tmp_path / "b.csv").write_text("id,body\n1,one\n2,two\n", "utf-8")
    assert texts(tmp_path / "b.csv", columns=("text=body",)) == ["one", "two"]
    (tmp_path / "d.conll").write_bytes("Zoë B-PER\n".encode("cp1252"))
    assert texts(tmp_path / "d.conll", encoding="cp1252") == ["Zoë"]


def test_questions_about_a_context_are_one_document(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    row = '{"title": "A mill", "context": "%s", "question": "%s", "answers": []}\n'
    pairs = (("One.", "Who?"), ("One.", "When?"), ("Two.", "Who?"), ("One.", "Where?"))
    path.write_text("".join(row % pair for pair in pairs))
    documents = read_running_text(str(path)).splits["train"]
    texts = [(document.text, document.where) for document in documents]
    assert texts == [("One.", f"{path}:1"), ("Two.", f"{path}:3"), ("One.", f"{path}:4")]
    untitled = [{"question": "Who?", "context": "One.", "answers": []}]
    with pytest.raises(UserError, match="no column is known to hold a text"):
        read_text(untitled)  # a context alone is no text to classify
    for name, content in (("equal.txt", "Ha!\nHa!\n"), ("equal.jsonl", '{"text": "Ha!"}\n' * 2)):
        (tmp_path / name).write_text(content)
        rows = read_running_text(str(tmp_path / name)).splits["train"]
        assert list(rows.column("text")) == ["Ha!", "Ha!"], "equal texts stay"


def test_splits_and_sources_of_documents(tmp_path: Path) -> None:
    for name in ("train.txt", "dev.txt", "other.txt"):
        (tmp_path / name).write_text(f"{name}\n", "utf-8")
    data = read_running_text(str(tmp_path))
    assert list(data.splits) == ["train", "validation"]
    assert any("other.txt" in note for note in data.notes)
    (tmp_path / "en").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "en" / name).write_text(f"{name}\nx\n\ny\n", "utf-8")
    assert texts(tmp_path / "en") == ["a.txt\nx", "y", "b.txt\nx", "y"]
    data = read_running_text(f"train={tmp_path}/en,test={tmp_path}/dev.txt")
    assert [len(rows) for rows in data.splits.values()] == [4, 1]
    assert {example.key for example in data.splits["train"]} == {None}
    data = read_running_text(f"en={tmp_path}/en,de={tmp_path}/other.txt")
    assert [example.key for example in data.splits["train"]] == ["en"] * 4 + ["de"]
    with pytest.raises(UserError, match="'en' is not a split and the others are"):
        read_running_text(f"train={tmp_path}/en,en={tmp_path}/dev.txt")


def test_errors_of_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n", "utf-8")
    with pytest.raises(UserError, match=r"a\.txt: there is no text in it"):
        read_running_text(str(tmp_path / "a.txt"))
    with pytest.raises(UserError, match="no such file"):
        read_running_text(str(tmp_path / "missing.txt"))
