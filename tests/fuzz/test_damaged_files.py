"""Every command meets a damaged file with one line of error, and leaves no file half-written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import small_data
from tests.command import run
from tests.fuzz.mutations import SEEDS, fuzz
from tests.tiny import save_tiny_checkpoint

pytestmark = pytest.mark.slow

FILE, OUT = "FILE", "OUT"
COMMANDS: dict[str, tuple[str, ...]] = {
    "predict texts": ("predict", "classify", "--file", FILE, "--out", OUT),
    "predict to a table": ("predict", "classify", "--file", FILE, "--out", "OUT.csv"),
    "predict words": ("predict", "tag", "--file", FILE, "--out", OUT),
    "suggest": ("suggest", "classify", "--file", FILE, "--out", OUT),
    "suggest words": ("suggest", "tag", "--file", FILE, "--out", OUT),
    "embed": ("embed", "bert", "--file", FILE, "--out", "OUT.npy"),
    "review": ("review", FILE, "--out", "OUT.html"),
    "check": ("check", FILE),
    "convert to JSON Lines": ("convert", FILE, "--to", "jsonl", "--out", OUT),
    "convert to doccano": ("convert", FILE, "--to", "doccano", "--out", OUT),
    "convert to columns": ("convert", FILE, "--to", "conll", "--out", "OUT.conll"),
    "analyze": ("report", FILE, "--format", "table"),
    "score": ("score", FILE),
    "agreement": ("agreement", FILE, FILE),
}
"""The arguments of each command; the files of a run and of the test stand for their names."""
INPUTS = (
    "texts.jsonl",
    "texts.tsv",
    "tags.jsonl",
    "words.conll",
    "sentences.jsonl",
    "labels.jsonl",
    "predicted.jsonl",
    "suspects.jsonl",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    save_tiny_checkpoint(folder / "bert", "bert")
    for task, data in (("classify", small_data.sentiment), ("tag", small_data.entities)):
        rows = data(folder / f"{task}-data")
        flags = ("--model", folder / "bert", "--data", rows, "--out", folder / task, "--steps", "1")
        assert run(task, *flags).code == 0
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(name: str, place: Path, tmp_path: Path) -> None:
    def check(content: bytes, suffix: str) -> None:
        file = tmp_path / f"input{suffix}"
        file.write_bytes(content)
        names = {
            FILE: file,
            OUT: tmp_path / "out.jsonl",
            "classify": place / "classify",
            "tag": place / "tag",
            "bert": place / "bert",
        }
        words = [COMMANDS[name][0]]
        for word in COMMANDS[name][1:]:
            own = tmp_path / word.replace(OUT, "out") if word.startswith("OUT.") else word
            words.append(str(names.get(word, own)))
        outcome = run(*words)
        assert "internal error" not in outcome.err, outcome.err
        message = outcome.err.strip().splitlines()
        if outcome.code not in (0, 1) or (outcome.code == 1 and words[0] != "check"):
            assert outcome.code == 2 and message[-1].startswith("error: "), outcome.err
        written = {path.name for path in tmp_path.iterdir()} - {file.name}
        assert not written or outcome.code == 0, (written, outcome.err)
        for path in tmp_path.iterdir():
            path.unlink()

    for each in INPUTS:
        fuzz(SEEDS[each], lambda content, each=each: check(content, Path(each).suffix), len(INPUTS))
