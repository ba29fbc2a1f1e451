"""Cosines of pairs: equal to plain transformers for texts, words in context and words alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from finetune.embeddings.pairs import SimilarityPair
from finetune.embeddings.similarity import (
    compare_pairs,
    find_contexts,
    fit_standardizer,
    words_key,
)
from finetune.embeddings.vectors import cosine
from finetune.inference.embed import Embedder
from finetune.types import TextExample, UserError
from tests.command import run
from tests.tiny import LAYERS, save_tiny_checkpoint

LEFT = "anna saw a big red dog in the garden of the old house"
RIGHT = "a man is playing a guitar"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("similarity")
    for family in ("bert", "modernbert"):
        save_tiny_checkpoint(folder / family, family)
    corpus = [LEFT, RIGHT, "The Dog saw a dog .", "the old house of the man"]
    (folder / "corpus.txt").write_text("\n".join(corpus))
    rows = [
        {"text": LEFT, "text_pair": RIGHT, "label": 1.5, "index": 5, "index_pair": 1, "id": "a"},
        {"text": RIGHT, "text_pair": "the dog", "label": 3, "index": 5, "index_pair": 1, "id": "b"},
        {
            "text": "two children",
            "text_pair": LEFT,
            "label": 2,
            "index": 1,
            "index_pair": 12,
            "id": "c",
        },
        {
            "text": "the film",
            "text_pair": "this film",
            "label": 4,
            "index": 1,
            "index_pair": 1,
            "id": "d",
        },
    ]
    (folder / "context.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [("dog", "house"), ("Dog", "man"), ("old house", "guitar"), ("film", "story")]
    rows = [{"text": a, "text_pair": b, "label": n / 2} for n, (a, b) in enumerate(words)]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def pair(first: str, second: str, *targets: tuple[int, int]) -> SimilarityPair:
    chosen: Any = targets or None
    return SimilarityPair(TextExample(0, first, second, where="x:1", targets=chosen))


def states(embedder: Embedder, folder: Path, words: list[str]) -> list[torch.Tensor]:
    """The last hidden states of the subwords of each word, by transformers alone."""
    subwords = embedder.tokenizer.word_subwords([words])[0]
    ids = embedder.tokenizer.build([id for word in subwords for id in word])[0]
    with torch.no_grad():
        found = AutoModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0]
    return list(found[1:-1].split([len(each) for each in subwords]))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_words_in_context_equal_plain_transformers(family: str, place: Path) -> None:
    embedder = Embedder(place / family, unit="word")
    dog, guitar = LEFT.index("dog"), RIGHT.index("guitar")
    targets = ((dog, dog + 3), (guitar, guitar + 6))
    for window, left, right in (
        (None, LEFT.split(), RIGHT.split()),
        (2, LEFT.split()[3:8], RIGHT.split()[3:]),
    ):
        (found,) = compare_pairs(embedder, [pair(LEFT, RIGHT, *targets)], window=window)
        first = states(embedder, place / family, left)[left.index("dog")].mean(0)
        second = states(embedder, place / family, right)[right.index("guitar")].mean(0)
        expected = torch.cosine_similarity(first, second, dim=0)
        np.testing.assert_allclose(found.values, [expected], atol=1e-5)


def test_words_alone_and_in_contexts(place: Path) -> None:
    embedder = Embedder(place / "bert", unit="word")
    dog = states(embedder, place / "bert", ["dog"])[0].mean(0)
    house = states(embedder, place / "bert", ["house"])[0].mean(0)
    (alone,) = compare_pairs(embedder, [pair("dog", "house")])
    np.testing.assert_allclose(
        alone.values, [torch.cosine_similarity(dog, house, dim=0)], atol=1e-5
    )
    corpus = [LEFT, "The Dog saw a dog .", "dogs"]
    contexts = find_contexts(corpus, [("dog",), ("cat",), ("red", "dog")], most=2, window=1)
    assert set(contexts) == {("dog",), ("red", "dog")}
    assert [use.words for use in contexts[("dog",)]] == [
        ("red", "dog", "in"),
        ("The", "Dog", "saw"),
    ]
    assert contexts[("red", "dog")][0] == (("big", "red", "dog", "in"), 1)
    (found,) = compare_pairs(embedder, [pair("dog", "house")], contexts=contexts)
    uses = (use.words for use in contexts[("dog",)])
    mean = torch.stack([states(embedder, place / "bert", list(words))[1].mean(0) for words in uses])
    expected = torch.cosine_similarity(mean.mean(0), house, dim=0)
    np.testing.assert_allclose(found.values, [expected], atol=1e-5)
    assert words_key(("Red", "DOG")) == ("red", "dog")
    for unit in (contexts, None):
        with pytest.raises(UserError, match=r"x:1: .* holds no word"):
            compare_pairs(embedder, [pair("dog", " ")], contexts=unit)


def test_layers_and_standardization(place: Path) -> None:
    pairs = [pair(LEFT, RIGHT), pair(RIGHT, "the dog"), pair("a film", LEFT)]
    layered = Embedder(place / "bert", layers=range(LAYERS + 1), combine="none")
    standardizer = fit_standardizer(layered, [t for p in pairs for t in p.texts], most=100)
    found = compare_pairs(layered, pairs, standardizer=standardizer)
    order = [(each.layer, each.standardized) for each in found]
    assert order == [(n, z) for z in (False, True) for n in range(LAYERS + 1)]
    last = compare_pairs(Embedder(place / "bert"), pairs)[0]
    np.testing.assert_allclose(found[LAYERS].values, last.values, atol=1e-6)
    vectors = np.stack([e.vectors[0] for p in pairs for e in layered.encode(p.texts)])
    z = (vectors - vectors.mean(0)) / vectors.std(0)
    np.testing.assert_allclose(found[-1].values, cosine(z[::2, -1], z[1::2, -1]), atol=1e-5)
    with pytest.raises(UserError, match="fitted with layers"):
        compare_pairs(Embedder(place / "bert"), pairs, standardizer=standardizer)
    other = Embedder(place / "modernbert", layers=range(LAYERS + 1), combine="none")
    with pytest.raises(UserError, match="fitted with weights"):
        compare_pairs(other, pairs, standardizer=standardizer)


def test_command(place: Path, tmp_path: Path) -> None:
    model, data, out = str(place / "bert"), str(place / "context.jsonl"), str(tmp_path / "p.jsonl")
    saved = str(tmp_path / "z.safetensors")
    outcome = run(
        "similarity",
        model,
        "--data",
        data,
        "--standardize",
        place / "corpus.txt",
        "--save-standardizer",
        saved,
        "--out",
        out,
        "--resamples",
        "50",
    )
    assert outcome.code == 0, outcome.err
    assert "standardized over 31 words" in outcome.err and "spearman" in outcome.out
    lines = [line.split()[0] for line in outcome.out.splitlines()]
    assert lines == ["4", "vectors", "raw", "standardized"]
    again = run(
        "similarity",
        model,
        "--data",
        data,
        "--standardize",
        saved,
        "--format",
        "json",
        "--resamples",
        "50",
    )
    raw, z = json.loads(again.out)["results"]
    assert z["standardized"] and not raw["standardized"]
    assert f"{z['scores']['spearman']['value']:.4f}" in outcome.out
    scored = run("score", out, data, "--columns", "label=label")
    assert scored.code == 0, scored.err
    assert json.loads(scored.out)["spearman"] == pytest.approx(z["scores"]["spearman"]["value"])
    other = tmp_path / "raw.jsonl"
    assert run("similarity", model, "--data", data, "--out", other).code == 0
    compared = run(
        "compare", out, other, "--metric", "spearman", "--resamples", "20", "--format", "json"
    )
    assert compared.code == 0, compared.err
    assert json.loads(compared.out)["a"]["value"] == pytest.approx(z["scores"]["spearman"]["value"])


def test_command_for_words_and_for_two_texts(place: Path) -> None:
    model, corpus = str(place / "bert"), str(place / "corpus.txt")
    words = str(place / "words.jsonl")
    outcome = run(
        "similarity",
        model,
        "--data",
        words,
        "--contexts",
        corpus,
        "--format",
        "json",
        "--combine",
        "none",
        "--layers",
        "0,-1",
        "--resamples",
        "20",
    )
    assert outcome.code == 0, outcome.err
    assert "2 of 7 words do not occur" in outcome.err and "read alone" in outcome.err
    assert [view["layer"] for view in json.loads(outcome.out)["results"]] == [0, LAYERS]
    both = run("similarity", model, "--text", "a man", "--pair", "a man", "--format", "csv")
    header, row = both.out.splitlines()
    assert header == "cosine,first,second" and float(row.split(",")[0]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "needs either --data, or --text and --pair"),
        (("--text", "a"), "give both texts"),
        (("--data", "context", "--unit", "text", "--window", "3"), "are for words"),
        (("--data", "words", "--window", "3"), "needs data that name words"),
        (("--data", "context", "--contexts", "corpus"), "have contexts"),
        (("--data", "words", "--save-standardizer", "z.safetensors"), "needs --standardize CORPUS"),
        (("--data", "words", "--combine", "none", "--out", "x.jsonl"), "one cosine of a pair"),
    ],
)
def test_errors_of_use(arguments: tuple[str, ...], message: str, place: Path) -> None:
    files = {"context": "context.jsonl", "words": "words.jsonl", "corpus": "corpus.txt"}
    given: list[Any] = [place / files[each] if each in files else each for each in arguments]
    outcome = run("similarity", str(place / "bert"), *given)
    assert outcome.code == 2 and message in outcome.err
