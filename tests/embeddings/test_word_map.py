"""Word maps: layers, neighbors and scores against scikit-learn, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import silhouette_score
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from finetune.embeddings.vectors import unit_vectors
from finetune.embeddings.word_map import (
    labeled_rows,
    majority_sense,
    nearest_neighbor_purity,
    project_layers,
)
from tests import fixtures as fx
from tests.command import run
from tests.tiny import LAYERS

RANDOM = np.random.default_rng(0)


def clusters(layers: int = 3, size: int = 12, width: int = 20) -> np.ndarray:
    """Vectors of three groups that every layer separates a little differently."""
    centers = np.repeat(RANDOM.normal(size=(3, width)), size, axis=0)
    return unit_vectors(centers + 0.2 * RANDOM.normal(size=(layers, 3 * size, width)))


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_layers_of_groups(method: Any):
    vectors = clusters(2)
    points = project_layers(vectors, method=method)
    assert points.shape == (2, 36, 2)
    np.testing.assert_array_equal(points, project_layers(vectors, method=method))
    if method == "tsne":
        labels = np.repeat([0, 1, 2], 12)
        assert all(silhouette_score(layer, labels) > 0.5 for layer in points)
    for count in (3, 7):
        points = project_layers(clusters()[:, :count], method=method)
        assert points.shape == (3, count, 2) and np.isfinite(points).all()


@pytest.mark.filterwarnings("error")
def test_equal_vectors_are_one_point():
    """In layer 0 of an encoder without positions, a word is the same everywhere."""
    vectors = clusters(3)
    vectors[1] = vectors[1, 0]
    points = project_layers(vectors)
    assert np.isfinite(points).all() and not np.ptp(points[1], axis=0).any()
    assert np.ptp(points[0], axis=0).all() and np.ptp(points[2], axis=0).all()


def test_purity_equals_scikit_learn():
    vectors = clusters(1)[0]
    labels = [str(number % 5) for number in range(36)]
    nearest = KNeighborsClassifier(1, metric="cosine", algorithm="brute")
    right = cross_val_score(nearest, vectors, labels, cv=LeaveOneOut()).mean()
    assert nearest_neighbor_purity(vectors, ["die"] * 36, labels) == pytest.approx(right)


def test_scores_are_within_words():
    """A neighbor of another word does not count, nor do labels that occur once."""
    vectors = unit_vectors(np.array([[1, 0.0], [1, 0.1], [0, 1], [0.1, 1], [1, 0.01], [0.9, 0.1]]))
    words = ["die"] * 4 + ["bank"] * 2
    labels = ["a", "a", "b", "b", "c", "d"]
    assert nearest_neighbor_purity(vectors, words, labels) == 1.0
    assert labeled_rows(words, labels) == [0, 1, 2, 3] and majority_sense(words, labels) == 0.5
    assert nearest_neighbor_purity(vectors, words, [None] * 6) is None
    equal = np.ones((8, 3)) / np.sqrt(3)  # the order of the data does not decide
    labels = ["a"] * 4 + ["b"] * 4
    assert nearest_neighbor_purity(equal, ["die"] * 8, labels) == pytest.approx(3 / 7)


DATA = "examples/data/words/senses.jsonl"


def test_command(tmp_path: Path):
    options = ("--word", "die,bank", "--most", "12", "--out", tmp_path / "a.json")
    outcome = run("map", fx.checkpoint(), "--file", DATA, *options).ok()
    assert "die: 30 occurrences in 50 texts, 12 drawn at random (--most)" in outcome.err
    assert outcome.out.split("\n")[0].split("  ")[0] == "layer" and "1-NN purity" in outcome.out
    assert "always the main label of the word: 1-NN purity 0." in outcome.out
    content = json.loads((tmp_path / "a.json").read_text("utf-8"))
    occurrences = content["occurrences"]
    assert content["layers"] == list(range(LAYERS + 1))
    assert {occurrence["word"] for occurrence in occurrences[:12]} == {"die"}
    points = np.array([occurrence["points"] for occurrence in occurrences])
    assert points.shape == (24, LAYERS + 1, 2)


def test_words_without_labels(tmp_path: Path):
    file, output = tmp_path / "texts.txt", tmp_path / "b.HTML"
    file.write_text("a die\nto die </script><b>here</b>\n\nthe die is cast\nno\n")
    arguments = ("--word", "die", "--method", "pca", "--out", output)
    outcome = run("map", fx.checkpoint(), "--file", file, *arguments).ok()
    assert "purity" not in outcome.out
    html = output.read_text("utf-8")
    assert "</script><b>here" not in html and "&lt;b&gt;here" in html
    assert html.count('<circle class="point') == 3 * (LAYERS + 1)
