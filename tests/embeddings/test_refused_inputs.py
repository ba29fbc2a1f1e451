"""What the commands of the extension refuse, in one line each, before they write anything."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests import laboratory as lab
from tests.command import run

EXAMPLES = Path("examples/data").absolute()
FILES = {
    "PAIRS": EXAMPLES / "similarity",
    "WORDS": EXAMPLES / "words" / "pairs.jsonl",
    "NAMED": EXAMPLES / "words" / "in_context.jsonl",
    "TEXTS": EXAMPLES / "words" / "senses.jsonl",
    "TRAIN": EXAMPLES / "word_pairs",
    "TAGS": EXAMPLES / "ner" / "test.conll",
    "SENSES": EXAMPLES / "senses",
    "NLI": EXAMPLES / "nli",
    "SINGLE": EXAMPLES / "sentiment",
}
REFUSED = {
    "embed MODEL": {
        "": "needs either --text or --file",
        "--text a --layers 12": "legal are last, last4, all and numbers",
        "--text a --out x.txt": "the suffix names the format",
        "--text a --out none/x.npy": "its folder does not exist",
        "--file TAGS": "holds words, not texts: add --unit word or",
    },
    "similarity MODEL": {
        "": "needs either --data, or --text and --pair",
        "--text a": "give both texts",
        "--data PAIRS --resamples 0": "--resamples must be 1 or more",
        "--data PAIRS --resamples 99999999": "must be at most 10,000,000",
        "--data NAMED --unit text --window 3": "needs data that name words",
        "--data WORDS --window 3": "needs data that name words",
        "--data WORDS --combine none --out x.jsonl": "one cosine of a pair",
    },
    "similarity MODEL --threshold": {
        "--data TRAIN": "--threshold needs --data with a train split, and --out",
        "--data TRAIN --text y": "--text: it does not apply to --threshold",
        "--data TRAIN --out y --standardize z": "write --standardize train",
        "--data PAIRS --out y": "no column names the word",
    },
    "geometry MODEL --data TEXTS": {
        "--texts 1": "--texts must be 2 or more",
        "--out x.txt": "one of .html, .json",
    },
    "map MODEL --file TEXTS": {
        "--word die": "map needs --out FILE",
        "--word die --out x.txt": "one of .html, .json",
        "--word dye --out x.json": "none of the 50 texts has it",
        "--word die --most 0 --out x.json": "--most must be 1 or more",
        "--word die --most 2 --out x.json": "needs 3 points or more, not 2",
        "--word die --layers 9 --out x.json": "legal are last, last4, all",
        "--word die --out no/x.json": "its folder does not exist",
    },
    "nli --model MODEL --data NLI --dry-run": {
        "--pair-encoder bi --long-text window": "one sequence of each text",
    },
    "classify --model MODEL --dry-run": {"--data SINGLE --pair-encoder bi": "needs pairs of texts"},
    "wsd --model MODEL --out new": {
        "--data SENSES --glosses=-1": "--glosses must be a finite number of 0 or more",
        "--data SENSES --glosses 1": "add --inventory FOLDER",
        "--data TEXTS": "tokens must be a list of words",
        "--data TEST": "no train split (found: test)",
    },
}


@pytest.mark.parametrize(
    ("command", "message"),
    [(f"{name} {more}", said) for name, rows in REFUSED.items() for more, said in rows.items()],
)
def test_refusals(
    command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known = {name: str(path) for name, path in FILES.items()} | {
        "MODEL": str(lab.checkpoint()),
        "TEST": f"test={FILES['SENSES'] / 'test.jsonl'}",
    }
    run(*(known.get(word, word) for word in shlex.split(command))).refused(message)
    assert not list(tmp_path.iterdir())
