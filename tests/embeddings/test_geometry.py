"""Geometry: expected cosines, rogue dimensions, self-similarity."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from finetune.embeddings.geometry import GeometryMeasure

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
    layer = measure.result()[place]
    vectors = np.concatenate(VECTORS)[:, place]
    cosines = 1 - pdist(vectors, "cosine")
    assert layer.layer == (0, 3)[place] and measure.num_words == 9
    np.testing.assert_allclose(layer.expected_cosine, cosines.mean())
    np.testing.assert_allclose(layer.norm, np.linalg.norm(vectors, axis=1).mean())
    assert layer.dimensions[0][0] == 2 and layer.shares is not None
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    contributions = np.array(
        [
            np.mean([units[i, d] * units[j, d] for i in range(9) for j in range(9) if i != j])
            for d in range(6)
        ]
    )
    np.testing.assert_allclose(layer.dimensions[0][1], contributions.max())
    top = np.sort(contributions)[::-1]
    np.testing.assert_allclose(layer.shares[3], top[:3].sum() / top.sum())
    words = [word for text in TEXTS for word in text]
    by_word = [
        (1 - pdist(vectors[[w == word for w in words]], "cosine")).mean()
        for word in ("bank", "river", "the")
    ]
    np.testing.assert_allclose(layer.self_similarity, np.mean(by_word))
    np.testing.assert_allclose(
        layer.adjusted_self_similarity, np.mean(by_word) - layer.expected_cosine
    )
    intra = [
        np.mean(
            [1 - pdist([vector, text[:, place].mean(0)], "cosine")[0] for vector in text[:, place]]
        )
        for text in VECTORS
        if len(text)
    ]
    np.testing.assert_allclose(layer.intra_sentence, np.mean(intra))


def test_words(measure: GeometryMeasure) -> None:
    assert list(measure.self_similarity()) == ["bank", "river", "the"]
    assert measure.uses() == {"the": 3, "bank": 2, "river": 2, "a": 1}
