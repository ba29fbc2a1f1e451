"""Workbooks of Excel as tables."""

import zipfile
from pathlib import Path

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
    rows = [(e.text, e.label) for e in dataset.splits["train"]]
    assert rows == [("a", "x"), ("b", "y"), ("c", None)]
    assert dataset.splits["train"][1].where.endswith("train.xlsx:row 4")
    assert "only the first sheet, 'Sheet', is read, not 'notes'" in dataset.notes
    (tmp_path / "train.xlsx").write_bytes(b"no workbook")
    with pytest.raises(DataError, match=r"train.xlsx: not a readable workbook"):
        read_text(str(tmp_path))


def workbook(path: Path, *sheets: str, notes: int = 0, cells: dict[str, str] | None = None) -> str:
    """A workbook of these sheets, the last one with texts and labels; ``chart`` has no cells."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name in sheets:
        if name == "chart":
            reference = openpyxl.chart.Reference(book.create_sheet("numbers"), min_col=1, min_row=1)
            (chart := openpyxl.chart.BarChart()).add_data(reference)
            book.create_chartsheet(name, 0).add_chart(chart)
        else:
            sheet = book.create_sheet(name)
            for row in [["about", "who"], *[["us", "me"]] * notes]:
                sheet.append(row)
    if sheets[-1] != "chart":
        sheet = book.worksheets[-1]
        for number, row in enumerate([("text", "label"), ("a b", "x"), ("c d", "y")], 1):
            for column, value in enumerate(row, 1):
                sheet.cell(number, column, value)
        for cell, value in (cells or {}).items():
            sheet[cell] = value
    book.save(path)
    return str(path)


def test_workbooks_of_charts_and_far_cells(tmp_path):
    path = tmp_path / "a.xlsx"
    found = read_text(workbook(path, "data", cells={"XFD1048576": "end"})).splits["train"]
    assert [(e.text, e.label) for e in found] == [("a b", "x"), ("c d", "y")]
    book = workbook(path, "data")
    with zipfile.ZipFile(book) as old, zipfile.ZipFile(tmp_path / "cut.xlsx", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content[:-40] if "sheet1.xml" in name else content)
    for name, message in (("cut", "cut.xlsx:row .*not a readable"), ("no", "no.xlsx: not a")):
        (tmp_path / "no.xlsx").write_bytes(b"PK")
        with pytest.raises(DataError, match=message):
            read_text(str(tmp_path / f"{name}.xlsx"))
    with pytest.raises(DataError, match=r"a.xlsx: the train split is empty"):
        read_text(workbook(path, "chart"))


def test_an_unread_sheet_is_named_where_a_column_is_missing(tmp_path):
    book = workbook(tmp_path / "a.xlsx", "Notes", "Data", notes=1)
    unread = "only the first sheet, 'Notes', is read, not 'Data'"
    with pytest.raises(DataError, match=f"columns found: about, who; {unread}"):
        read_text(book)
    with pytest.raises(DataError, match=f"no column 'text' .*; {unread}"):
        read_text(book, columns={"text": "text"})
    book = workbook(tmp_path / "b.xlsx", "Notes", "Data")
    with pytest.raises(DataError, match=f"the train split is empty .{unread}"):
        read_text(book)
