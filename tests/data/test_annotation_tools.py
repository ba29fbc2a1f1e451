"""Exports of annotation tools."""

import json
from functools import partial

import pytest

from finetune.data import DataError, data_kind, read_text, read_tokens
from finetune.data.dataset import Dataset
from finetune.types import Relation, Span

TEXT = "Ann Lee ran"


def span(start, end, label):
    return {"start": start, "end": end, "labels": [label], "text": TEXT[start:end]}


def task(number, *annotations, text=TEXT):
    """One task of Label Studio's default export, with its annotations (result, annotator)."""
    return {
        "id": number,
        "data": {"text": text},
        "annotations": [
            {"id": 1, "completed_by": who, "was_cancelled": False, "result": result}
            for result, who in annotations
        ],
        "predictions": [],
    }


def spans(*values):
    return [
        {"value": value, "type": "labels", "from_name": "label", "to_name": "text"}
        for value in values
    ]


def choices(*names):
    return [{"value": {"choices": list(names)}, "type": "choices", "from_name": "x"}]


def read(tmp_path, rows, reader=read_text, name="a.json") -> Dataset:
    path = tmp_path / name
    text = json.dumps(rows) if name == "a.json" else "".join(json.dumps(r) + "\n" for r in rows)
    path.write_text(text)
    return reader(str(path))


def test_spans_of_label_studio(tmp_path):
    rows = [task(1, (spans(span(0, 7, "PER")), 1)), task(2, ([], 1)), task(3)]
    dataset = read(tmp_path, rows, read_tokens)
    found = dataset.splits["train"]
    assert [example.spans for example in found] == [(Span(0, 2, "PER"),), (), None]
    assert data_kind(str(tmp_path / "a.json")) == "tokens"
    minimal = [{"id": 1, "text": TEXT, "label": [span(0, 7, "PER")], "annotator": 1}]
    assert read(tmp_path, minimal, read_tokens).splits["train"][0].spans == found[0].spans


def test_labels_of_label_studio(tmp_path):
    rows = [task(1, (choices("pos"), 1), text="a"), task(2, (choices("neg"), 1), text="b")]
    assert [e.label for e in read(tmp_path, rows).splits["train"]] == ["pos", "neg"]
    rows.append(task(3, (choices("pos", "neg"), 1), text="c"))
    assert read(tmp_path, rows).splits["train"][2].label == ("pos", "neg")
    stars = [task(1, ([{"value": {"rating": 4}, "type": "rating"}], 1))]
    assert read(tmp_path, stars).splits["train"][0].label == 4.0
    rows[0]["annotations"][0]["was_cancelled"] = True
    dataset = read(tmp_path, rows)
    assert "train: 1 row rejected or ignored" in dataset.notes
    with pytest.raises(DataError, match=r"a.json:item 1: .* is not an annotation of Label Studio"):
        read(tmp_path, [{"id": 1, "data": {"text": "a"}, "annotations": [3]}])


def test_choices_of_prodigy(tmp_path):
    options = [{"id": "pos"}, {"id": "neg"}]
    rows = [
        {"text": "a", "options": options, "accept": ["pos"], "answer": "accept"},
        {"text": "b", "options": options, "accept": ["neg"], "answer": "accept"},
        {"text": "c", "options": options, "accept": [], "answer": "ignore"},
    ]
    dataset = read(tmp_path, rows, name="a.jsonl")
    assert [e.label for e in dataset.splits["train"]] == ["pos", "neg"]
    assert data_kind(str(tmp_path / "a.jsonl")) == "text"
    for row in rows:
        row["config"] = {"choice_style": "multiple"}
    single = read(tmp_path, rows, name="a.jsonl")
    assert single.splits["train"][0].label == "pos"
    assert any("each label is a list of one: read as one label" in note for note in single.notes)
    rows[1]["accept"] = ["neg", "pos"]
    assert read(tmp_path, rows, name="a.jsonl").splits["train"][0].label == ("pos",)


def test_each_annotation_is_a_row(tmp_path):
    rows = [{"text": "a", "label": label, "annotator": n} for n, label in enumerate("xxy")]
    dataset = read(tmp_path, rows, name="a.jsonl")
    assert [example.label for example in dataset.splits["train"]] == ["x", "x", "y"]
    same, other = spans(span(0, 7, "PER")), spans(span(0, 3, "PER"))
    dataset = read(tmp_path, [task(1, (same, 1), (other, 2))], read_tokens)
    assert [example.spans for example in dataset.splits["train"]] == [
        (Span(0, 2, "PER"),),
        (Span(0, 1, "PER"),),
    ]


