"""Blocks of rows, however large, and the share of the input that is read."""

from __future__ import annotations

import gzip
import json
import os
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
    read_token_file,
    read_tokens,
)
from finetune.data.running_text import read_running_text
from finetune.runtime.progress import Reporter, shown_by


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
