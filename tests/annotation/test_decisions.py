"""Decisions applied to data: nothing else changes, and none is applied to another text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune.annotation.annotations import read_annotations
from finetune.annotation.decisions import apply_decisions, read_decisions
from finetune.annotation.writers import write_annotations
from finetune.data import DataError
from finetune.types import Span
from tests.annotation.test_annotation_writers import content, span_rows
from tests.small_data import write_jsonl


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=span_rows(), data=st.data())
def test_any_spans(rows, data, tmp_path_factory):
    """Decisions survive their file; spans are decided, and all else stays as it is."""
    folder = tmp_path_factory.mktemp("any")
    if not any(row.get("spans") for row in rows):
        return
    before = read_annotations(write_jsonl(folder / "in.jsonl", rows))
    decisions, after = [], content(before)
    for index, row in enumerate(before.rows):
        text, known = row.example.text, row.character_spans
        if not row.example.words or data.draw(st.booleans()):
            continue
        first, last = sorted(data.draw(st.sampled_from(row.example.offsets)) for _ in range(2))
        chosen = sorted({*known[1:], Span(first[0], last[1], "neu")})
        given_spans = None if row.example.spans is None else {"spans": [s._asdict() for s in known]}
        decision = {"id": row.example.key, "text": text, "given": given_spans, "decision": "edit"}
        decisions.append(decision | {"spans": [s._asdict() for s in chosen]})
        after[index] = (row.example.key, text, chosen, *after[index][3:])
    found = read_decisions(write_jsonl(folder / "decisions.jsonl", decisions))
    decided, notes = apply_decisions(before, found)
    assert content(decided) == after
    assert notes == [
        f"{len(found)} decision{'s' * (len(found) != 1)} applied, "
        f"{len(found)} row{'s' * (len(found) != 1)} changed"
    ]
    path = folder / "out.jsonl"
    write_annotations(decided, "jsonl", path)
    assert content(read_annotations(path)) == after


def decide(path, *decisions):
    rows = [
        {"decision": "edit", "given": None, "where": f"d:{n}", **decision}
        for n, decision in enumerate(decisions, 1)
    ]
    return apply_decisions(read_annotations(path), rows)


def test_words_without_a_text(tmp_path):
    path = tmp_path / "in.conll"
    path.write_text("Bo\tB-PER\nran\tO\n\nBo\tB-PER\nran\tO\n\nsat\tO\n")
    person = {"spans": [{"start": 0, "end": 1, "label": "PER"}]}
    same = {"words": ["Bo", "ran"], "given": person, "line": 4}
    after, notes = decide(
        path,
        same | {"spans": [{"start": 0, "end": 2, "label": "X"}]},
        same | {"spans": []},
        {"words": ["sat"], "spans": []},
    )
    assert [row.example.tags for row in after.rows] == [("B-PER", "O"), ("B-X", "I-X"), ("O",)]
    assert notes == [
        "2 decisions applied, 1 row changed",
        "1 decision on no row of the data: d:2",  # it was decided already
    ]
    nested = [{"start": 0, "end": 2, "label": "X"}, {"start": 1, "end": 2, "label": "Y"}]
    after, _ = decide(path, same | {"spans": nested})
    assert [row.example.tags for row in after.rows] == [None] * 3
    path.write_text("Bo\tN\nran\tV\n")
    tags = {"words": ["Bo", "ran"], "given": {"tags": ["N", "V"]}, "tags": ["N", "N"]}
    assert decide(path, tags)[0].rows[0].example.tags == ("N", "N")
    with pytest.raises(DataError, match="d:1: 1 tag for 2 words"):
        decide(path, tags | {"tags": ["N"]})


def test_only_the_text_that_was_shown(tmp_path):
    rows = [{"id": "a", "text": "Bo 😀", "spans": []}, {"id": "b", "text": "Bo", "spans": []}]
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    span = {"start": 0, "end": 2, "label": "PER"}
    after, _ = decide(path, {"id": "b", "text": "Bo", "given": {"spans": []}, "spans": [span]})
    assert [row.character_spans for row in after.rows] == [[], [Span(0, 2, "PER")]]
    with pytest.raises(DataError, match="d:1: the row with the id 'a' has another"):
        decide(path, {"id": "a", "text": "Bo was", "spans": [span]})
    with pytest.raises(DataError, match="d:1: a decision on texts, and the data have words"):
        decide(path, {"id": "a", "text": "Bo 😀", "label": "x"})
    with pytest.raises(DataError, match=r"d:1: span 0 to 9 .* outside the 2 characters"):
        decide(path, {"text": "Bo", "spans": [span | {"end": 9}]})
    for line in (
        "[]",
        json.dumps({"text": "t", "given": None, "decision": "x", "label": 1}),
        json.dumps({"text": "t", "given": {"tags": []}, "decision": "x", "spans": []}),
        json.dumps({"given": None, "decision": "x", "spans": []}),
    ):
        (tmp_path / "bad.jsonl").write_text(line)
        with pytest.raises(DataError, match=r"bad.jsonl:1: not a decision"):
            read_decisions(tmp_path / "bad.jsonl")


def test_undecided_predictions_are_left_out(tmp_path):
    span = {"start": 0, "end": 1, "label": "PER", "score": 0.9}
    row = {"words": ["Bo", "ran"], "offsets": [[0, 2], [3, 6]], "text": "Bo ran", "spans": [span]}
    path = write_jsonl(tmp_path / "next.jsonl", [row | {"id": n} for n in range(3)])
    decision = {"text": "Bo ran", "spans": [{"start": 3, "end": 6, "label": "X"}]}
    after, notes = decide(path, decision | {"id": 1})
    assert [(row.name, row.character_spans) for row in after.rows] == [("1", [Span(3, 6, "X")])]
    assert notes[1] == "2 rows with predicted labels and no decision: left out (0, 2)"
    bare = write_jsonl(tmp_path / "pool.jsonl", [{"id": 1, "text": "Bo ran"}])
    annotations = read_annotations(bare, words=True)
    after, _ = apply_decisions(annotations, [decision | {"given": None, "where": "d:1"}])
    assert after.rows[0].character_spans == [Span(3, 6, "X")]
    assert replace(after.rows[0].example, spans=None, tags=None) == annotations.rows[0].example


def test_several_labels(tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": "t", "label": ["a", "b"]}])
    after, _ = decide(path, {"text": "t", "given": ["b", "a"], "label": ["c"]})
    assert after.rows[0].example.label == ("c",)
    assert "on no row" in decide(path, {"text": "t", "given": ["a"], "label": ["c"]})[1][1]


@pytest.mark.parametrize("offsets", [[[3], [4, 7]], [None, [4, 7]], [[0, 3], [4, 70]], [[3, 0]]])
def test_offsets_that_are_no_characters_of_the_text(tmp_path: Path, offsets: list) -> None:
    row = {
        "text": "Ana saw",
        "words": ["Ana", "saw"],
        "offsets": offsets,
        "spans": [{"start": 0, "end": 1, "label": "PER", "score": 0.9}],
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"rows.jsonl:1: offsets must be the characters of each"):
        read_annotations(path)
