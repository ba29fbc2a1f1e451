"""What `vocabulary` and `perplexity` refuse, each in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import run
from tests.laboratory import checkpoint
from tests.tiny import model, tokenizer

VOCABULARY = {
    "a.txt --size 0": "--size must be from 1 to 10,000,000, not 0",
    f"a.txt --size {10**30}": "--size must be from 1 to 10,000,000",
    "a.txt --size 5": "--size 5 has no room for the special tokens",
    "a.txt --alpha 2": "--alpha must be from 0 to 1",
    "a.txt --out bert": "--out bert exists: name another folder",
    "a.txt --vectors a.vec a.vec": "--vectors need --for MODEL and --init simil",
    "a.txt --for bert --vectors a.vec": "--vectors needs two files",
    "a.txt --for bert --vectors a.vec b.vec": "--vectors have 2 and 3 dimensions",
    "a.txt --for bert --vectors a.vec no.vec": "--vectors no.vec: no such file",
    "empty.txt": "there is no text in it",
    "none.txt": "no such file or folder",
}
PERPLEXITY = {
    "bert": "--text or --file",
    "bert --text a --method words": "--method must be one of token, word, not 'words'",
    "bert --text a --pairs": "--pairs compares two texts, not 1",
    "bert --text a --resamples 0": "--resamples must be",
    "bert --file a.txt --seed -1": "--seed -1: must be from 0 to 4294967295",
    "bert --text a --out a.txt": "a.txt",
    "bert --file empty.txt": "there is no text in it",
    "encoder --text a": "has no trained masked-LM head, so its probabilities mean nothing",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refused")
    (folder / "bert").symlink_to(checkpoint())
    model("bert").save_pretrained(folder / "encoder")
    tokenizer("bert").save_pretrained(folder / "encoder")
    texts = {
        "a.txt": "the old house\n",
        "empty.txt": "",
        "a.vec": "the 1 0\n",
        "b.vec": "the 1 0 1\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    return folder


@pytest.mark.parametrize(
    ("command", "typed", "said"),
    [
        *(("vocabulary", *row) for row in VOCABULARY.items()),
        *(("perplexity", *row) for row in PERPLEXITY.items()),
    ],
)
def test_refused(
    command: str, typed: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    more = ["--out", "new"] if command == "vocabulary" and "--out" not in typed else []
    size = ["--size", "420"] if command == "vocabulary" and "--for" in typed else []
    done = run(command, *typed.split(), *more, *size)
    assert done.code == 2 and said in done.err.splitlines()[-1], done.err
    assert done.err.splitlines()[-1].startswith("error: ")
    assert not (folder / "new").exists()
