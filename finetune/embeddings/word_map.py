"""`finetune map`: the vectors of each occurrence of a word in the plane, layer by layer.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", fig. 11.7.
Maps of layers are aligned, and measures say how labels separate.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from finetune.cli.output import print_table, show
from finetune.embeddings.commands import open_embedder, write_pages
from finetune.embeddings.occurrences import Occurrence
from finetune.embeddings.vectors import Array, unit_vectors
from finetune.inference.embed import Embedder
from finetune.reporting.charts import NUM_COLORS, chart
from finetune.reporting.rendering import Section, Table, page_of
from finetune.runtime.progress import Reporter
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.embeddings.commands import Map

Method = Literal["tsne", "pca"]
NUM_COMPONENTS = 50
"""Principal components that t-SNE reads."""
PERPLEXITY = 30.0
"""Perplexity of t-SNE for 300 points or more; a tenth of fewer points, and at least 5."""
NUM_NEIGHBORS = 5
"""Neighbors that the trustworthiness of a map is measured with."""
CHUNK = 32
"""Contexts embedded at a time: the vectors of all their words in all layers are in memory."""
_TIE = 1e-6


@dataclass(frozen=True)
class LayerScores:
    """Scores of one layer of a map.

    Attributes:
        layer: The number of the layer.
        purity: Fraction of occurrences whose nearest neighbor (by cosine of the vectors, among the
            other occurrences of the word) has the same label; of several equally near ones, the
            fraction with that label. None unless a word has two labels that occur twice.
        trustworthiness: Agreement of the 5 nearest neighbors on the map with the nearest vectors,
            from 0 to 1 (Venna & Kaski 2001); None for fewer than 12 points.
    """

    layer: int
    purity: float | None
    trustworthiness: float | None


@dataclass(frozen=True, eq=False)
class WordMap:
    """Occurrences of words as points [L', occurrences, 2] in the plane, for each of L' layers."""

    occurrences: Sequence[Occurrence]
    points: Array
    scores: Sequence[LayerScores]
    majority: float | None
    """Purity of always naming the main label of the word; None if purity is."""


def make_word_map(
    embedder: Embedder,
    occurrences: Sequence[Occurrence],
    *,
    method: Method = "tsne",
    seed: int = 1,
    reporter: Reporter | None = None,
) -> WordMap:
    """Compute the map of occurrences of one word or several.

    Args:
        embedder: An encoder with ``unit="word"`` and ``combine="none"``.
        occurrences: At least 3.
        method: See ``project_layers``.
        seed: Seed of the projection.
        reporter: Shows the progress.

    Examples:
        >>> embedder = Embedder("minilm", unit="word", layers="all", combine="none")
        ... # doctest: +SKIP
    """
    rows: list[Array] = []
    with reporter or Reporter(quiet=True) as progress:
        progress.start("embedding", len(occurrences), unit="text")
        for start in range(0, len(occurrences), CHUNK):
            chunk = occurrences[start : start + CHUNK]
            embeddings = embedder.encode(use.words for use in chunk)
            for use, embedding in zip(chunk, embeddings, strict=True):
                rows.append(embedding.vectors[use.start : use.end].mean(0))
            progress.update(len(rows))
        progress.stop()
        vectors = unit_vectors(np.stack(rows, axis=1))  # [L', occurrences, H]
        progress.start("projecting", len(vectors), unit="layer")
        points = project_layers(vectors, method=method, seed=seed, done=progress.update)
    words, labels = [use.word for use in occurrences], [use.label for use in occurrences]
    scores = [
        layer_scores(*layer, words, labels)
        for layer in zip(embedder.layers, vectors, points, strict=True)
    ]
    return WordMap(occurrences, points, scores, majority(words, labels))


def project_layers(
    vectors: Array,
    *,
    method: Method = "tsne",
    seed: int = 1,
    done: Callable[[int], None] = lambda number: None,
) -> Array:
    """Project the vectors of each layer to the plane.

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
    for number, layer in enumerate(vectors[::-1], 1):
        above = points[-1] if points else None
        projected = _project(layer, method, seed, above)
        points.append(projected if above is None else procrustes(projected, above))
        done(number)
    return np.stack(points[::-1])


def _project(vectors: Array, method: Method, seed: int, above: Array | None) -> Array:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    num_points, width = vectors.shape
    if np.ptp(vectors, axis=0).max() < _TIE:  # without position, a word is the same everywhere
        return np.zeros((num_points, 2))
    size = min(NUM_COMPONENTS, num_points, width)
    components = PCA(size, svd_solver="full").fit_transform(vectors - vectors.mean(0))
    if method == "pca":
        return np.asarray(components[:, :2])
    start = components[:, :2]
    if above is not None and np.ptp(above, axis=0).max() > _TIE:
        start = above
    tsne = TSNE(
        perplexity=min(PERPLEXITY, max(5.0, num_points / 10), (num_points - 1) / 3),
        init=(start / start.std(axis=0).max() * 1e-4).astype(np.float32),
        random_state=seed,
    )
    return np.asarray(tsne.fit_transform(components.astype(np.float32)), dtype=np.float64)


def procrustes(points: Array, target: Array) -> Array:
    """Rotate, reflect, scale and move points [n, 2] to minimize the squared distances to others.

    Schönemann & Carroll (1970).
    """
    from scipy.linalg import orthogonal_procrustes

    moved, goal = points - points.mean(0), target - target.mean(0)
    size = float((moved**2).sum())
    if size and goal.any():
        rotation, scale = orthogonal_procrustes(moved, goal)
        moved = scale / size * moved @ rotation
    return np.asarray(moved + target.mean(0))


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

    purity = trusted = None
    if rows := labeled_rows(words, labels):
        word, label = (np.array([str(names[row]) for row in rows]) for names in (words, labels))
        same_word = (word[:, None] == word) & ~np.eye(len(rows), dtype=bool)
        cosines = np.where(same_word, vectors[rows] @ vectors[rows].T, -np.inf)
        nearest = cosines >= cosines.max(axis=1, keepdims=True) - _TIE
        right = nearest & (label[:, None] == label)
        purity = float((right.sum(axis=1) / nearest.sum(axis=1)).mean())
    if len(vectors) > 2 * NUM_NEIGHBORS + 1:
        trusted = float(trustworthiness(vectors, points, n_neighbors=NUM_NEIGHBORS))
    return LayerScores(layer, purity, trusted)


def labeled_rows(words: Sequence[str], labels: Sequence[str | None]) -> list[int]:
    """Select the occurrences with labels to score.

    Each label occurs at least twice with its word, and the word has another such label.
    """
    counts = Counter(zip(words, labels, strict=True))
    legal = {key for key, count in counts.items() if key[1] is not None and count > 1}
    num_labels = Counter(word for word, _ in legal)
    pairs = enumerate(zip(words, labels, strict=True))
    return [number for number, key in pairs if key in legal and num_labels[key[0]] > 1]


def majority(words: Sequence[str], labels: Sequence[str | None]) -> float | None:
    """Compute the fraction of scored occurrences with the main label of their word."""
    rows = labeled_rows(words, labels)
    main: Counter[str] = Counter()
    for (word, _), count in Counter((words[row], labels[row]) for row in rows).items():
        main[word] = max(main[word], count)
    return main.total() / len(rows) if rows else None


def page(word_map: WordMap, model: str, method: Method, seed: int) -> str:
    """Write the page of an embedding plot as HTML."""
    occurrences = word_map.occurrences
    notes = ["Trustworthiness says how well the map keeps the 5 nearest neighbors (1 is best)."]
    if word_map.majority is not None:
        notes.append(
            "1-NN purity is the fraction of occurrences whose nearest vector, among the other "
            "occurrences of the word, has the same label. Always naming the main label of the word "
            f"would reach {word_map.majority:.4f}."
        )
    if method == "tsne":
        notes.append("t-SNE keeps neighborhoods only: sizes and distances of groups mean nothing.")
    words = list(dict.fromkeys(use.word for use in occurrences))
    names = [use.label or "no label" for use in occurrences]
    if len(words) > 1:
        names = [f"{use.word} · {name}" for use, name in zip(occurrences, names, strict=True)]
    frequent = [name for name, _ in Counter(names).most_common()]
    if len(frequent) > NUM_COLORS:
        frequent = [*frequent[: NUM_COLORS - 1], "other labels"]
    charts = []
    for scores, points in zip(word_map.scores, word_map.points.tolist(), strict=True):
        groups: dict[str, list[tuple[float, float, str]]] = {name: [] for name in frequent}
        for use, name, (x, y) in zip(occurrences, names, points, strict=True):
            groups.get(name, groups[frequent[-1]]).append((x, y, f"{name}: {use.shown}"))
        charts.append(chart(f"Layer {scores.layer}", dots=list(groups.items())))
    texts = [[use.id, use.label or "", use.shown] for use in occurrences]
    return page_of(
        "word map",
        ", ".join(words),
        [
            Section("Map", notes, charts, [Table("Scores", *_table(word_map))]),
            Section("Occurrences", tables=[Table("Texts", ["id", "label", "text"], texts)]),
        ],
        about=f"{len(occurrences):,} occurrences, encoded by {model}, projected by {method} with "
        f"seed {seed}. Each point is one occurrence; near points have similar vectors.",
        command="finetune map",
    )


def _table(word_map: WordMap) -> tuple[list[str], list[list[Any]]]:
    titles = {"layer": "layer", "purity": "1-NN purity", "trustworthiness": "trustworthiness"}
    scores = [asdict(layer) for layer in word_map.scores]
    known = [name for name in titles if scores[0][name] is not None]
    return [titles[name] for name in known], [[row[name] for name in known] for row in scores]


def draw_map(command: Map, occurrences: Sequence[Occurrence]) -> None:
    """Write the map of the command and print the scores of its layers."""
    embedder = open_embedder(command, command.layers, unit="word", combine="none")
    settings: dict[str, Any] = {"method": command.method, "seed": command.seed}
    word_map = make_word_map(embedder, occurrences, **settings, reporter=Reporter())
    figures = {
        "model": command.model,
        **settings,
        "layers": list(embedder.layers),
        "scores": [asdict(score) for score in word_map.scores],
        "occurrences": [
            {
                "id": use.id,
                "word": use.word,
                "label": use.label,
                "text": use.shown,
                "points": word_map.points[:, number].round(4).tolist(),
            }
            for number, use in enumerate(occurrences)
        ],
    }
    text = json.dumps(figures, ensure_ascii=False)
    write_pages(command.out, lambda: page(word_map, command.model, **settings), text)
    print_table(*_table(word_map))
    if word_map.majority is not None:
        show(f"(always the main label of the word: 1-NN purity {word_map.majority:.4f})")
