"""What stands around a sentence: which words are read, and that no document's border is crossed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.config.tasks import NerConfig, TagConfig
from finetune.data import check_data, document_notes, read_token_file, read_tokens
from finetune.data.examples import Dataset
from finetune.preprocessing.context import fill, surrounded
from finetune.types import DataError, TokenExample
from tests.command import option_texts
from tests.small_data import write_jsonl

# The setting


@pytest.mark.parametrize("config", [TagConfig, NerConfig])
def test_legal_settings(config: type):
    assert config().context == "none"
    assert [config(context=each).context for each in ("doc", "64")] == ["doc", "64"]
    assert config(context=64) == config(context="64"), "from Python"
    for wrong in ("0", "-1", "1.5", "document", "", "all", 0, -1):
        with pytest.raises(ValueError, match="--context must be none, doc, or a number"):
            config(context=wrong)
    assert "subwords" in option_texts(config)["--context"]
    with pytest.raises(ValueError, match="--lr must be above 0"):
        config(lr=-1.0)  # what else there is to be checked still is


# How much of each side is read


PIECES = st.lists(st.integers(1, 6), max_size=12)


@given(PIECES, PIECES, st.integers(0, 50), st.integers(1, 30))
def test_filled_as_far_and_as_evenly_as_there_is_room(before, after, spare, most):
    left, right = fill(before, after, spare, most)
    read = [sum(before[:left]), sum(after[:right])]
    assert sum(read) <= spare and max(read) <= most
    next_word = [[*side, 10**6][number] for side, number in ((before, left), (after, right))]
    for side in (0, 1):  # no side could have had a word more
        too_many = read[side] + next_word[side] > most
        assert too_many or sum(read) + next_word[side] > spare
    for side, words, number in ((0, before, left), (1, after, right)):
        half = spare // 2
        if number and read[side] - words[number - 1] > half:  # more than a word above its half
            short = min(sum((after, before)[side]), most) < half
            assert short or read[1 - side] + next_word[1 - side] > half


# Which sentences stand around


def sentences(*documents: tuple[str | None, int], size: int = 2) -> list[TokenExample]:
    """Sentences of documents (name, number of them), of words that occur once."""
    names = [name for name, number in documents for _ in range(number)]
    return [
        TokenExample(i, tuple(f"w{i}.{j}" for j in range(size)), document=name)
        for i, name in enumerate(names)
    ]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 4)), max_size=20),
    st.integers(1, 12),
)
def test_neighbours_are_those_of_the_document(rows, reach):
    examples = [
        TokenExample(i, tuple(f"w{i}.{j}" for j in range(size)), document=name)
        for i, (name, size) in enumerate(rows)
    ]
    found = list(surrounded(examples, reach))
    assert [(e.id, e.words) for e in found] == [(e.id, e.words) for e in examples]
    for index, example in enumerate(found):
        before, after = [], []
        for side, step in ((before, -1), (after, 1)):
            at = index + step
            while example.document is not None and 0 <= at < len(rows):
                if examples[at].document != example.document:
                    break
                side += [examples[at].words] * bool(examples[at].words)
                at += step
        # a part of all there is, from the sentence outward
        assert list(reversed(example.before)) == before[: len(example.before)]
        assert list(example.after) == after[: len(example.after)]
        if all(size for _, size in rows):  # and enough to be read
            for side, whole in ((example.before, before), (example.after, after)):
                assert sum(map(len, side)) >= min(reach, sum(map(len, whole)))


def test_a_stream_is_read_no_further_than_that():
    taken = 0

    def stream() -> Iterator[TokenExample]:
        nonlocal taken
        for example in sentences(("a", 1000)):
            taken += 1
            yield example

    found = surrounded(stream(), 10)
    for index in range(900):
        assert next(found).id == index
        assert taken <= index + 1 + 5 + 1


# Documents in files


def columns(*rows: str) -> str:
    return "".join(f"{row} O\n" if row else "\n" for row in rows)


def test_usual_names_of_documents(tmp_path: Path):
    for name in ("document", "document_id", "doc_id", "doc_key", "article"):
        rows = [{"tokens": ["x"], "tags": ["O"], name: document} for document in "aab"]
        path = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        columns = {"document": "article"} if name == "article" else {}
        read = read_tokens(f"train={path}", columns=columns).splits["train"]
        assert [row.document for row in read] == ["a", "a", "b"], name
    (tmp_path / "c.csv").write_text("text,doc_id\nAna saw,1\nthe river,1\n")
    assert [row.document for row in read_token_file(tmp_path / "c.csv")] == ["1", "1"]
    (path := tmp_path / "a.conll").write_text("x O\n")
    with pytest.raises(DataError, match="mark documents by -DOCSTART- or # newdoc lines"):
        read_tokens(f"train={path}", columns={"document": "2"})


def test_empty_cells_name_no_document(tmp_path: Path):
    """Two sentences that name none are no neighbours."""
    table = tmp_path / "texts.csv"
    table.write_text("text,document\nAnna saw it,\na river,\nmore,0\n")
    assert [e.document for e in read_token_file(table)] == [None, None, "0"]
    lines = tmp_path / "train.jsonl"
    rows = [{"tokens": ["a"], "tags": ["O"], "document": name} for name in ("", None, 0)]
    lines.write_text("\n".join(map(json.dumps, rows)))
    assert [e.document for e in read_tokens(str(lines)).splits["train"]] == [None, None, "0"]


def test_each_file_of_a_split_has_documents_of_its_own(tmp_path: Path):
    for number in (0, 1):
        text = columns("-DOCSTART-", "", f"x{number}", "", "y", "")
        (tmp_path / f"train-0000{number}-of-00002.conll").write_text(text)
    rows = read_tokens(str(tmp_path)).splits["train"]
    assert [row.document for row in rows] == ["1", "1", "1 in file 2", "1 in file 2"]
    assert [row.before for row in surrounded(rows, 9)] == [(), (("x0",),), (), (("x1",),)]


def test_what_check_says_of_documents():
    whole = sentences(("a", 3), ("b", 1))
    lines = [
        (finding.level, finding.message)
        for finding in check_data(Dataset("x", {"train": whole, "test": sentences(("a", 2))}))
        if finding.check == "documents"
    ]
    assert lines == [
        ("info", "train: 2 documents, sentences mean 2.0, median 2, 95% up to 3, longest 3"),
        ("info", "test: 1 document, sentences mean 2.0, median 2, 95% up to 2, longest 2"),
    ]
    assert document_notes("train", whole) == []
    torn = sentences(("a", 2), (None, 3), ("b", 1), ("a", 1), ("b", 1))
    nameless, again = document_notes("train", torn)
    assert "3 of 8 sentences have no document name" in nameless
    assert "documents continue 2 times after another one began" in again
    (line,) = [
        finding
        for finding in check_data(Dataset("x", {"train": sentences((None, 3))}))
        if finding.check == "documents"
    ]
    assert line.level == "info" and "no sentence names its document" in line.message
