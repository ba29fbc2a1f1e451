"""What the commands of the extensions refuse, in one line each, before they write anything."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests import fixtures as fx
from tests import tiny
from tests.command import run

EXAMPLES = Path("examples/data").absolute()
FILES = {
    "PAIRS": EXAMPLES / "similarity",
    "WORDS": EXAMPLES / "words" / "pairs.jsonl",
    "TEXTS": EXAMPLES / "words" / "senses.jsonl",
    "TAGS": EXAMPLES / "ner" / "test.conll",
    "SENSES": EXAMPLES / "senses",
    "NLI": EXAMPLES / "nli",
    "PAIR": EXAMPLES / "nli" / "test.jsonl",
    "SINGLE": EXAMPLES / "sentiment",
    "TEST": f"test={EXAMPLES / 'senses' / 'test.jsonl'}",
}
SMALL = {
    "a.txt": "the old house\n",
    "lines.txt": "the old house\n\na dog\n",
    "empty.txt": "",
    "signs.txt": "\u200b\n",
    "a.rows.jsonl": '{"text": "the old house"}\n',
    "a.vec": "the 1 0\n",
    "b.vec": "the 1 0 1\n",
}
REFUSED = {
    "embed MODEL": {
        "--text a --layers 0,12": "layers 0,12: legal are last, last4, all and numbers",
        "--text a --out x.txt": "the suffix names the format",
        "--file a.rows.jsonl --out a.npy": "would overwrite the input a.rows.jsonl",
        "--file TAGS": "holds words, not texts: add --unit word or",
        "--file PAIR": "are pairs of texts, and single texts are read here: name the column",
    },
    "similarity MODEL": {
        "": "needs either --data, or --text and --pair",
        "--text a": "give both texts",
        "--data PAIRS --resamples 0": "--resamples must be 1 or more",
        "--data WORDS --combine none --out x.jsonl": "one cosine of a pair",
    },
    "similarity MODEL --threshold": {
        "--text y": "--threshold needs --data with a train split",
        "--data WORDS": "train",
    },
    "geometry MODEL --data TEXTS": {
        "--texts 1": "two or more lines of text, not 1",
        "--out x.txt": "one of .html, .json",
        f"--sentence '{'dog ' * 70}'": "72 tokens are too many to show: write a sentence of at m",
    },
    "geometry SQUEEZEBERT --data TEXTS": {
        "--sentence anna": "--sentence: no analysis of attention: squeezebert models"
    },
    "map MODEL --file TEXTS": {
        "--word die": "map needs --out FILE",
        "--word '' --out x.json": "'' is not a word",
        "--word die, --out x.json": "'' is not a word",
        "--word die/ --out x.json": "'die/' is not a word",
        "--word die,die/dies --out x.json": "'die' is named twice",
        "--word dye --out x.json": "none of the 50 texts has it",
        "--word die --most 0 --out x.json": "--most must be 1 or more, not 0",
        "--word die --most 2 --out x.json": "needs 3 points or more, not 2",
    },
    "nli --model MODEL --data NLI --dry-run": {
        "--pair-encoder bi --long-text window": "one sequence of each text"
    },
    "classify --model MODEL --dry-run": {"--data SINGLE --pair-encoder bi": "needs pairs of texts"},
    "sentence --model MODEL --dry-run": {
        "--data NLI": "train has pairs labeled contradiction, entailment, neutral: choose another",
        "--data PAIRS --objective softmax": "two labels or more; train has pairs with numbers: ch",
        "--data a.txt --objective cmlm": "needs running text with a sentence in each line, or p",
        "--objective softmax --temperature 0.1": "--temperature 0.1: --objective softmax has none",
        "--objective prompt --pooling cls": "--pooling cls: with --objective prompt the mask",
        "--objective prompt --templates '{text}' x": "{text} and {mask} once each, not",
        "--templates '{text}{mask}' '{mask}{text}'": "they apply to --objective prompt",
        "--data PAIRS --objective ranking --batch-size 1": "compares the texts of a batch",
    },
    "pretrain --model MODEL --dry-run": {
        "--data lines.txt --config small": "--config trains a new encoder: leave --model out",
        "--data lines.txt --tokenizer x": "is for a new encoder",
        "--data lines.txt --explore --mask spans": "choose another --mask",
        "--data ''": "--data must name running text",
        "--data lines.txt --boundary": "add --mask spans",
        "--data lines.txt --nsp --packing full-sentences": "leave --packing full-sentences out",
        "--data lines.txt --nsp --validation none": "every sequence of train is a single line",
        "--data a.txt --nsp --validation none": "train split has a single document",
    },
    "pretrain --dry-run --data lines.txt": {
        "--config small": "name a tokenizer with --tokenizer",
        "--model ROBERTA --nsp": "or leave --nsp out",
    },
    "wsd --model MODEL --out new": {
        "--data SENSES --glosses=-1": "--glosses must be a finite number of 0 or more, not -1.0",
        "--data SENSES --prior nan": "--prior must be a finite number of 0 or more, not nan",
        "--data SENSES --glosses 1": "add --inventory FOLDER",
        "--data TEXTS": "a row needs `tokens`, a list of words",
        "--data TEST": "no train split (found: test)",
    },
    "vocabulary": {
        "a.txt --out new --size 0": "--size must be 1 or more, not 0",
        "a.txt --out new --size 10000001": "--size must be at most 10,000,000",
        "signs.txt --out new --kind wordpiece": "the text has no words to train a vocabulary on",
        "a.txt --out new --alpha 2": "--alpha must be from 0 to 1",
        "a.txt --out MODEL": "is not empty: name a new folder",
        "a.txt --out new --vectors a.vec a.vec": "--vectors need --for MODEL and --init simil",
        "empty.txt --out new": "there is no text in it",
        "a.txt --out new --for MODEL --kind bpe": "leave --kind and --lowercase out",
        "a.txt --out new --for MODEL --lowercase": "leave --kind and --lowercase out",
        **{
            f"a.txt --out new --size 6 --kind {kind}": "--size 6 has no room"
            for kind in ("wordpiece", "bpe", "unigram")
        },
    },
    "vocabulary a.txt --out new --size 420 --for MODEL": {
        "--vectors a.vec": "--vectors needs two files",
        "--vectors a.vec b.vec": "--vectors have different numbers of dimensions",
        "--vectors a.vec empty.txt": "empty.txt: there are no word vectors in it",
        "--vectors a.vec no.vec": "--vectors no.vec: no such file",
    },
    "perplexity MODEL": {"--file empty.txt": "there is no text in it"},
    "perplexity ENCODER": {
        "--text a": "has no trained masked-LM head, so its probabilities mean nothing"
    },
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    tiny.model("bert").save_pretrained(folder)
    tiny.tokenizer("bert").save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("command", "message"),
    [(f"{name} {more}", said) for name, rows in REFUSED.items() for more, said in rows.items()],
)
def test_refusals(
    command: str, message: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in SMALL.items():
        Path(name).write_text(text, "utf-8")
    paths = FILES | {"MODEL": fx.checkpoint(), "ENCODER": encoder}
    paths |= {name.upper(): fx.checkpoint(name) for name in ("roberta", "squeezebert")}
    run(*(paths.get(word, word) for word in shlex.split(command))).refused(message)
    assert {path.name for path in tmp_path.iterdir()} == {*SMALL}
