"""Sentences of files that are read in pieces of any size."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from finetune.data import examples as holder
from finetune.data import (
    files,
    read_token_file,
    read_tokens,
)


@pytest.mark.parametrize("seed", range(6))
def test_sentences_of_many_pieces(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of columns in one piece, in many, and from a stream, in memory and on disk."""
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
    for size, most in ((files.PIECE, 10**6), (1, 10**6), (50, 20)):
        monkeypatch.setattr(files, "PIECE", size)
        monkeypatch.setattr(holder, "MOST_IN_MEMORY", most)
        monkeypatch.setattr(holder, "CHUNK", 130)
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
