"""Exports of annotation tools."""

import json

import pytest

from finetune.annotation.reading import read_annotations
from finetune.annotation.rows import Annotations
from finetune.data import DataError, read_text, read_tokens
from finetune.types import Span

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


def read(tmp_path, rows, name="a.json") -> Annotations:
    path = tmp_path / name
    text = json.dumps(rows) if name == "a.json" else "".join(json.dumps(r) + "\n" for r in rows)
    path.write_text(text)
    return read_annotations(str(path))


def spans_of(annotations: Annotations):
    return [row.example.spans for row in annotations.rows]


def labels_of(annotations: Annotations):
    return [row.example.label for row in annotations.rows]


def test_spans_of_label_studio(tmp_path):
    rows = [task(1, (spans(span(0, 7, "PER")), 1)), task(2, ([], 1)), task(3)]
    found = read(tmp_path, rows)
    assert spans_of(found) == [(Span(0, 2, "PER"),), (), None]
    minimal = {"id": 1, "text": TEXT, "annotator": 1, "annotation_id": 1}
    found = read(tmp_path, [minimal | {"label": [span(0, 7, "PER")]}, minimal])
    assert spans_of(found) == [(Span(0, 2, "PER"),), ()]


def test_labels_of_label_studio(tmp_path):
    rows = [task(1, (choices("pos"), 1), text="a"), task(2, (choices("neg"), 1), text="b")]
    assert labels_of(read(tmp_path, rows)) == ["pos", "neg"]
    rows.append(task(3, (choices("pos", "neg"), 1), text="c"))
    assert labels_of(read(tmp_path, rows))[2] == ("pos", "neg")
    rows.append(task(4, ([], 1), text="d"))
    found = read(tmp_path, rows)
    assert labels_of(found)[2:] == [("pos", "neg"), ()], "an annotation without a choice has none"
    assert found.rows[3].others == {"_annotator_id": 1}
    assert labels_of(read(tmp_path, [*rows[:2], rows[3], task(5)])) == ["pos", "neg", None, None]
    minimal = {"text": "a", "annotation_id": 1}
    some = [{"sentiment": "pos"}, {"sentiment": {"choices": ["pos", "neg"]}}, {}]
    found = read(tmp_path, [minimal | row for row in some])
    assert labels_of(found) == [("pos",), ("pos", "neg"), ()]
    stars = [task(1, ([{"value": {"rating": 4}, "type": "rating"}], 1))]
    assert labels_of(read(tmp_path, stars)) == [4.0]
    rows[0]["annotations"][0]["was_cancelled"] = True
    found = read(tmp_path, rows)
    assert "1 row that annotators rejected or ignored: left out (1)" in found.notes


def test_results_of_label_studio_in_a_column_of_any_name(tmp_path):
    topics = read(tmp_path, [{"text": TEXT, "topic": "runs", "annotation_id": 1}])
    assert (labels_of(topics), topics.rows[0].others["topic"]) == ([None], "runs")
    assert "name their column with --columns label=NAME" in topics.notes[0]
    named = read_annotations(str(tmp_path / "a.json"), columns={"label": "topic"})
    assert (labels_of(named), named.rows[0].others) == (["runs"], {"annotation_id": 1})
    assert read(tmp_path, [task(1), task(2)]).notes == topics.notes, "nothing is annotated"


@pytest.mark.parametrize("direction", ["right", "left"])
def test_relations_of_label_studio(tmp_path, direction):
    regions = [
        each | {"id": f"r{n}"} for n, each in enumerate(spans(span(0, 3, "A"), span(4, 7, "B")))
    ]
    link = {"type": "relation", "from_id": "r0", "to_id": "r1", "labels": ["of"]}
    related = task(2, ([*regions, link | {"direction": direction}], 1))
    rows = read(tmp_path, [task(1, (regions, 1)), related, task(3)]).rows
    ends = (0, 1) if direction == "right" else (1, 0)
    relations = [{"subject": ends[0], "object": ends[1], "label": "of"}]
    assert [row.relations for row in rows] == [[], relations, None]
    assert read(tmp_path, [task(1, (regions, 1))]).rows[0].relations is None, "no data of relations"
    with pytest.raises(DataError, match="the ids of two regions"):
        read(tmp_path, [task(1, ([*regions, link | {"to_id": "r9"}], 1))])


def test_choices_of_prodigy(tmp_path):
    options = [{"id": "pos"}, {"id": "neg"}]
    rows = [
        {"text": "a", "options": options, "accept": ["pos"], "answer": "accept"},
        {"text": "b", "options": options, "accept": ["neg"], "answer": "accept"},
        {"text": "c", "options": options, "accept": [], "answer": "ignore"},
    ]
    assert labels_of(read(tmp_path, rows, "a.jsonl")) == ["pos", "neg"]
    for row in rows:
        row["config"] = {"choice_style": "multiple"}
    assert labels_of(read(tmp_path, rows, "a.jsonl"))[0] == "pos"
    rows[1]["accept"] = ["neg", "pos"]
    assert labels_of(read(tmp_path, rows, "a.jsonl"))[0] == ("pos",)


def test_spans_of_prodigy(tmp_path):
    tokens = [{"text": TEXT[a:b], "start": a, "end": b} for a, b in ((0, 3), (4, 7), (8, 11))]
    row = {"text": TEXT, "_task_hash": 2, "tokens": tokens, "answer": "accept"}
    person = [{"start": 0, "end": 7, "token_start": 0, "token_end": 1, "label": "PER"}]
    rows = [row | {"spans": person}, row, row | {"answer": "reject", "spans": person}]
    found = read(tmp_path, rows, "a.jsonl")
    assert spans_of(found) == [(Span(0, 2, "PER"),), ()], "accepted without spans: there are none"
    assert found.rows[0].example.words == ("Ann", "Lee", "ran")
    for each in rows:
        del each["tokens"]
    assert spans_of(read(tmp_path, rows[1:], "a.jsonl")) == [()], "rejected rows have spans"


