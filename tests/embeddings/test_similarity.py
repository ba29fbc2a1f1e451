"""Similarity: pairs with gold, cosines equal to plain transformers, correlations, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from transformers import AutoModel

from finetune.embeddings.pairs import read_similarity
from finetune.embeddings.similarity import (
    compare_pairs,
    correlations,
    fit_standardizer,
)
from finetune.embeddings.vectors import unit_vectors
from finetune.inference.embed import Embedder
from finetune.types import TextExample, UserError
from tests import laboratory as lab
from tests.command import run
from tests.small_data import write_jsonl
from tests.tiny import LAYERS


def row(**more: Any) -> dict[str, Any]:
    return {"text": "the bank of", "text_pair": "a bank", "label": 3, **more}


def test_texts(tmp_path: Path) -> None:
    rows = [row(id=f"n{n}") for n in range(20)] + [row(label=None)]
    data = read_similarity(str(write_jsonl(tmp_path / "x.jsonl", rows)))
    assert data.gold == [3.0] * 20
    assert data.notes == ("1 pair without gold left out",) and not data.split
    assert data.pairs[1].key == "n1" and data.pairs[0].targets is None


def test_targets_by_characters_and_by_words(tmp_path: Path) -> None:
    path = str(
        write_jsonl(tmp_path / "x.jsonl", [row(start=4, end=8, start_pair="2", end_pair=6.0)])
    )
    assert read_similarity(path).pairs[0].targets == ((4, 8), (2, 6))
    path = str(write_jsonl(tmp_path / "y.jsonl", [row(index=1, index_pair=1, label="same")]))
    data = read_similarity(path)
    assert data.pairs[0].targets == ((4, 8), (2, 6)) and data.gold is None
    assert data.notes == ("labels are names such as 'same': cosines have no correlation",)
    path = str(write_jsonl(tmp_path / "z.jsonl", [row(i=1, j=0)]))
    data = read_similarity(path, columns={"index": "i", "index_pair": "j"})
    assert data.pairs[0].targets == ((4, 8), (0, 1))


def test_splits(tmp_path: Path) -> None:
    for name in ("train", "validation"):
        write_jsonl(tmp_path / f"{name}.jsonl", [row()])
    with pytest.raises(UserError, match="one split of train, validation with --split"):
        read_similarity(str(tmp_path))
    assert read_similarity(str(tmp_path), split="validation").split == "validation"
    write_jsonl(tmp_path / "test.jsonl", [row(), row()])
    assert len(read_similarity(str(tmp_path)).pairs) == 2


@pytest.mark.parametrize(
    ("more", "columns", "message"),
    [
        ({"start": 4, "end": 40, "start_pair": 0, "end_pair": 1}, {}, "1: characters 4 to 40 hold"),
        ({"start": 3, "end": 4, "start_pair": 0, "end_pair": 1}, {}, "1: characters 3 to 4 hold"),
        ({"index": 3, "index_pair": 0}, {}, "1: there is no word 3 among 3 words"),
        ({"index": -1, "index_pair": 0}, {}, "index must be a whole number from 0, not -1"),
        ({"index": 1}, {"index": "index"}, "'index_pair' is missing"),
        ({}, {"sourc": "x"}, "'sourc' is not a role"),
    ],
)
def test_errors_of_pairs(
    more: dict[str, Any], columns: dict[str, str], message: str, tmp_path: Path
):
    with pytest.raises(UserError, match=message):
        read_similarity(str(write_jsonl(tmp_path / "x.jsonl", [row(**more)])), columns=columns)


def test_a_name_among_numbers(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "x.jsonl", [row(), row(label="four")]))
    with pytest.raises(UserError, match=r"x.jsonl:2: the similarity 'four' is not a finite number"):
        read_similarity(path)


LEFT = "anna saw a big red dog in the garden of the old house"
RIGHT = "a man is playing a guitar"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("similarity")
    corpus = [LEFT, RIGHT, "The Dog saw a dog .", "the old house of the man"]
    (folder / "corpus.txt").write_text("\n".join(corpus))
    in_context = (
        (LEFT, RIGHT, 1.5, 5, 1),
        (RIGHT, "the dog", 3, 5, 1),
        ("two children", LEFT, 2, 1, 12),
        ("the film", "this film", 4, 1, 1),
    )
    columns = ("text", "text_pair", "label", "index", "index_pair")
    write_jsonl(folder / "context.jsonl", [dict(zip(columns, r, strict=True)) for r in in_context])
    words = [("dog", "house"), ("Dog", "man"), ("old house", "guitar"), ("film", "story")]
    rows = [{"text": a, "text_pair": b, "label": n / 2} for n, (a, b) in enumerate(words)]
    write_jsonl(folder / "words.jsonl", rows)
    return folder


def pair(first: str, second: str, *targets: tuple[int, int]) -> TextExample:
    chosen: Any = targets or None
    return TextExample(0, first, second, where="x:1", targets=chosen)


def states(embedder: Embedder, folder: Path, words: list[str]) -> list[torch.Tensor]:
    """The last hidden states of the subwords of each word, by transformers alone."""
    subwords = embedder.tokenizer.word_subwords([words])[0]
    ids = embedder.tokenizer.build([id for word in subwords for id in word])[0]
    with torch.no_grad():
        found = AutoModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0]
    return list(found[1:-1].split([len(each) for each in subwords]))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_words_in_context_equal_plain_transformers(family: str) -> None:
    embedder = Embedder(lab.checkpoint(family), unit="word")
    dog, guitar = LEFT.index("dog"), RIGHT.index("guitar")
    targets = ((dog, dog + 3), (guitar, guitar + 6))
    for window, left, right in (
        (None, LEFT.split(), RIGHT.split()),
        (2, LEFT.split()[3:8], RIGHT.split()[3:]),
    ):
        (found,) = compare_pairs(embedder, [pair(LEFT, RIGHT, *targets)], window=window)
        first = states(embedder, lab.checkpoint(family), left)[left.index("dog")].mean(0)
        second = states(embedder, lab.checkpoint(family), right)[right.index("guitar")].mean(0)
        expected = torch.cosine_similarity(first, second, dim=0)
        np.testing.assert_allclose(found.values, [expected], atol=1e-5)


def test_words_alone() -> None:
    embedder = Embedder(lab.checkpoint(), unit="word")
    dog = states(embedder, lab.checkpoint(), ["dog"])[0].mean(0)
    house = states(embedder, lab.checkpoint(), ["house"])[0].mean(0)
    (alone,) = compare_pairs(embedder, [pair("dog", "house")])
    np.testing.assert_allclose(
        alone.values, [torch.cosine_similarity(dog, house, dim=0)], atol=1e-5
    )
    with pytest.raises(UserError, match=r"x:1: .* holds no word"):
        compare_pairs(embedder, [pair("dog", " ")])


def test_layers_and_standardization() -> None:
    pairs = [pair(LEFT, RIGHT), pair(RIGHT, "the dog"), pair("a film", LEFT)]
    texts = [text for p in pairs for text in (p.text, p.pair or "")]
    layered = Embedder(lab.checkpoint(), layers=range(LAYERS + 1), combine="none")
    standardizer = fit_standardizer(layered, texts, most=100)
    found = compare_pairs(layered, pairs, standardizer=standardizer)
    order = [(each.layer, each.standardized) for each in found]
    assert order == [(n, z) for z in (False, True) for n in range(LAYERS + 1)]
    last = compare_pairs(Embedder(lab.checkpoint()), pairs)[0]
    np.testing.assert_allclose(found[LAYERS].values, last.values, atol=1e-6)
    vectors = np.stack([e.vectors[0] for e in layered.encode(texts)])
    z = (vectors - vectors.mean(0)) / vectors.std(0)
    first, second = unit_vectors(z[::2, -1]), unit_vectors(z[1::2, -1])
    np.testing.assert_allclose(found[-1].values, (first * second).sum(-1), atol=1e-5)
    with pytest.raises(UserError, match="fitted with layers"):
        compare_pairs(Embedder(lab.checkpoint()), pairs, standardizer=standardizer)
    other = Embedder(lab.checkpoint("modernbert"), layers=range(LAYERS + 1), combine="none")
    with pytest.raises(UserError, match="fitted with weights"):
        compare_pairs(other, pairs, standardizer=standardizer)


def test_command(place: Path, tmp_path: Path) -> None:
    model, data, out = (
        str(lab.checkpoint()),
        str(place / "context.jsonl"),
        str(tmp_path / "p.jsonl"),
    )
    compare = ("similarity", model, "--data", data, "--resamples", "50")
    standardize = ("--standardize", place / "corpus.txt")
    outcome = run(*compare, *standardize, "--out", out).ok()
    assert "standardized over 31 words" in outcome.err and "spearman" in outcome.out
    lines = [line.split()[0] for line in outcome.out.splitlines()]
    assert lines == ["4", "vectors", "raw", "standardized"]
    again = run(*compare, *standardize, "--json")
    raw, z = json.loads(again.out)
    assert (raw["vectors"], z["vectors"]) == ("raw", "standardized")
    assert f"{z['spearman']:.4f}" in outcome.out
    scored = run("score", out, data, "--columns", "label=label", "--json").ok()
    assert json.loads(scored.out)["spearman"] == pytest.approx(z["spearman"])
    other = tmp_path / "raw.jsonl"
    run("similarity", model, "--data", data, "--out", other).ok()
    compared = run(
        "compare", out, other, "--metric", "spearman", "--resamples", "20", "--json"
    ).ok()
    assert json.loads(compared.out)["a"]["value"] == pytest.approx(z["spearman"])


def test_command_for_words_and_for_two_texts(place: Path) -> None:
    model, words = lab.checkpoint(), place / "words.jsonl"
    layers = ("--combine", "none", "--layers", "0,-1", "--resamples", "20", "--json")
    outcome = run("similarity", model, "--data", words, "--unit", "word", *layers).ok()
    assert [row["vectors"] for row in json.loads(outcome.out)] == [
        "layer 0, raw",
        f"layer {LAYERS}, raw",
    ]
    both = run("similarity", model, "--text", "a man", "--pair", "a man", "--format", "csv")
    header, row = both.out.splitlines()
    assert header == "cosine,first,second" and float(row.split(",")[0]) == pytest.approx(1.0)


RANDOM = np.random.default_rng(1)
GOLD = RANDOM.integers(0, 6, 60).astype(float)
PREDICTED = GOLD + RANDOM.normal(size=60) * 2


def test_correlations_and_their_intervals() -> None:
    found = correlations(GOLD.tolist(), PREDICTED.tolist(), num_resamples=500)
    random = np.random.default_rng(5)
    for name, oracle in (("spearman", spearmanr), ("pearson", pearsonr)):
        np.testing.assert_allclose(found[name].value, oracle(GOLD, PREDICTED)[0])
        drawn = random.integers(0, 60, (400, 60))
        scores = [oracle(GOLD[rows], PREDICTED[rows])[0] for rows in drawn]
        expected = np.quantile(scores, [0.025, 0.975])
        np.testing.assert_allclose(found[name][1:], expected, atol=0.06)
