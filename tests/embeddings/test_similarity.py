"""Similarity: pairs with gold, cosines equal to plain transformers, correlations, the command."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from finetune.embeddings.similarity import best_threshold, compare_pairs, read_similarity
from finetune.embeddings.vectors import Standardizer, unit_vectors
from finetune.inference.embed import Embedder
from finetune.types import TextExample, UserError
from tests import fixtures as fx
from tests.command import run
from tests.small_data import read_jsonl, write_jsonl, write_splits
from tests.tiny import LAYERS


def row(**more: Any) -> dict[str, Any]:
    return {"text": "the bank of", "text_pair": "a bank", "label": 3, **more}


def read(folder: Path, *rows: dict[str, Any], **options: Any) -> Any:
    return read_similarity(str(write_jsonl(folder / "x.jsonl", rows)), **options)


def test_texts(tmp_path: Path) -> None:
    pairs, notes = read(tmp_path, *(row(id=f"n{n}") for n in range(20)), row(label=None))
    assert [pair.label for pair in pairs] == [3.0] * 20
    assert notes == ["1 pair without gold left out"]
    assert pairs[1].key == "n1" and pairs[0].targets is None
    pairs, (note,) = read(tmp_path, row(label=-1.0), row(label=-1))
    assert [pair.label for pair in pairs] == [None, None], "as in the test sets of GLUE"
    assert "every label is -1" in note


def test_targets(tmp_path: Path) -> None:
    for values, columns, second in (
        ({"index": 1, "index_pair": "1", "label": "same"}, {}, (2, 6)),
        ({"i": 1, "j": 0.0}, {"index": "i", "index_pair": "j"}, (0, 1)),
    ):
        (pair,), notes = read(tmp_path, row(**values), columns=columns)
        assert pair.targets == ((4, 8), second)
        assert pair.label == values.get("label", 3.0) and not notes


def test_splits(tmp_path: Path) -> None:
    write_splits(tmp_path, train=[row()], validation=[row()])
    with pytest.raises(UserError, match="one split of train, validation with --split"):
        read_similarity(str(tmp_path))
    assert len(read_similarity(str(tmp_path), split="validation")[0]) == 1


@pytest.mark.parametrize(
    ("more", "columns", "message"),
    [
        ({"index": 3, "index_pair": 0}, {}, "1: there is no word 3 among 3 words"),
        ({"index": "a", "index_pair": 0}, {}, "index must be a whole number from 0, not 'a'"),
        ({"index": 1}, {"index": "index"}, "'index_pair' is missing"),
        ({"label": "four"}, {}, r"x.jsonl:1: the similarity 'four' is not a finite number"),
    ],
)
def test_errors_of_pairs(
    more: dict[str, Any], columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, row(**more), row(), columns=columns)


LEFT = "anna saw a big red dog in the garden of the old house"
RIGHT = "a man is playing a guitar"


def pair(first: str, second: str, *targets: tuple[int, int]) -> TextExample:
    chosen: Any = targets or None
    return TextExample(0, first, second, where="x:1", targets=chosen)


def plain_vector(embedder: Embedder, folder: Path, words: list[str], word: str) -> torch.Tensor:
    """The mean of the last hidden states of the subwords of a word, by transformers alone."""
    subwords = embedder.tokenizer.word_subwords([words])[0]
    ids = embedder.tokenizer.build([id for ids in subwords for id in ids])[0]
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0]
    return states[1:-1].split([len(ids) for ids in subwords])[words.index(word)].mean(0)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_words_equal_plain_transformers(family: str) -> None:
    folder = fx.checkpoint(family)
    embedder = Embedder(folder, unit="word")
    dog, guitar = LEFT.index("dog"), RIGHT.index("guitar")
    in_context = pair(LEFT, RIGHT, (dog, dog + 3), (guitar, guitar + 6))
    for compared, left, right in (
        (in_context, LEFT.split(), RIGHT.split()),
        (pair("dog", "guitar"), ["dog"], ["guitar"]),
    ):
        (measured,) = compare_pairs(embedder, [compared]).values()
        first = plain_vector(embedder, folder, left, "dog")
        second = plain_vector(embedder, folder, right, "guitar")
        expected = torch.cosine_similarity(first, second, dim=0)
        np.testing.assert_allclose(measured, [expected], atol=1e-5)
    with pytest.raises(UserError, match=r"x:1: .* holds no word"):
        compare_pairs(embedder, [pair("dog", " ")])


def test_layers_and_standardization() -> None:
    pairs = [pair(LEFT, RIGHT), pair(RIGHT, "the dog"), pair("a film", LEFT)]
    texts = [text for p in pairs for text in p.texts()]
    layered = Embedder(fx.checkpoint(), layers=range(LAYERS + 1), combine="none")
    standardizer = Standardizer.fit(read.vectors for read in layered.encode(texts))
    measured = compare_pairs(layered, pairs, standardizer=standardizer)
    names = [f"layer {n}, {z}" for z in ("raw", "standardized") for n in range(LAYERS + 1)]
    assert [*measured] == names
    last = compare_pairs(Embedder(fx.checkpoint()), pairs)["raw"]
    np.testing.assert_allclose(measured[names[LAYERS]], last, atol=1e-6)
    vectors = np.stack([e.vectors[0] for e in layered.encode(texts)])
    z = (vectors - vectors.mean(0)) / vectors.std(0)
    first, second = unit_vectors(z[::2, -1]), unit_vectors(z[1::2, -1])
    np.testing.assert_allclose(measured[names[-1]], (first * second).sum(-1), atol=1e-5)


def test_command(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join([LEFT, RIGHT, "The Dog saw a dog .", "the old house of the man"]))
    data, out = "examples/data/words/in_context.jsonl", tmp_path / "p.jsonl"
    compare = ("similarity", fx.checkpoint(), "--data", data, "--resamples", "50")
    standardize = ("--standardize", corpus)
    outcome = run(*compare, *standardize, "--out", out).ok()
    assert "standardized over 31 words" in outcome.err and "spearman" in outcome.out
    lines = [line.split()[0] for line in outcome.out.splitlines()]
    assert lines == ["25", "vectors", "raw", "standardized"]
    raw, z = json.loads(run(*compare, *standardize, "--json").out)
    assert (raw["vectors"], z["vectors"]) == ("raw", "standardized")
    assert f"{z['spearman']:.4f}" in outcome.out
    scored = run("score", out, data, "--columns", "label=label", "--json").ok()
    assert json.loads(scored.out)["spearman_all"] == pytest.approx(z["spearman"])
    assert "mse" not in json.loads(scored.out), "cosines are no estimates of the gold"


def test_command_for_words_and_for_two_texts() -> None:
    data = "examples/data/words/pairs.jsonl"
    layers = ("--combine", "none", "--layers", "0,-1,-1", "--resamples", "20", "--json")
    outcome = run("similarity", fx.checkpoint(), "--data", data, "--unit", "word", *layers).ok()
    names = [row["vectors"] for row in json.loads(outcome.out)]
    assert names == ["layer 0, raw", f"layer {LAYERS}, raw"]
    texts = ("--text", "a man", "--pair", "a man", "--format", "csv")
    header, line = run("similarity", fx.checkpoint(), *texts).out.splitlines()
    assert header == "cosine,first,second" and float(line.split(",")[0]) == pytest.approx(1.0)


def labeled(*labels: str) -> list[TextExample]:
    return [TextExample(number, "a", "b", label) for number, label in enumerate(labels)]


def test_threshold_is_the_best_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        size = int(rng.integers(2, 30))
        cosines = rng.integers(-4, 5, size=size) / 4  # with ties
        labels = np.where(rng.random(size) < 0.5 + cosines / 4, "same", "different")
        labels[:2] = "same", "different"
        threshold, above, below = best_threshold(cosines, labeled(*labels))
        accuracies = [
            (np.where(cosines >= value, above, below) == labels).mean()
            for value in (threshold, *cosines, *(cosines + 0.1))
        ]
        assert accuracies[0] == max(accuracies)
    assert best_threshold(np.array([0.1, 0.2, 0.8]), labeled("F", "F", "T")) == (0.5, "T", "F")
    for labels, listed in (("T", r"1 label: T\."), ("", r"0 labels\.$")):
        with pytest.raises(UserError, match=f"two labels, and the training pairs have {listed}"):
            best_threshold(np.array([0.1] * len(labels)), labeled(*labels))


def test_command_for_words_in_context(tmp_path: Path) -> None:
    texts = ["the bank of the river", "a bank in the city", "the river bank", "the bank of england"]
    rows = [
        {
            "id": f"p{i}{j}",
            "text": texts[i],
            "text_pair": texts[j],
            "index": texts[i].split().index("bank"),
            "index_pair": texts[j].split().index("bank"),
            "label": "same" if (i + j) % 2 else "different",
        }
        for i, j in itertools.combinations(range(4), 2)
    ]
    data, out = write_splits(tmp_path / "data", train=rows, test=rows), tmp_path / "labels.jsonl"
    fit = ("similarity", fx.checkpoint(), "--threshold", "--data", data)
    (table,) = json.loads(run(*fit, "--out", out, "--format", "json").ok().out)
    lines = read_jsonl(out)
    for line, row in zip(lines, rows, strict=True):
        assert (line["id"], line["gold"]) == (row["id"], row["label"])
        assert (line["label"] == table["at or above"]) == (line["cosine"] >= table["threshold"])
    right = [line["label"] == line["gold"] for line in lines]
    assert table["accuracy"] == pytest.approx(np.mean(right))
    assert str(table["accuracy"])[:6] in run("score", out).ok().out
    assert "on the pairs that it is scored on" in run(*fit[:-1], data / "train.jsonl").ok().err