@pytest.mark.parametrize(
    "row",
    [
        {"text": TEXT, "label": [[0, 7, "PER"]], "Comments": []},
        {"data": TEXT, "label": [[0, 7, "PER"]], "id": 4},
        {
            "text": TEXT,
            "relations": [],
            "entities": [{"id": 7, "label": "PER", "start_offset": 0, "end_offset": 7}],
        },
        [TEXT, {"entities": [[0, 7, "PER"]]}],
    ],
)
def test_spans_of_doccano_and_spacy(tmp_path, row):
    assert spans_of(read(tmp_path, [row])) == [(Span(0, 2, "PER"),)]


def test_relations_of_doccano(tmp_path):
    entities = [
        {"id": 7, "label": "PER", "start_offset": 0, "end_offset": 3},
        {"id": 9, "label": "ACT", "start_offset": 8, "end_offset": 11},
    ]
    relations = [{"id": 1, "from_id": 9, "to_id": 7, "type": "by"}]
    row = {"text": TEXT, "entities": entities, "relations": relations, "Comments": []}
    rows = read(tmp_path, [row, row | {"relations": []}]).rows
    assert [row.relations for row in rows] == [[{"subject": 1, "object": 0, "label": "by"}], []]
    with pytest.raises(DataError, match="a span begins or ends"):
        read(tmp_path, [{"text": TEXT, "label": [[0, 30, "PER"]], "Comments": []}])


DYGIE = {
    "doc_key": "d1",
    "sentences": [["Ann", "ran"], ["Bo", "Lee", "met", "Ann"], ["So"]],
    "ner": [[[0, 0, "PER"]], [[2, 3, "PER"], [5, 5, "PER"]], []],
    "relations": [[], [[2, 3, 5, 5, "met"]], []],
}
GLINER = {"tokenized_text": ["Bo", "Lee", "ran"], "ner": [[0, 1, "PER"]]}


def test_spans_with_inclusive_ends(tmp_path):
    ann, lee = Span(3, 4, "PER"), Span(0, 2, "PER")
    rows = read(tmp_path, [DYGIE, DYGIE], "a.jsonl").rows
    assert [(row.example.words, row.example.spans, row.example.document) for row in rows[:3]] == [
        (("Ann", "ran"), (Span(0, 1, "PER"),), "d1"),
        (("Bo", "Lee", "met", "Ann"), (lee, ann), "d1"),
        (("So",), (), "d1"),
    ]
    assert len(rows) == 6
    met = [{"subject": 0, "object": 1, "label": "met"}]
    assert [row.relations for row in rows[:3]] == [[], met, []]
    (row,) = read(tmp_path, [GLINER]).rows
    assert (row.example.words, row.example.spans) == (("Bo", "Lee", "ran"), (lee,))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (DYGIE | {"ner": [[]]}, "item 1: `ner` has 1 list for 3 sentences"),
        (DYGIE | {"relations": [[], [[2, 2, 5, 5, "met"]], []]}, "words 2 to 2 .* are no span in"),
        (
            DYGIE | {"ner": [[], [[2, 3, "PER"], [2, 3, "X"], [5, 5, "PER"]], []]},
            "sentence 2: relation 'met' names words 2 to 3 .* spans of several types",
        ),
        (DYGIE | {"ner": [[[True, 1, "PER"]], [], []]}, "item 1: .* True is no number of a word"),
        (DYGIE | {"ner": [[[0, 0]], [], []]}, "item 1: the row is not as its annotation tool"),
        (DYGIE | {"relations": [[], [[2, 3, "met"]], []]}, "item 1: the row is not as its"),
        (GLINER | {"ner": [["Bo", 0, 0, "PER"]]}, "item 1: the row is not as its annotation tool"),
        ({"data": {"text": "a"}, "annotations": [{"id": 3}]}, r"item 1: .*\(KeyError: 'result'\)"),
        (
            {
                "text": TEXT,
                "entities": [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3}],
                "relations": [{"from_id": 1, "to_id": 7, "type": "by"}],
            },
            "item 1: the row is not as its annotation tool writes it .*: correct it, or export",
        ),
        (GLINER | {"ner": [[0, 3, "PER"]]}, "span 0 to 4 .* outside the 3 words"),
    ],
)
def test_spans_that_do_not_fit_their_format(tmp_path, row, problem):
    with pytest.raises(DataError, match=problem):
        read(tmp_path, [row])


FOREIGN = {
    "an object of Label Studio": task(1, (choices("pos"), 1)),
    "choices of Prodigy": {"text": "a", "options": [{"id": "x"}], "accept": ["x"], "_task_hash": 1},
    "a pair of spaCy": [TEXT, {"entities": [[0, 7, "PER"]]}],
    "sentences of DyGIE++": DYGIE,
    "words of GLiNER": GLINER,
    "entities of doccano": {"text": TEXT, "label": [[0, 3, "PER"]], "Comments": []},
}


@pytest.mark.parametrize("read_data", [read_text, read_tokens])
@pytest.mark.parametrize("shape", FOREIGN)
def test_the_door_for_data_names_convert(shape, read_data, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps(FOREIGN[shape]) + "\n")
    with pytest.raises(DataError, match="finetune convert"):
        read_data(str(tmp_path))
