"""Workbooks of Excel as tables."""

import pytest

from finetune.data import DataError, read_text


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
