"""Conversion to the formats of annotation tools and back: nothing is lost silently."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from finetune.annotation.conversion import check_format, write_annotations
from finetune.annotation.reading import read_annotations
from finetune.annotation.rows import Annotations, with_text
from finetune.data import DataError, read_text, read_tokens
from finetune.data.spans import chars_to_words
from finetune.data.word_splitting import split_words
from finetune.types import Span, TextExample, UserError
from tests.command import run
from tests.small_data import write_jsonl

TOOLS = ("jsonl", "doccano", "label-studio")
SUFFIX = {"label-studio": ".json", "conll": ".conll"}


def converted(annotations: Annotations, to: str, folder) -> tuple[Annotations, list[str]]:
    """Write annotations in a format and read them again."""
    check_format(annotations, to)
    path = folder / f"out{SUFFIX.get(to, '.jsonl')}"
    notes, _ = write_annotations(annotations, to, path)
    return read_annotations(path), notes


def written(annotations: Annotations, to: str, folder) -> list:
    """Return the rows of the file that is written in a format."""
    path = folder / f"written{SUFFIX.get(to, '.jsonl')}"
    write_annotations(annotations, to, path)
    text = path.read_text("utf-8")
    return json.loads(text) if to == "label-studio" else list(map(json.loads, text.splitlines()))


def content(annotations: Annotations, others: bool = True) -> list:
    """Ids, texts, labels, character spans, annotators and other columns of all rows."""
    rows = []
    for row in annotations.rows:
        if isinstance(row.example, TextExample):
            gold = row.example.pair, row.example.label
        else:
            row = with_text(row)
            gold = None if row.example.spans is None else row.character_spans
        more = (row.annotator, dict(row.others)) if others else ()
        rows.append((row.example.key, row.example.text, gold, *more))
    return rows


TEXT = "  Ann 😀 Lee\r\nof São Paulo’s “Bank” ran "
KEYS = ("start", "end", "label")
SPANS = [[2, 11, "PER"], [2, 5, "PER"], [8, 15, "LAST"], [16, 25, "LOC"], [16, 25, "GPE"]]


@pytest.fixture
def spans(tmp_path) -> Annotations:
    rows = [
        {"id": "a1", "text": TEXT, "spans": SPANS, "source": {"page": 3}, "document": "d"},
        {"id": "a2", "text": "nothing", "spans": [], "source": None, "document": "d"},
        {"id": "a3", "text": "inside 😀words", "spans": [[8, 10, "X"]], "source": 1},
        {"id": 4, "text": "not labeled", "source": ""},
    ]
    return read_annotations(write_jsonl(tmp_path / "spans.jsonl", rows))


def test_spans_in_columns(spans: Annotations, tmp_path):
    again, notes = converted(spans, "conll", tmp_path)
    found = [(row.example.key, [span.label for span in row.example.spans]) for row in again.rows]
    assert found == [("a1", ["PER", "GPE"]), ("a2", []), ("a3", ["X"])]
    assert again.rows[0].example.document == "d"
    assert notes == [
        "3 rows with columns besides words and labels: the other columns are not written "
        "(a1, a2, a3)",
        "2 rows with a text: words are written, its white space is not (a1, a3)",
        "1 row with spans that overlap: the outermost are written (a1)",
        "1 row without tags or spans: left out (4)",
    ]


def test_invisible_characters_are_counted(tmp_path):
    rows = [{"id": 5, "tokens": ["\u200bParis", "is"], "tags": ["B-LOC", "O"]}]
    annotations = read_annotations(write_jsonl(tmp_path / "a.jsonl", rows))
    again, notes = converted(annotations, "doccano", tmp_path)
    assert again.rows[0].example.text == "\u200bParis is"
    assert any(note.startswith("1 row with words that begin or end with inv") for note in notes)


def test_utf_16_of_doccano(spans: Annotations, tmp_path):
    row = written(spans, "doccano", tmp_path)[0]
    start, end, _ = row["label"][-1]
    assert row["text"].encode("utf-16-le")[2 * start : 2 * end] == "São Paulo".encode("utf-16-le")
    entity = {"id": 1, "start_offset": start, "end_offset": end, "label": "LOC"}
    exported = {"id": 7, "text": row["text"], "entities": [entity], "relations": [], "Comments": []}
    read = read_annotations(write_jsonl(tmp_path / "relations.jsonl", [exported]))
    assert read.rows[0].character_spans == [Span(16, 25, "LOC")]
    row["label"] = [[7, 12, "X"]]
    with pytest.raises(DataError, match="within a character"):
        read_annotations(write_jsonl(tmp_path / "broken.jsonl", [row]))
    del row["Comments"]  # not an export of doccano: characters
    row["label"] = [[16, 25, "LOC"]]
    read = read_annotations(write_jsonl(tmp_path / "a.jsonl", [row]))
    assert read.rows[0].character_spans == [Span(16, 25, "LOC")]


def test_words_with_tags(tmp_path):
    path = tmp_path / "pos.conll"
    path.write_text("# sent_id = one 1\nAnn\tN\nran\tV\n\n-DOCSTART-\tO\n\nfast\tADV\n")
    annotations = read_annotations(path)
    assert [row.name for row in annotations.rows] == ["one 1", "7"]
    for to in ("jsonl", "conll"):
        again, _ = converted(annotations, to, tmp_path)
        examples = [row.example for row in again.rows]
        assert [each.tags for each in examples] == [("N", "V"), ("ADV",)]
        assert [(each.key, each.document) for each in examples] == [("one 1", None), (None, "1")]
    with pytest.raises(UserError, match="tags that spell no spans: choose jsonl or conll"):
        check_format(annotations, "doccano")


def test_pairs_of_one_text_are_tasks_of_their_own(tmp_path):
    rows = [
        {"text": "p", "text_pair": pair, "label": label, "_annotator_id": who}
        for who in ("ann", "bob")
        for pair, label in (("h", "e"), ("i", "n"))
    ]
    annotations = read_annotations(write_jsonl(tmp_path / "in.jsonl", rows))
    assert len(written(annotations, "label-studio", tmp_path)) == 2
    again, _ = converted(annotations, "label-studio", tmp_path)
    found = sorted((r.annotator, r.example.pair, r.example.label) for r in again.rows)
    assert found == [("ann", "h", "e"), ("ann", "i", "n"), ("bob", "h", "e"), ("bob", "i", "n")]


def test_annotators_are_kept(tmp_path):
    rows = [
        {"id": i, "text": f"text {i}", "label": label, "_annotator_id": who, "answer": answer}
        for i in (1, 2)
        for who, label, answer in (
            ("ann", "x", "accept"),
            ("bob", "y", "accept"),
            ("eve", "x", "ignore"),
        )
    ]
    annotations = read_annotations(write_jsonl(tmp_path / "in.jsonl", rows))
    assert annotations.notes == ["2 rows that annotators rejected or ignored: left out (1, 2)"]
    for to in TOOLS:
        again, _ = converted(annotations, to, tmp_path)
        rows_of = [(r.annotator, r.example.key, r.example.label) for r in again.rows]
        assert rows_of == [
            (who, i, label) for i in (1, 2) for who, label in (("ann", "x"), ("bob", "y"))
        ]
    assert len(written(annotations, "label-studio", tmp_path)) == 2


def test_predictions_become_suggestions(tmp_path):
    span = {"start": 0, "end": 2, "label": "PER", "score": 0.9, "start_char": 0, "end_char": 8}
    row = {
        "id": "a",
        "words": ["Ann", "Lee", "ran"],
        "offsets": [[0, 3], [5, 8], [9, 12]],
        "spans": [span],
        "text": "Ann  Lee ran",
        "gold": {"spans": []},
        "where": "x:1",
    }
    annotations = read_annotations(write_jsonl(tmp_path / "predictions.test.jsonl", [row]))
    assert content(annotations) == [("a", "Ann  Lee ran", [Span(0, 8, "PER")], None, {})]
    (task,) = written(annotations, "label-studio", tmp_path)
    assert task["annotations"] == []
    assert task["predictions"][0]["result"][0]["value"]["text"] == "Ann  Lee"
    del row["text"]
    with pytest.raises(DataError, match=r"offsets without a text: .* --keep-columns"):
        read_annotations(write_jsonl(tmp_path / "predictions.jsonl", [row]))


def test_the_score_of_a_prediction_is_no_label(tmp_path):
    row = {"id": 0, "text": "Fine.", "label": "x", "score": 0.9, "scores": {"x": 0.9, "y": 0.1}}
    annotations = read_annotations(write_jsonl(tmp_path / "predictions.jsonl", [row]))
    assert annotations.notes == [] and annotations.rows[0].example.label == "x"
    assert annotations.rows[0].others == {"score": 0.9}


@pytest.mark.parametrize("beside", [{"similarity": "cosine"}, {"gold": 3}])
def test_predicted_numbers_are_suggestions(tmp_path, beside):
    row = {"id": 0, "text": "a", "text_pair": "b", "label": 0.5, **beside}
    annotations = read_annotations(write_jsonl(tmp_path / "predictions.jsonl", [row]))
    (task,) = written(annotations, "label-studio", tmp_path)
    assert task["data"] == {"id": 0, "text": "a", "text_pair": "b"} and task["annotations"] == []
    assert task["predictions"][0]["result"][0]["value"] == {"number": 0.5}


RELATED = {
    "id": "r",
    "text": "Ann-Lee lives in Oslo",
    "spans": [[0, 3, "PER"], [4, 7, "PER"], [17, 21, "LOC"]],
    "relations": [{"subject": 1, "object": 2, "label": "lives_in"}],
}


@pytest.mark.parametrize("to", ["jsonl", "label-studio"])
def test_relations_stay(to: str, tmp_path):
    """Also of spans that end inside a word, and of a row that has none."""
    rows = [RELATED, {"id": "s", "text": "So", "spans": [], "relations": []}]
    annotations = read_annotations(write_jsonl(tmp_path / "in.jsonl", rows))
    again, _ = converted(annotations, to, tmp_path)
    for read in (annotations, again):
        lee, oslo = (read.rows[0].relations[0][end] for end in ("subject", "object"))
        spans = read.rows[0].character_spans
        assert [spans[lee], spans[oslo]] == [Span(4, 7, "PER"), Span(17, 21, "LOC")]
        assert read.rows[0].relations[0]["label"] == "lives_in"
        assert [row.relations for row in read.rows[1:]] == [[]]
    write_annotations(again, "jsonl", tmp_path / "data.jsonl")
    (first, *_) = read_tokens(str(tmp_path / "data.jsonl"), relations=True).splits["train"]
    ((subject, object, label),) = first.relations
    words = first.words[subject.start], first.words[object.start]
    assert (*words, label) == ("Lee", "Oslo", "lives_in")


def test_relations_and_discontinuous_spans_are_counted(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one two three")
    (tmp_path / "in" / "a.ann").write_text(
        "T1\tX 0 3;8 13\tone three\nT2\tX 4 7\ttwo\nR1\tr Arg1:T1 Arg2:T2\nE1\tX:T1\n"
    )
    out = tmp_path / "out.jsonl"
    outcome = run("convert", tmp_path / "in", "--to", "doccano", "--out", out).ok()
    assert "1 row with discontinuous spans: read from the first start to the last" in outcome.err
    assert "1 line of .ann files not read" in outcome.err
    assert "1 row with relations between spans: the relations are not written (a)" in outcome.err
    assert json.loads(out.read_text())["label"] == [[0, 13, "X"], [4, 7, "X"]]


CHARACTERS = st.sampled_from(list('ab-. \t\r\n😀é’中\u0301\u2028\u200d\ufeff\u00a0{}"\\#'))
TEXTS = st.text(CHARACTERS | st.characters(codec="utf-8", exclude_characters="\x00"), max_size=14)


@st.composite
def span_rows(draw):
    """Texts with spans that cover a word at least, perhaps only a part of it."""
    rows = []
    for number, text in enumerate(draw(st.lists(TEXTS, min_size=1, max_size=4))):
        row = {"id": f"n{number}", "text": text}
        if draw(st.booleans()):
            positions = st.tuples(*[st.integers(0, max(len(text) - 1, 0))] * 2)
            drawn = [(min(p), max(p) + 1) for p in draw(st.lists(positions, max_size=4))]
            row["spans"] = [
                {"start": start, "end": end, "label": draw(st.sampled_from(["A", "B-1", "Ä"]))}
                for start, end in drawn
                if any(c.isalnum() for c in text[start:end])
            ]
        rows.append(row)
    return rows


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=span_rows(), to=st.sampled_from(TOOLS))
def test_any_spans(rows, to: str, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    assume(any(row.get("spans") for row in rows))
    annotations = read_annotations(write_jsonl(folder / "in.jsonl", rows))
    again, _ = converted(annotations, to, folder)
    assert content(again, False) == content(annotations, False)


NAMES = st.sampled_from(["x", "ä b", "😀", "not x", "1"])


LABELS = {
    "single": NAMES | st.none(),
    "several": st.lists(NAMES, unique=True, max_size=3),
    "numbers": st.floats(-3, 3).map(lambda number: round(number, 3)),
}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(), form=st.sampled_from([*LABELS]), pairs=st.booleans(), to=st.sampled_from(TOOLS)
)
def test_any_labels(data, form: str, pairs: bool, to: str, tmp_path_factory):
    assume(form != "numbers" or to in ("jsonl", "label-studio"))
    folder = tmp_path_factory.mktemp("any")
    rows = [
        {"id": f"i{n}", "text": text, "label": data.draw(LABELS[form]), "page": n}
        | ({"text_pair": data.draw(TEXTS)} if pairs else {})
        for n, text in enumerate(data.draw(st.lists(TEXTS, min_size=1, max_size=4)))
    ]
    # tools list a single label, too, and export no labels as no spans
    assume(form != "several" or any(len(row["label"]) > 1 for row in rows))
    annotations = read_annotations(write_jsonl(folder / "in.jsonl", rows))
    again, notes = converted(annotations, to, folder)
    assert content(again) == content(annotations) and notes == []
    write_annotations(again, "jsonl", folder / "data.jsonl")
    read = read_text(str(folder / "data.jsonl")).splits["train"]
    assert [row.label for row in read] == [row.example.label for row in annotations.rows]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lists=st.lists(st.lists(TEXTS, max_size=4), min_size=1, max_size=4), to=st.sampled_from(TOOLS)
)
def test_any_words(lists, to: str, tmp_path_factory):
    """Words without a text: tools know them by the text; a span has no white space at its ends."""
    folder = tmp_path_factory.mktemp("any")
    rows = []
    for number, words in enumerate(lists):
        readable = [n for n, word in enumerate(words) if any(c.isalnum() for c in word)]
        spans = [{"start": n, "end": n + 1, "label": "A-b"} for n in readable]
        rows.append({"id": f"n{number}", "tokens": words, "spans": spans})
    assume(any(row["spans"] for row in rows))
    annotations = read_annotations(write_jsonl(folder / "in.jsonl", rows))
    again, _ = converted(annotations, to, folder)
    for key, text, spans in content(again, False):
        (expected,) = (row for row in content(annotations, False) if row[0] == key)
        assert text == expected[1]
        offsets = split_words(text)[1]
        assert chars_to_words(offsets, spans) == chars_to_words(offsets, expected[2])


def test_any_words_in_columns(tmp_path):
    """Columns keep every word and tag, or the row is counted."""
    words = ["a", "#", "# sent_id = 3", "-DOCSTART-", "tab\there", "é😀", "a b", "\u2028", "", "1"]
    rows = [{"id": n, "tokens": [word, "x"], "tags": ["B-A", "O"]} for n, word in enumerate(words)]
    annotations = read_annotations(write_jsonl(tmp_path / "in.jsonl", rows))
    assert write_annotations(annotations, "conll", tmp_path / "rows.conll")[1] == 5
    again, notes = converted(annotations, "conll", tmp_path)
    assert [row.example.words[0] for row in again.rows] == ["a", "é😀", "a b", "\u2028", "1"]
    assert [row.example.key for row in again.rows] == ["0", "5", "6", "7", "9"]
    assert notes == ["5 rows with words that columns cannot hold: left out (1, 2, 3, 4, 8)"]
    bare = read_annotations(
        write_jsonl(tmp_path / "bare.jsonl", [row | {"tags": None} for row in rows])
    )
    again, _ = converted(bare, "conll", tmp_path)
    assert [row.example.words for row in again.rows] == [("a", "x"), ("é😀", "x"), ("1", "x")]


REFUSED_ROWS = {
    "labels": [{"id": n, "text": f"t{n}", "label": label} for n, label in enumerate("xy")],
    "numbers": [{"id": n, "text": f"t{n}", "label": n / 2} for n in range(2)],
    "spans": [{"id": 0, "text": "t0", "spans": [[0, 1, "x y"]]}],
    "questions": [{"title": "t0", "context": "t1", "question": "t2", "answers": []}],
    "answers": [{"id": 0, "answer": "", "no_answer_score": 0.5, "text": "t0", "text_pair": "t1"}],
}
REFUSED = {
    "convert labels.jsonl --to conll --out o.conll": "--to conll: the data have texts with labels",
    "convert labels.jsonl --to jsonl --out labels.jsonl": "would overwrite the input",
    "convert spans.jsonl --to conll --out o.conll": "a label with white space, 'x y'",
    "convert questions.jsonl --out o.jsonl": "it has questions on contexts",
    "convert answers.jsonl --to label-studio --out o.json": "it has questions on contexts",
    "convert numbers.jsonl --to doccano --out o.jsonl": "numbers as labels",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_refused(typed: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows in REFUSED_ROWS.items():
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    run(*typed.split()).refused(REFUSED[typed])
    assert {path.stem for path in tmp_path.iterdir()} == {*REFUSED_ROWS}
