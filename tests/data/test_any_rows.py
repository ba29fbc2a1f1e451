"""Any rows that a file of a format can hold are read as they were written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from finetune.data import read_text, read_tokens

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
LABELS = st.sampled_from(["yes", "NA", "null", "None", "true", "ä b", '"', "x,y"])
WORDS = st.lists(TEXTS, min_size=1, max_size=5)


def write(path: Path, rows: list[dict]) -> None:
    """Write rows with a library of the format."""
    if path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8"
        )
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, ensure_ascii=False, indent=1), "utf-8")
    elif path.suffix == ".csv":
        out = io.StringIO()
        written = csv.DictWriter(out, list(rows[0]))
        written.writeheader()
        written.writerows(rows)
        path.write_bytes(out.getvalue().encode())
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def survives(*formats: str):
    """Decorate a test that runs on each format with a few draws."""
    own = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    return lambda test: pytest.mark.parametrize("suffix", formats)(own(test))


@survives("jsonl", "json", "csv", "parquet")
@example(rows=[("one\r\ntwo\nthree", "\r\n x", "yes")])
@given(rows=st.lists(st.tuples(TEXTS, TEXTS, LABELS), min_size=1, max_size=4))
def test_pairs(suffix: str, rows: list[tuple[str, str, str]], tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("rows") / f"train.{suffix}"
    names = ("text", "text_pair", "label")
    write(path, [dict(zip(names, row, strict=True)) for row in rows])
    found = read_text(str(path)).splits["train"]
    assert [(each.text, each.pair, each.label) for each in found] == rows


@survives("jsonl", "json", "parquet")
@given(data=st.data())
def test_words_with_spans(suffix: str, data: st.DataObject, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("rows") / f"train.{suffix}"
    rows = []
    for words in data.draw(st.lists(WORDS, min_size=1, max_size=3)):
        positions = st.sets(st.integers(0, len(words)), min_size=2, max_size=2).map(sorted)
        drawn = st.lists(st.tuples(positions, LABELS), min_size=1, max_size=3)
        spans = {(start, end, label) for (start, end), label in data.draw(drawn)}
        names = ("start", "end", "label")
        listed = [dict(zip(names, span, strict=True)) for span in sorted(spans)]
        rows.append({"tokens": words, "spans": listed})
    write(path, rows)
    found = read_tokens(str(path)).splits["train"]
    assert [list(each.words) for each in found] == [row["tokens"] for row in rows]
    own = [[(*span,) for span in sorted(each.spans)] for each in found]
    assert own == [[tuple(span.values()) for span in row["spans"]] for row in rows]
