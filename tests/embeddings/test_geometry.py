"""Geometry: expected cosines, rogue dimensions, self-similarity, attention, files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from finetune.embeddings.geometry import GeometryMeasure, measure_geometry
from finetune.embeddings.vectors import Standardizer
from finetune.inference.embed import Embedder
from finetune.types import UserError
from tests import laboratory as lab
from tests.command import run
from tests.tiny import LAYERS

RANDOM = np.random.default_rng(3)
TEXTS = [["the", "bank", "of", "the", "river"], ["the", "bank"], [], ["a", "river"]]
VECTORS = [RANDOM.normal(size=(len(words), 2, 6)) for words in TEXTS]
for each in VECTORS:
    each[..., 2] += 4


@pytest.fixture
def measure() -> GeometryMeasure:
    found = GeometryMeasure([0, 3], {"the", "bank", "river", "a"})
    for words, vectors in zip(TEXTS, VECTORS, strict=True):
        found.add(words, vectors)
    return found


@pytest.mark.parametrize("place", [0, 1])
def test_equal_to_all_pairs(measure: GeometryMeasure, place: int) -> None:
    layer = measure.by_layer()[place]
    vectors = np.concatenate(VECTORS)[:, place]
    cosines = 1 - pdist(vectors, "cosine")
    assert layer["layer"] == (0, 3)[place] and measure.expected.count == 9
    np.testing.assert_allclose(layer["expected_cosine"], cosines.mean())
    assert layer["dimensions"][0][0] == 2 and layer["shares"] is not None
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    contributions = np.array(
        [
            np.mean([units[i, d] * units[j, d] for i in range(9) for j in range(9) if i != j])
            for d in range(6)
        ]
    )
    np.testing.assert_allclose(layer["dimensions"][0][1], contributions.max())
    top = np.sort(contributions)[::-1]
    np.testing.assert_allclose(layer["shares"][3], top[:3].sum() / top.sum())
    words = [word for text in TEXTS for word in text]
    by_word = [
        (1 - pdist(vectors[[w == word for w in words]], "cosine")).mean()
        for word in ("bank", "river", "the")
    ]
    np.testing.assert_allclose(layer["self_similarity"], np.mean(by_word) - cosines.mean())
    intra = [
        np.mean(
            [1 - pdist([vector, text[:, place].mean(0)], "cosine")[0] for vector in text[:, place]]
        )
        for text in VECTORS
        if len(text)
    ]
    np.testing.assert_allclose(layer["intra_sentence"], np.mean(intra) - cosines.mean())


LINES = [
    "the train from paris to berlin was late and nobody knew why",
    "anna saw a big red dog in the garden of the old house",
    "the man is playing the guitar while a woman is singing a song",
    "two children run across the street because it rains",
    "the bank of england raised its rates on monday",
    "does the second sentence follow from the first",
] * 4


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("geometry") / "text.txt"
    path.write_text("\n".join(LINES))
    return path


def embedder(folder: Path, **options: int) -> Embedder:
    return Embedder(folder, unit="word", layers="all", combine="none", **options)


def test_figures_of_the_sample() -> None:
    found = measure_geometry(embedder(lab.checkpoint()), LINES, seed=1)
    again = measure_geometry(embedder(lab.checkpoint(), max_tokens=40), iter(LINES), seed=1)
    assert found["num_texts"] == 12 and [row["layer"] for row in found["raw"]] == list(
        range(LAYERS + 1)
    )
    for one, other in zip(found["raw"], again["raw"], strict=True):
        np.testing.assert_allclose(one["expected_cosine"], other["expected_cosine"], atol=1e-5)
    fitted, measured = LINES[::2], LINES[1::2]
    vectors = [each.vectors for each in embedder(lab.checkpoint()).encode(fitted)]
    standardizer = Standardizer.fit(vectors)
    assert found["num_fitted"] == sum(map(len, vectors))
    z = [standardizer(each.vectors)[:, -1] for each in embedder(lab.checkpoint()).encode(measured)]
    units = np.concatenate(z)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    cosines = units @ units.T
    expected = (cosines.sum() - len(units)) / (len(units) * (len(units) - 1))
    np.testing.assert_allclose(found["standardized"][-1]["expected_cosine"], expected, atol=1e-5)
    assert found["raw"][-1]["self_similarity"] is not None
    assert len(found["attention"]["mixing"]) == LAYERS


def test_sentences_to_show() -> None:
    made = embedder(lab.checkpoint())
    found = measure_geometry(made, LINES, sentences=["the man saw a dog"])
    (shown,) = found["attention"]["sentences"]
    assert shown["tokens"][:2] == ["[CLS]", "the"] and len(shown["norms"]) == LAYERS
    assert np.shape(shown["weights"]) == (LAYERS, len(shown["tokens"]), len(shown["tokens"]))
    np.testing.assert_allclose(np.sum(shown["weights"], axis=-1), 1, atol=1e-3)
    with pytest.raises(UserError, match="too many to show"):
        measure_geometry(made, LINES, sentences=["dog " * 70])


def test_families_without_analysis_of_attention() -> None:
    made = embedder(lab.checkpoint("squeezebert"))
    attention = measure_geometry(made, LINES)["attention"]
    assert attention["reason"].startswith("squeezebert models") and not attention["mixing"]
    with pytest.raises(UserError, match="--sentence: no analysis of attention: squeezebert models"):
        measure_geometry(made, LINES, sentences=["anna"])


def test_command(texts: Path, tmp_path: Path) -> None:
    page, figures = tmp_path / "g.html", tmp_path / "g.json"
    files = ("--out", page, "--out", figures, "--sentence", "<b>anna</b> saw a dog")
    outcome = run("geometry", lab.checkpoint(), "--data", texts, *files).ok()
    lines = outcome.out.splitlines()
    assert "12 texts" in lines[0] and len(lines) == LAYERS + 4
    html = page.read_text()
    assert "&lt;b&gt;anna" in html and "<b>anna" not in html and "Mixing ratio" in html
    found = json.loads(figures.read_text())
    assert f"{found['raw'][0]['expected_cosine']:.4f}" in outcome.out
    printed = run("geometry", lab.checkpoint("squeezebert"), "--data", texts, "--format", "json")
    assert json.loads(printed.out)["attention"]["reason"] and printed.code == 0
    page = tmp_path / "squeezebert.html"
    run("geometry", lab.checkpoint("squeezebert"), "--data", texts, "--out", page).ok()
    assert "There is no analysis of attention: squeezebert" in page.read_text()
    with pytest.raises(UserError, match="two or more lines of text, not 1"):
        measure_geometry(embedder(lab.checkpoint()), ["one line"])