def test_workbooks(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["text", "label"], ["a", "x"], [None, None], ["b", "y"], ["c", None]):
        book.active.append(row)
    book.create_sheet("notes")
    book.save(tmp_path / "train.xlsx")
    dataset = read_text(str(tmp_path))
    assert [(e.text, e.label) for e in dataset.splits["train"]] == [
        ("a", "x"),
        ("b", "y"),
        ("c", None),
    ]
    assert dataset.splits["train"][1].where.endswith("train.xlsx:row 4")
    assert "only the first sheet, 'Sheet', is read, not 'notes'" in dataset.notes
    (tmp_path / "train.xlsx").write_bytes(b"no workbook")
    with pytest.raises(DataError, match=r"train.xlsx: not a readable workbook"):
        read_text(str(tmp_path))


def test_choices_of_prodigy_without_a_configuration(tmp_path):
    row = {"text": "a", "options": [{"id": "p"}], "accept": ["p"], "answer": "accept"}
    rows = [row, {**row, "config": None}, {**row, "config": []}, {**row, "config": {}}]
    assert [e.label for e in read(tmp_path, rows, name="a.jsonl").splits["train"]] == ["p"] * 4


DYGIE = {
    "doc_key": "d1",
    "sentences": [["Ann", "ran"], ["Bo", "Lee", "met", "Ann"], ["So"]],
    "ner": [[[0, 0, "PER"]], [[2, 3, "PER"], [5, 5, "PER"]], []],
    "relations": [[], [[2, 3, 5, 5, "met"]], []],
}
GLINER = {"tokenized_text": ["Bo", "Lee", "ran"], "ner": [[0, 1, "PER"]]}
CLUENER = {"text": "Bo met Bo.", "label": {"PER": {"Bo": [[0, 1], [7, 8]]}}}


def test_spans_with_inclusive_ends(tmp_path):
    ann, lee = Span(3, 4, "PER"), Span(0, 2, "PER")
    rows = read(tmp_path, [DYGIE, DYGIE], read_tokens, "a.jsonl").splits["train"]
    assert [(row.words, row.spans, row.document) for row in rows[:3]] == [
        (("Ann", "ran"), (Span(0, 1, "PER"),), "d1"),
        (("Bo", "Lee", "met", "Ann"), (lee, ann), "d1"),
        (("So",), (), "d1"),
    ]
    assert len(rows) == 6
    related = read(tmp_path, [DYGIE], partial(read_tokens, relations=True)).splits["train"]
    assert [row.relations for row in related] == [(), (Relation(lee, ann, "met"),), ()]
    (row,) = read(tmp_path, [GLINER], read_tokens).splits["train"]
    assert (row.words, row.spans) == (("Bo", "Lee", "ran"), (lee,))
    (row,) = read(tmp_path, [CLUENER], read_tokens).splits["train"]
    assert row.spans == (Span(0, 1, "PER"), Span(2, 3, "PER"))
    assert data_kind(str(tmp_path / "a.json")) == "tokens"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (DYGIE | {"ner": [[]]}, "sentence 2: `ner` .* as in DyGIE"),
        (DYGIE | {"relations": [[], [[2, 2, 5, 5, "met"]], []]}, "sentence 2: .* not a relation"),
        (DYGIE | {"relations": [[], [[2, 3, "met"]], []]}, "item 1, sentence 2: .* as in"),
        (DYGIE | {"ner": [[[0, 0]], [], []]}, "item 1, sentence 1: .* as in"),
        (GLINER | {"ner": [[0, 3, "PER"]]}, "span 0 to 4 .* outside the 3 words"),
        (GLINER | {"ner": [["Bo", 0, 0, "PER"]]}, "item 1: `ner` must be as in GLiNER"),
        (CLUENER | {"label": {"PER": {"Bo": [[0, 3]]}}}, "characters 0 to 4 are 'Bo m'"),
        (CLUENER | {"label": {"PER": {"Bo": 1}}}, "item 1: `label` must be as in CLUENER"),
    ],
)
def test_spans_that_do_not_fit_their_format(tmp_path, row, problem):
    with pytest.raises(DataError, match=problem):
        read(tmp_path, [row], partial(read_tokens, relations=True))
