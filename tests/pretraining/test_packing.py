"""Packing of lines into blocks: whole lines, documents, long lines, nothing left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import pytest

from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.packing import Packer
from finetune.pretraining.task import MaskFilling
from finetune.types import TextExample
from tests import fixtures as fx
from tests import tiny

LINES = [line for line in tiny._TEXT.splitlines() if line]
DOCUMENTS = ["\n".join(LINES[:3]), LINES[3], "\n".join(LINES[4:9]), "   ", "\n".join(LINES[9:])]


def documents(texts: list[str]) -> list[TextExample]:
    return [TextExample(index, text, where=f"f:{index}") for index, text in enumerate(texts)]


def tokenizer(family: str) -> SubwordTokenizer:
    return SubwordTokenizer(tiny.tokenizer(family))


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("packing", ["doc-sentences", "full-sentences"])
@pytest.mark.parametrize("max_length", [12, 40, 64])
def test_nothing_is_left_out(family: str, packing: str, max_length: int) -> None:
    subwords = tokenizer(family)
    counts = Packer(subwords, max_length, packing)
    blocks = list(counts.pack(documents(DOCUMENTS)))
    room = max_length - 2
    for block in blocks:
        lines = block.text.split("\n")
        size = sum(map(len, subwords.text_subwords(lines))) + lines.count("")
        assert 0 < size <= room
        assert lines[0] and lines[-1]
    written = "".join(block.text for block in blocks).replace("\n", "").replace(" ", "")
    assert written == "".join(DOCUMENTS).replace("\n", "").replace(" ", "")
    assert [block.id for block in blocks] == list(range(len(blocks)))
    assert counts.sequences == len(blocks) and counts.lines == len(LINES) + 1
    assert counts.empty <= 1
    every_line = [line for text in DOCUMENTS for line in text.split("\n")]
    number = sum(map(len, subwords.text_subwords(every_line)))
    assert counts.frequency.sum() == number
    kept = {line for block in blocks for line in block.text.split("\n")}
    long = [line for line in LINES if len(subwords.text_subwords([line])[0]) > room]
    assert counts.cut == len(long)
    assert kept >= set(LINES) - set(long), "lines that fit are not cut"


@pytest.mark.parametrize(
    ("family", "packing", "nsp"),
    [
        *product(["bert", "roberta", "xlm-roberta"], ["doc-sentences", "full-sentences"], [False]),
        ("bert", "doc-sentences", True),
    ],
)
def test_blocks_know_their_subwords(family: str, packing: str, nsp: bool, tmp_path: Path) -> None:
    """Sequences are those that the tokenizer makes of the texts of the blocks."""
    texts = [
        *DOCUMENTS,
        "Anna saw 日本語 in Geneva\n\n" + "the train " * 40,
        "日本語" * 30,
        "a  b\r",
    ]
    (tmp_path / "train.txt").write_text("\n\n".join(texts), encoding="utf-8", newline="")
    paths = {"model": fx.checkpoint(family), "data": tmp_path / "train.txt", "validation": "none"}
    settings = {"packing": packing, "nsp": nsp, "max_length": 64 if nsp else 24}
    task, loaded = fx.load(fx.config("pretrain", **paths, **settings))
    blocks = loaded.splits["train"]
    assert all(block.subwords is not None for block in blocks)
    filling = MaskFilling(task.state, task.tokenizer)
    packed, expected = (reader._sequences(blocks)[0] for reader in (task, filling))
    assert [[replace(row, target=None) for row in rows] for rows in packed] == expected


def test_documents_end_blocks_or_are_separated() -> None:
    subwords = tokenizer("bert")
    by_document = list(Packer(subwords, 64, "doc-sentences").pack(documents(DOCUMENTS)))
    full = list(Packer(subwords, 64, "full-sentences").pack(documents(DOCUMENTS)))
    assert len(full) < len(by_document)
    assert not any("" in block.text.split("\n") for block in by_document)
    assert any("" in block.text.split("\n") for block in full)
    sources = [TextExample(0, LINES[0], key="en"), TextExample(1, LINES[1], key="de")]
    blocks = Packer(subwords, 64, "full-sentences").pack(sources)
    assert [block.key for block in blocks] == ["en", "de"], "sources are not mixed"


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize(
    "text", ["x" * 500, "日本語" * 60, "the train " * 3000, "a" + " " * 300 + "b"]
)
def test_long_lines(family: str, text: str) -> None:
    """Also a line that is one word, without spaces, or far over the limit."""
    subwords = tokenizer(family)
    counts = Packer(subwords, 20, "doc-sentences")
    blocks = list(counts.pack(documents([text])))
    ids = [memoryview(block.subwords[0]).cast("i").tolist() for block in blocks]
    sizes = list(map(len, ids))
    assert max(sizes) <= 18 and list(chain.from_iterable(ids)) == subwords.text_subwords([text])[0]
    assert "".join(block.text for block in blocks).rstrip() == text.rstrip()
    assert counts.cut == (max(sizes) > 0 and len(blocks) > 1)
