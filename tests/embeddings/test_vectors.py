"""Vectors: cosines, standardization by the textbook's equations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.preprocessing import StandardScaler

from finetune import Standardizer, UserError
from finetune.embeddings.vectors import cosine

RANDOM = np.random.default_rng(0)
VECTORS = (RANDOM.normal(size=(200, 5)) * [1, 1e-3, 50, 1, 2] + [0, 1e3, -7, 0, 1]).astype("f4")


def test_equal_to_scikit_learn_in_any_grouping() -> None:
    expected = StandardScaler().fit(VECTORS.astype("f8"))
    for sizes in ([200], [1] * 200, [3, 0, 150, 47]):
        groups = np.split(VECTORS, np.cumsum(sizes)[:-1])
        found = Standardizer.fit(groups)
        np.testing.assert_allclose(found.mean, expected.mean_, rtol=1e-12)
        np.testing.assert_allclose(found.deviation, expected.scale_, rtol=1e-9)
        assert found.count == 200
    np.testing.assert_allclose(found(VECTORS), expected.transform(VECTORS.astype("f8")), atol=1e-6)


def test_several_layers_and_single_vectors() -> None:
    layers = VECTORS.reshape(20, 10, 5)
    found = Standardizer.fit([layers])
    z = found(layers)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(found(layers[3]), z[3])
    with pytest.raises(UserError, match=r"fitted to vectors \[10, 5\], not \[200, 5\]"):
        found(VECTORS)


def test_constant_dimensions_become_zero() -> None:
    vectors = np.column_stack([VECTORS[:, 0], np.full(200, 0.1, "f4"), np.zeros(200, "f4")])
    found = Standardizer.fit([vectors[:90], vectors[90:]])
    assert found.num_constant == 2
    assert np.isfinite(found(vectors)).all() and not found([[1.0, 9.0, 9.0]])[0, 1:].any()


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "z.safetensors"
    found = Standardizer.fit([VECTORS], {"layers": [3], "unit": "word"})
    found.save(path)
    loaded = Standardizer.load(path)
    np.testing.assert_array_equal(loaded(VECTORS), found(VECTORS))
    assert (loaded.count, loaded.settings) == (200, found.settings)
    loaded.check({"layers": [3], "unit": "word"})
    with pytest.raises(UserError, match=r"fitted with layers \[3\], and this run has \[0\]"):
        loaded.check({"layers": [0]})
    (tmp_path / "text").write_text("no tensors")
    for path in (tmp_path / "text", tmp_path / "absent"):
        with pytest.raises(UserError, match="no standardizer"):
            Standardizer.load(path)
    for empty in ([], [VECTORS[:1]], [VECTORS[:0]]):
        with pytest.raises(UserError, match="two or more vectors"):
            Standardizer.fit(empty)


def test_cosine() -> None:
    first, second = RANDOM.normal(size=(2, 7, 3, 4))
    found = cosine(first, second)
    expected = 1 - np.array(
        [
            [cdist([a], [b], "cosine")[0, 0] for a, b in zip(x, y, strict=True)]
            for x, y in zip(first, second, strict=True)
        ]
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert cosine([0.0, 0.0], [1.0, 0.0]) == 0
