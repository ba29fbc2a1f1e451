"""Files of rows are what their suffix says, and all files go through one door."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from finetune.data import read_text_file
from finetune.runtime.files import replace_file, replace_folder
from finetune.runtime.row_files import GROUP, ROW_SUFFIXES, write_rows
from finetune.types import UserError
from tests.command import folder_in_use

ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": '=HYPERLINK("x")', "score": 0.25, "scores": {"é": 0.1}, "spans": [1, 2]},
    {"id": "b", "text": "two\nlines\tand, 😀", "score": 1.0, "scores": {"é": 0.9}, "spans": []},
]
SUFFIXES = [suffix for suffix in ROW_SUFFIXES if suffix]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_is_the_format(suffix: str, tmp_path: Path) -> None:
    """The readers of data read it back."""
    path = tmp_path / f"rows{suffix}"
    write_rows(path, ROWS)
    rows: dict[int, Any] = {}
    texts = [e.text for e in read_text_file(str(path), pair=False, labels=False, rows=rows)]
    guard = "'" if suffix == ".csv" else ""
    assert texts == [f"{guard}{ROWS[0]['text']}", ROWS[1]["text"]]
    assert [str(row["id"]) for row in rows.values()] == ["a", "b"]
    assert float(rows[0]["score"]) == 0.25
    score = rows[0]["score:é"] if suffix == ".csv" else rows[0]["scores"]["é"]
    assert float(score) == 0.1


def test_line_ends_are_in_quotes(tmp_path: Path) -> None:
    texts = ["two\nlines", "two\r\nlines", "a\rb", "", "a"]
    write_rows(tmp_path / "rows.csv", [{"id": n, "text": text} for n, text in enumerate(texts)])
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == texts


def test_what_a_table_cannot_hold_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    for suffix, row, problem in (
        (".csv", {"id": 2, "more": 1}, "the column 'more' is not in the first row"),
        (".parquet", {"id": 2, "more": 1}, "the column 'more' is not in the first row"),
        (".parquet", {"id": "x"}, "not of one type"),
        (".parquet", {"id": 2**63}, "not of one type.* too large"),
    ):
        with pytest.raises(UserError, match=problem):
            write_rows(tmp_path / f"x{suffix}", [{"id": 1}, row])
    with pytest.raises(UserError, match=r"x\.pdf: the suffix names the format: one of \.jsonl"):
        write_rows(tmp_path / "x.pdf", [])
    assert list(tmp_path.iterdir()) == []


def test_many_rows_and_none(tmp_path: Path) -> None:
    for suffix in (".parquet", ".csv"):
        write_rows(tmp_path / f"many{suffix}", ({"id": n, "text": "a"} for n in range(9000)))
        found = read_text_file(str(tmp_path / f"many{suffix}"), pair=False, labels=False)
        assert sum(1 for _ in found) == 9000
    write_rows(tmp_path / "none.json", [])
    assert json.loads((tmp_path / "none.json").read_text()) == []


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from finetune.runtime.files import replace_file, replace_folder\n"
        "a = replace_file(Path('a.csv'), follow=True)\n"
        "with a as file, replace_folder(Path('b')) as folder:\n"
        "    file.write('half'); (folder / 'model').write_text('half'); file.flush()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False)
    assert {path.name for path in tmp_path.iterdir()} == {".a.csv.new", ".a.csv.lock", ".b.new"}
    with replace_file(tmp_path / "a.csv", follow=True) as file:
        file.write("whole")
    with replace_folder(tmp_path / "b") as folder:
        (folder / "model").write_text("whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "b"]


def test_a_file_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    with folder_in_use(tmp_path, ".a.csv.lock") as other:
        with pytest.raises(UserError, match=rf"a\.csv is in use by process {other.pid} on "):
            write_rows(tmp_path / "a.csv", [{"id": 1}])
    write_rows(tmp_path / "a.csv", [{"id": 1}])


def test_values_after_the_first_rows_fit_or_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    for first, later in ((1, 2.5), ({"a": 1}, {"a": 1, "b": 2}), ([1], [2.5]), (None, 1)):
        with pytest.raises(UserError, match="not of one type"):
            write_rows(path, [{"x": first}] * GROUP + [{"x": later}])
        assert not path.exists()
    for first, later in ((1.5, 2), (1, None), ([1.5], []), ({"a": 1, "b": 1}, {"b": 2})):
        write_rows(path, [{"x": first}] * GROUP + [{"x": later}])
        last = parquet.read_table(path).to_pylist()[-1]["x"]
        assert last == ({"a": None} | later if isinstance(later, dict) else later)
