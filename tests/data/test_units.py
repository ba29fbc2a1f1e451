"""Units of rows: those without a wanted row are counted, and not parsed."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from finetune.data import examples as holder
from finetune.data import (
    files,
    read_text,
    read_text_file,
    read_token_file,
    read_tokens,
)
from finetune.data.files import Rows
from finetune.data.running_text import read_running_text
from finetune.runtime.progress import Reporter, shown_by


def rows_of(format: str, draw: Random) -> bytes:
    """300 rows, and lines that are no row or several, as far as a format has them."""
    texts = [draw.choice(["a", "b c", "é", "\u2028"]) + str(number) for number in range(300)]
    if format == "jsonl":
        others = [
            "",
            " \u00a0\r",
        ]
        lines = [
            json.dumps({"text": text}, ensure_ascii=number % 2 == 0)
            for number, text in enumerate(texts)
        ]
        lines = [
            *lines[:20],
            *(line for each in lines[20:] for line in [each, draw.choice(others)]),
        ]
        return ("\ufeff" + "\n".join(lines)).encode()
    if format == "tsv":
        lines = ["text\tn", *(f"{text}\t1\r" for text in texts)]
        for _ in range(90):
            lines.insert(draw.randrange(1, len(lines)), draw.choice(["", "  \r", "\r \t"]))
        return "\n".join(lines).encode()
    if format == "csv":
        table = io.StringIO()
        csv.writer(table).writerows([["text", "n"], *((f'{text}\n"', 1) for text in texts)])
        return table.getvalue().encode()
    if format == "txt":
        return "\n".join(draw.choice([text, "", " "]) for text in texts).encode()
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"text": texts}), stream, row_group_size=7)
    return stream.getvalue()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("format", ["jsonl", "tsv", "csv", "txt", "parquet"])
def test_wanted_rows_have_their_numbers(
    format: str, several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_LINES", 5)
    monkeypatch.setattr(holder, "CHUNK", 5)
    parsed = []
    unit_rows = Rows.numbered

    def numbered(rows: Rows[Any], wanted: Callable[[int], bool] | None) -> Any:
        parse = rows.parse
        rows.parse = lambda unit: parsed.append(unit) or parse(unit)  # type: ignore[func-returns-value]
        return unit_rows(rows, wanted)

    monkeypatch.setattr(Rows, "numbered", numbered)
    paths = [tmp_path / f"{number}.{format}" for number in range(1 + several)]
    for number, path in enumerate(paths):
        path.write_bytes(rows_of(format, Random(number)))
    source = tmp_path / f"*.{format}" if several else paths[0]
    every = {row.id: row for row in read_text_file(source)}
    assert list(every) == list(range(len(every)))
    units = []
    for start in (0, 1, 140, len(every) - 1, len(every)):
        parsed.clear()
        wanted = range(start, start + 9)
        values: dict[int, Any] = {}
        found = list(read_text_file(source, wanted=wanted.__contains__, rows=values))
        assert found == [every[number] for number in wanted if number in every]
        assert list(values) == [row.id for row in found]
        units.append(len(parsed))
    assert max(units) < len(every) / 4


@pytest.mark.parametrize("seed", range(6))
def test_sentences_of_many_blocks(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of columns in one block, in many, and from a stream, in memory and on disk."""
    draw, blank = Random(seed), "\n" * (1 + seed % 2) + "\r\n"
    columns = ["# sent_id = s{}", "# newdoc id = d{}", "# newdoc", "# global.columns = ID", blank]
    docstart = "-DOCSTART- -X- O\n\n" if seed < 3 else "-DOCSTART-\tx\tO\n\n"
    for number in range(2):
        lines = ["# global.columns = x" if seed % 2 else "", *["Ann x B-PER"] * 2, "", ""]
        for index in range(300):
            kinds = draw.choices(["word", "#word", "end", "document", "comment"], [9, 2, 4, 1, 2])
            word = {"word": f"w{index} x O", "#word": "# x O", "end": blank, "document": docstart}
            lines.append(word.get(kinds[0], draw.choice(columns).format(index)))
        text = "\n".join(lines)
        text = text if seed < 3 else "\n".join(line.replace(" x ", "\tx\t") for line in lines)
        (tmp_path / f"{number}.conll").write_text(text, "utf-8", newline="")
    spec = f"train={tmp_path / '0.conll'}+{tmp_path / '1.conll'}"
    found = []
    for size, most in ((10**6, 10**6), (7, 10**6), (1, 10**6), (7, 20), (3, 20)):
        monkeypatch.setattr(files, "BLOCK_LINES", size)
        monkeypatch.setattr(holder, "MOST_IN_MEMORY", most)
        monkeypatch.setattr(holder, "CHUNK", 130)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
        found.append(
            [
                (each, each.where, each.document, each.key)
                for each in read_tokens(spec).splits["train"]
            ]
        )
        assert all(each == found[0] for each in found), (size, most)
    with (tmp_path / "0.conll").open(encoding="utf-8", newline="") as stream:
        streamed = [
            (each.words, each.document, each.key)
            for each in read_token_file(stream, format="conll")
        ]
    assert streamed == [(row.words, row.document, row.key) for row, *_ in found[0][: len(streamed)]]
    assert len({row.document for row, *_ in found[0]}) > 10


class Shares(Reporter):
    """Keeps the shares of the input that are shown."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.seen: list[Any] = []

    def update(self, done: int, text: str = "", *, share: float | None = None) -> None:
        self.seen.append(share)


@pytest.mark.parametrize(
    "form", ["jsonl", "jsonl.gz", "parquet", "conll", "txt", "joined", "folder", "sources"]
)
def test_the_share_of_the_input_that_is_read(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, "MOST_IN_MEMORY", 100)
    monkeypatch.setattr(holder, "CHUNK", 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    draw = Random(0)
    texts = [f"{number} {draw.random()} {draw.random()}" for number in range(12_000)]
    rows = "".join(json.dumps({"text": text, "label": "x"}) + "\n" for text in texts)
    read: Any = read_text
    source = tmp_path / f"train.{form}"
    if form == "jsonl":
        source.write_text(rows)
    elif form == "jsonl.gz":
        source.write_bytes(gzip.compress(rows.encode()))
    elif form == "parquet":
        pyarrow.parquet.write_table(pa.table({"text": texts}), source)
    elif form == "conll":
        source.write_text("".join(f"{text} B-X\n" * 4 + "\n" for text in texts))
        read = read_tokens
    elif form == "txt":
        source.write_text("\n".join(texts))
        read = read_running_text
    elif form == "joined":
        (tmp_path / "a.jsonl").write_text(rows)
        (tmp_path / "b.jsonl").write_text(rows)
        source = f"train={tmp_path / 'a.jsonl'}+{tmp_path / 'b.jsonl'}"
    else:
        for name in "ab":
            (tmp_path / f"{name}.txt").write_text("\n".join(texts))
        read, source = read_running_text, tmp_path
        if form == "sources":
            source = f"a={tmp_path / 'a.txt'},b={tmp_path / 'b.txt'}"
    with shown_by(shown := Shares()):
        read(str(source))
    shares = [share for share in shown.seen if share is not None]
    assert 0 < shares[0] < 0.6 and shares == sorted(shares) and shares[-1] == 1
