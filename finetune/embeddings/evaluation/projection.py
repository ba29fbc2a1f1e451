"""Maps of vectors in the plane, aligned by layer, and measures of how labels separate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from finetune.types import UserError

Method = Literal["tsne", "pca"]
Array = np.ndarray[Any, np.dtype[Any]]

NUM_COMPONENTS = 50
"""Principal components that t-SNE reads."""
PERPLEXITY = 30.0
"""Perplexity of t-SNE for 300 points or more; a tenth of fewer points, and at least 5."""
NUM_NEIGHBORS = 5
"""Neighbors that the trustworthiness of a map is measured with."""
_TIE = 1e-6


@dataclass(frozen=True)
class LayerScores:
    """Scores of one layer: the separation of the labels of the same word.

    Cosines are between vectors, not between points of the map. Scores of labels are None unless a
    word has two labels with two occurrences each; labels that occur once do not count.
    """

    layer: int
    purity: float | None
    """Fraction of occurrences whose nearest neighbor (by cosine, among the other occurrences of the
    word) has the same label; of several equally near ones, the fraction with that label."""
    silhouette: float | None
    """Mean silhouette by cosine distance (Rousseeuw 1987), from -1 to 1."""
    self_similarity: float
    """Mean cosine of two occurrences of a word (Ethayarajh 2019)."""
    trustworthiness: float | None
    """Agreement of the 5 nearest neighbors on the map with the nearest vectors, from 0 to 1 (Venna
    & Kaski 2001); None for fewer than 12 points."""


def project_layers(
    vectors: Array,
    *,
    method: Method = "tsne",
    seed: int = 1,
    done: Callable[[int], None] = lambda number: None,
) -> Array:
    """Return points in the plane for the vectors of each layer.

    The layers are computed from the last to the first. Each starts from the points of the layer
    above, and is then rotated, reflected, scaled and moved onto them (Procrustes), so that a point
    moves only as far as its neighborhood changes.

    Args:
        vectors: Vectors of length 1 [layers, points, H], so that distances rank like cosines.
        method: t-SNE (van der Maaten & Hinton 2008) of the first 50 principal components, or the
            first two of these (``pca``).
        seed: Seed of t-SNE.
        done: Called with the number of finished layers.

    Returns:
        Points [layers, points, 2]. Equal vectors have equal points.

    Raises:
        UserError: There are fewer than 3 points.
    """
    if vectors.shape[1] < 3:
        raise UserError(f"a map needs 3 points or more, not {vectors.shape[1]}: give more texts.")
    points: list[Array] = []
    for number, layer in enumerate(vectors[::-1]):
        above = points[-1] if points else None
        found = _project(layer, method, seed, above)
        points.append(_principal_axes(found) if above is None else procrustes(found, above))
        done(number + 1)
    return np.stack(points[::-1])


def _principal_axes(points: Array) -> Array:
    """Center points [n, 2] and turn them so that their longer axis is horizontal."""
    moved = points - points.mean(0)
    axes = np.linalg.svd(moved, full_matrices=False)[2]
    turned: Array = moved @ (axes * np.where(axes.sum(1, keepdims=True) < 0, -1, 1)).T
    return turned


def _project(vectors: Array, method: Method, seed: int, above: Array | None) -> Array:
    """Return the points of one layer [points, 2]."""
    from sklearn.decomposition import PCA

    num_points, width = vectors.shape
    if np.ptp(vectors, axis=0).max() < _TIE:  # without position, a word is the same everywhere
        return np.zeros((num_points, 2))
    size = min(NUM_COMPONENTS, num_points, width)
    components = PCA(size, svd_solver="full").fit_transform(vectors - vectors.mean(0))
    if method == "pca":
        first_two: Array = components[:, :2]
        return first_two
    start = components[:, :2] if above is None or not above.any() else above
    from sklearn.manifold import TSNE

    tsne = TSNE(
        perplexity=min(PERPLEXITY, max(5.0, num_points / 10), (num_points - 1) / 3),
        init=(start / np.std(start[:, 0]) * 1e-4).astype(np.float32),
        random_state=seed,
    )
    found: Array = tsne.fit_transform(components.astype(np.float32))
    return found.astype(np.float64)


def procrustes(points: Array, target: Array) -> Array:
    """Rotate, reflect, scale and move points [n, 2] to minimize the squared distances to others.

    Schönemann & Carroll (1970).
    """
    center = points.mean(0)
    moved, goal = points - center, target - target.mean(0)
    size = float((moved**2).sum())
    if size and goal.any():
        left, values, right = np.linalg.svd(moved.T @ goal)
        moved = values.sum() / size * moved @ (left @ right)
    aligned: Array = moved + target.mean(0)
    return aligned


def nearest_neighbors(vectors: Array, count: int) -> tuple[Array, Array]:
    """Return the nearest other vectors by cosine: indices and cosines [points, count], best first.

    Args:
        vectors: Vectors of length 1 [points, H].
        count: Number of neighbors, at most points - 1.
    """
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return order, np.take_along_axis(cosines, order, axis=1)


def layer_scores(
    layer: int, vectors: Array, points: Array, words: Sequence[str], labels: Sequence[str | None]
) -> LayerScores:
    """Measure how the vectors of a layer separate labels, and how true its map is.

    Args:
        layer: The number of the layer.
        vectors: Vectors of length 1 [points, H].
        points: Their map [points, 2].
        words: The word of each.
        labels: Its label or None.
    """
    from sklearn.manifold import trustworthiness
    from sklearn.metrics import silhouette_samples

    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    pure: list[float] = []
    silhouettes: list[Array] = []
    similarities: list[Array] = []
    for word in dict.fromkeys(words):
        rows = np.array([number for number, each in enumerate(words) if each == word])
        inner = cosines[np.ix_(rows, rows)]
        similarities.append(inner[np.triu_indices(len(rows), 1)])
        rows = np.array(labeled_rows(words, labels, word), dtype=int)
        if not len(rows):
            continue
        inner, gold = cosines[np.ix_(rows, rows)], np.array([labels[row] for row in rows])
        for near, label in zip(inner, gold, strict=True):
            pure.append(float(np.mean(gold[near >= near.max() - _TIE] == label)))
        distances = np.clip(1 - inner, 0, 2)
        np.fill_diagonal(distances, 0)
        silhouettes.append(silhouette_samples(distances, gold, metric="precomputed"))
    pairs = np.concatenate(similarities)
    return LayerScores(
        layer,
        float(np.mean(pure)) if pure else None,
        float(np.mean(np.concatenate(silhouettes))) if silhouettes else None,
        float(pairs.mean()) if len(pairs) else 1.0,
        float(trustworthiness(vectors, points, n_neighbors=NUM_NEIGHBORS))
        if len(vectors) > 2 * NUM_NEIGHBORS + 1
        else None,
    )


def labeled_rows(words: Sequence[str], labels: Sequence[str | None], word: str) -> list[int]:
    """Return the occurrences of a word with labels to score.

    Each label occurs at least twice. Without two different labels the list is empty.
    """
    counts = Counter(labels[n] for n, each in enumerate(words) if each == word)
    legal = {label for label, count in counts.items() if label is not None and count > 1}
    if len(legal) < 2:
        return []
    return [n for n, each in enumerate(words) if each == word and labels[n] in legal]


def majority(words: Sequence[str], labels: Sequence[str | None]) -> tuple[int, float]:
    """Return the number of scored occurrences, and the fraction with their word's main label."""
    main = total = 0
    for word in dict.fromkeys(words):
        counts = Counter(labels[row] for row in labeled_rows(words, labels, word))
        main += max(counts.values(), default=0)
        total += counts.total()
    return total, main / total if total else 0.0
