"""Spans in JSON: their forms, discontinuous ones, and errors."""

import pytest

from finetune.data import read_gold, read_tokens
from finetune.types import Span
from tests.small_data import jsonl


@pytest.fixture
def read(written):
    """Write rows as JSON Lines and read them as train."""
    return lambda *rows: written(read_tokens, "a.jsonl", jsonl(*rows))


def train(dataset):
    return dataset.splits["train"]


# --- forms -----------------------------------------------------------------------------------


def test_rows_without_spans_have_no_gold(read):
    dataset = read({"text": "Ann ran", "spans": [[0, 3, "PER"]]}, {"text": "Lee ran"})
    assert train(dataset)[1].spans is None
    assert dataset.notes == ["train: 1 of 2 rows without tags"]


def test_several_labels_of_one_extent_stay(read):
    both = {"tokens": ["Ann", "ran"], "spans": [[0, 1, "PER"], [0, 1, "Runner"], [0, 1, "PER"]]}
    assert train(read(both))[0].spans == (Span(0, 1, "PER"), Span(0, 1, "Runner"))
    listed = {"text": "Ann ran", "spans": [{"start": 0, "end": 3, "labels": ["Runner", "PER"]}]}
    assert train(read(listed))[0].spans == train(read(both))[0].spans


def test_several_labels_in_columns_stay(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("1\tAnn\tB-PER\tB-Runner\n2\tran\tO\tO\n")
    expected = (Span(0, 1, "PER"), Span(0, 1, "Runner"))
    assert train(read_tokens(str(path)))[0].spans == expected
    assert read_gold(path)[0].spans == expected


def test_discontinuous_spans_are_enclosed_and_counted(read, tmp_path):
    cancer = {"type": "Disease", "text": ["breast", "cancer"], "offsets": [[0, 6], [19, 25]]}
    ovarian = {"type": "Disease", "text": ["ovarian cancer"], "offsets": [[11, 25]]}
    dataset = read(
        {"text": "none here", "entities": []},
        {"text": "breast and ovarian cancer", "entities": [cancer, ovarian]},
        {"text": "a b c", "entities": [{"label": "X", "offsets": [[4, 5], [0, 1]]}]},
    )
    assert train(dataset)[1].spans == (Span(0, 4, "Disease"), Span(2, 4, "Disease"))
    assert train(dataset)[2].spans == (Span(0, 3, "X"),)
    assert dataset.notes[0].startswith("2 discontinuous spans: read from the first start")
    assert dataset.notes[0].endswith(f"first in {tmp_path / 'a.jsonl'}:2")
    words = read(
        {"tokens": ["a", "b", "c"], "spans": [{"label": "X", "offsets": [[0, 1], [2, 3]]}]}
    )
    assert "1 discontinuous span" in words.notes[0]


def test_gold_is_read_as_in_training(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("Ann\tPER\nLee\tPER\nran\tO\nto\tO\n\nOslo\tO\n")
    first, second = read_gold(path)
    assert first.spans == (Span(0, 2, "PER"),) and second.spans == ()
    path.write_text("Ann I-PER\nLee B-PER\n")
    assert read_gold(path)[0].spans == (Span(0, 1, "PER"), Span(1, 2, "PER"))


def test_the_text_of_a_span_may_differ_in_blanks_and_case(read):
    row = {
        "text": "Ann  Lee ran",
        "spans": [{"start": 0, "end": 8, "label": "X", "text": "ANN Lee"}],
    }
    assert train(read(row))[0].spans == (Span(0, 2, "X"),)


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"tokens": ["a"], "spans": [[0, 1]]}, ["a.jsonl:1: [0, 1] is not a span: write"]),
        ({"text": "ab", "spans": [{"start": 0, "end": 2, "labels": []}]}, ["is not a span"]),
        ({"text": "ab", "spans": [{"start": 0, "end": 2, "label": 3}]}, ["is not a span"]),
        (
            {"text": "ab", "spans": [{"label": "X", "offsets": [[0, 1], [1, 9]]}]},
            ["span 1 to 9 (X) is empty or outside the 2 characters of the row"],
        ),
        (
            {"text": "ab", "tokens": [{"text": "ab", "start": 0, "end": 3}], "spans": []},
            ["is not a token of the text", "from 0 to 2"],
        ),
        (
            {
                "text": "ab c",
                "tokens": [{"start": 3, "end": 4}, {"start": 0, "end": 2}],
                "spans": [],
            },
            ["the token at character 0 overlaps its predecessor"],
        ),
        (
            {"text": "Zoë Lee ran", "spans": [{"start": 5, "end": 8, "label": "X", "text": "Lee"}]},
            ["a.jsonl:1", "a span has the text 'Lee', but characters 5 to 8 are 'ee '"],
        ),
    ],
)
def test_errors_name_the_line_and_the_remedy(error, row, parts):
    message = error(row)
    assert all(part in message for part in parts), message
