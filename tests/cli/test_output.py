"""Tables stay plain, whole and parseable where the output is not a terminal."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from finetune.cli.output import open_rows, print_table, print_tables, show
from finetune.config.values import shown_value
from finetune.types import UserError
from tests.command import run

COLUMNS = ("label", "gold", "share")
ROWS = [("a long label " * 9, 1234, 0.5), ("[b]é ± 😀[/b]", 7, 1.0)]


def test_a_table_in_a_narrow_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    print_table(COLUMNS, ROWS, "A title [of words]")
    title, header, first, second = capsys.readouterr().out.splitlines()
    assert title == "A title [of words]"
    assert header.split() == ["label", "gold", "share"]
    assert first.split("  ")[0].strip() == ("a long label " * 9).strip()
    assert first.endswith("1,234  0.5000") and second.endswith("7  1.0000")
    assert second.startswith("[b]é ± 😀[/b] ") and second == second.rstrip()


def test_a_table_without_rows(capsys: pytest.CaptureFixture[str]):
    print_table(COLUMNS, [])
    assert capsys.readouterr().out.split() == ["label", "gold", "share"]


def test_cells():
    values = (0.12345, 1.0, 2.0, 12345.0, 2.5, 12345, None, "x", math.nan, math.inf, True)
    values += (0.0, 0.00004321, -1e-9, -1e-17)
    expected = "0.1235 1.0000 2.0000 12,345.0000 2.5000 12,345  x nan inf True".split(" ")
    expected += ["0.0000", "4.3e-05", "-1e-09", "0.0000"]
    assert [shown_value(value) for value in values] == expected


def test_a_file_appears_when_it_is_complete(tmp_path: Path):
    path = tmp_path / "out.jsonl"
    with pytest.raises(RuntimeError), open_rows(str(path)) as write:
        write({"half": 1})
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with open_rows(str(path)) as write:
        write({"id": 1})
    assert path.read_text("utf-8") == '{"id": 1}\n'
    with pytest.raises(UserError, match="its folder does not exist"), open_rows(f"{path}/x/y"):
        pass
    with pytest.raises(UserError, match="--out -: name a file"), open_rows("-"):
        pass


def test_control_characters_are_printed_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    attack = "\x1b[2J\u202e\x9b31m\r\u2066"
    show(attack)
    print_table((attack,), [(attack,)], attack)
    rows = [{"label": attack, "gold": "b", "text": attack}, {"label": "b", "gold": "b"}]
    (tmp_path / "p.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    outcomes = [
        run("report", tmp_path / "p.jsonl", "--format", "table"),
        run("score", tmp_path / attack, "x"),
    ]
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps({"text": f"{n}", "label": attack + str(n % 2)}) + "\n" for n in range(9))
    )
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/r.yaml").write_text(f"task: tag\ndata: {json.dumps(attack)}\n")
    outcomes += [run("check", tmp_path / "train.jsonl"), run("run")]
    texts = [capsys.readouterr().out, *(outcome.out + outcome.err for outcome in outcomes)]
    for text in texts:
        assert "\\u001b[2J" in text and not set(attack) & set(text) - set("[2J31m")


def test_only_one_place_prints():
    for path in (Path(__file__).parents[2] / "finetune" / "cli").glob("*.py"):
        calls = re.findall(r"(?<![\w.])print\(|sys\.std(?:out|err)\.write", path.read_text("utf-8"))
        assert not calls or path.name == "output.py"


NASTY = [("=HYPERLINK(1)", -0.12345678901234567, 3), ("a_b & 5 % {|}\\ [x", math.nan, None)]


def printed(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    print_tables(*arguments)
    return capsys.readouterr().out


def test_a_table_for_a_spreadsheet_has_all_digits(capsys: pytest.CaptureFixture[str]):
    table = ("", ("na,me", "score", "n"), NASTY)
    rows = list(csv.reader(io.StringIO(printed(capsys, "csv", table))))
    assert rows[0] == ["na,me", "score", "n"] and rows[1][0] == "'=HYPERLINK(1)"
    assert float(rows[1][1]) == NASTY[0][1] and rows[2] == ["a_b & 5 % {|}\\ [x", "nan", ""]
    found = json.loads(printed(capsys, "json", table))
    assert found[0] == {"na,me": "=HYPERLINK(1)", "score": NASTY[0][1], "n": 3}
    several = printed(capsys, "csv", table, table).split("\n\n")
    assert len(several) == 2 and several[0] + "\n" == several[1]


def test_a_table_for_a_paper(capsys: pytest.CaptureFixture[str]):
    latex = printed(capsys, "latex", ("50 %", ("na_me", "score", "n"), NASTY)).splitlines()
    assert latex[:4] == ["% 50 %", r"\begin{tabular}{lrr}", r"\toprule", r"na\_me & score & n \\"]
    assert latex[5] == r"=HYPERLINK(1) & -0.1235 & 3 \\" and latex[-1] == r"\end{tabular}"
    assert latex[6] == r"a\_b \& 5 \% \{\textbar{}\}\textbackslash{} {[}x & nan &  \\"
    markdown = printed(capsys, "markdown", ("", ("na_me", "score", "n"), NASTY)).splitlines()
    assert markdown[1] == "| --- | ---: | ---: |"
    assert markdown[3] == r"| a\_b & 5 % {\|}\\ \[x | nan |  |"
