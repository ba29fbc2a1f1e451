"""Similarity: cosines, correlations by subset, the expected cosine."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import pearsonr, spearmanr

from finetune.embeddings.similarity import correlations, scores_by_subset
from finetune.embeddings.vectors import ExpectedCosine, cosine

RANDOM = np.random.default_rng(1)
GOLD = RANDOM.integers(0, 6, 60).astype(float)
PREDICTED = GOLD + RANDOM.normal(size=60) * 2
SUBSETS = ["a"] * 20 + ["b"] * 30 + ["c"] * 10


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


def test_expected_cosine_is_the_mean_over_all_pairs() -> None:
    vectors = RANDOM.normal(size=(40, 6))
    vectors[:, 0] += 3
    found = ExpectedCosine()
    for group in np.split(vectors, [1, 1, 25]):
        found.add(group)
    cosines = 1 - cdist(vectors, vectors, "cosine")
    expected = cosines[~np.eye(40, dtype=bool)].mean()
    np.testing.assert_allclose(found.value, expected, atol=1e-12)
    np.testing.assert_allclose(found.contributions.sum(), expected, atol=1e-12)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    first = [u[0] * v[0] for i, u in enumerate(units) for j, v in enumerate(units) if i != j]
    np.testing.assert_allclose(found.contributions[0], np.mean(first), atol=1e-12)


def test_correlations_of_all_pairs_and_of_subsets() -> None:
    scores = correlations(GOLD.tolist(), PREDICTED.tolist(), SUBSETS, num_resamples=400)
    members = [np.array(SUBSETS) == name for name in "abc"]
    for name, oracle in (("spearman", spearmanr), ("pearson", pearsonr)):
        np.testing.assert_allclose(scores[f"{name}_all"].value, oracle(GOLD, PREDICTED)[0])
        by_subset = [oracle(GOLD[m], PREDICTED[m])[0] for m in members]
        np.testing.assert_allclose(scores[f"{name}_mean"].value, np.mean(by_subset))
        for kind in ("all", "mean"):
            value, low, high = scores[f"{name}_{kind}"]
            assert low < value < high
    assert set(correlations(GOLD.tolist(), PREDICTED.tolist())) == {"spearman", "pearson"}
    rows = scores_by_subset(GOLD.tolist(), PREDICTED.tolist(), SUBSETS)
    assert [row[:2] for row in rows] == [("a", 20), ("b", 30), ("c", 10)]
    np.testing.assert_allclose(rows[1][2], spearmanr(GOLD[members[1]], PREDICTED[members[1]])[0])


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_the_interval_of_a_mean_equals_direct_resampling() -> None:
    found = correlations(GOLD.tolist(), PREDICTED.tolist(), SUBSETS, num_resamples=1000)
    random, names = np.random.default_rng(5), np.array(SUBSETS)
    means = []
    for _ in range(700):
        drawn = random.integers(0, 60, 60)
        means.append(
            np.mean(
                [
                    spearmanr(GOLD[drawn][names[drawn] == n], PREDICTED[drawn][names[drawn] == n])[
                        0
                    ]
                    for n in "abc"
                ]
            )
        )
    expected = np.nanquantile(means, [0.025, 0.975])
    np.testing.assert_allclose(found["spearman_mean"][1:], expected, atol=0.05)
