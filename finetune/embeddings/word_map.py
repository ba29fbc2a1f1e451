"""`finetune map`: the vectors of each occurrence of a word in the plane, layer by layer.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", fig. 11.7.
Maps of layers are aligned, and measures say how labels separate. ``templates/word_map.html`` sets
the markup of the page, one file that needs no network.
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
from finetune.reporting.charts import NUM_COLORS, Chart, chart
from finetune.reporting.rendering import Table, inlined, render
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
_TIE = 1e-6
CHUNK = 32
"""Contexts embedded at a time: the vectors of all their words in all layers are in memory."""
NUM_SHOWN = 8
"""Nearest neighbors that a map holds for each occurrence."""
PACKAGE = "finetune.embeddings"
"""The package whose templates make the page."""
WIDTH, MARGIN = 640, 24
"""Width of the map in SVG units, and the empty border in it."""
LEAST_HEIGHT, MOST_HEIGHT = 320, 640
SHAPES = (
    "M-6,0a6,6 0 1,0 12,0a6,6 0 1,0 -12,0Z",  # circle
    "M-5.3,-5.3H5.3V5.3H-5.3Z",  # square
    "M0,-7L6.5,5H-6.5Z",  # triangle
    "M0,-7.5L7.5,0L0,7.5L-7.5,0Z",  # diamond
    "M-2.3,-7H2.3V-2.3H7V2.3H2.3V7H-2.3V2.3H-7V-2.3H-2.3Z",  # cross
)
"""Paths of the points. With the colors of the style sheet they make 30 distinct marks."""
MOST_GROUPS = NUM_COLORS * len(SHAPES)
METHODS = {"tsne": "t-SNE", "pca": "PCA"}
SCORES = {
    "purity": "1-NN purity",
    "silhouette": "silhouette",
    "self_similarity": "mean cosine",
    "trustworthiness": "trustworthiness",
}
"""The scores of a layer by field, with their names."""
LABELED = ("purity", "silhouette")
"""The scores of labels."""


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
    moved = points - points.mean(0)
    axes = np.linalg.svd(moved, full_matrices=False)[2]
    return np.asarray(moved @ (axes * np.where(axes.sum(1, keepdims=True) < 0, -1, 1)).T)


def _project(vectors: Array, method: Method, seed: int, above: Array | None) -> Array:
    from sklearn.decomposition import PCA

    num_points, width = vectors.shape
    if np.ptp(vectors, axis=0).max() < _TIE:  # without position, a word is the same everywhere
        return np.zeros((num_points, 2))
    size = min(NUM_COMPONENTS, num_points, width)
    components = PCA(size, svd_solver="full").fit_transform(vectors - vectors.mean(0))
    if method == "pca":
        return np.asarray(components[:, :2])
    start = components[:, :2] if above is None or not above.any() else above
    from sklearn.manifold import TSNE

    tsne = TSNE(
        perplexity=min(PERPLEXITY, max(5.0, num_points / 10), (num_points - 1) / 3),
        init=(start / np.std(start[:, 0]) * 1e-4).astype(np.float32),
        random_state=seed,
    )
    return np.asarray(tsne.fit_transform(components.astype(np.float32)), dtype=np.float64)


def procrustes(points: Array, target: Array) -> Array:
    """Rotate, reflect, scale and move points [n, 2] to minimize the squared distances to others.

    Schönemann & Carroll (1970).
    """
    moved, goal = points - points.mean(0), target - target.mean(0)
    size = float((moved**2).sum())
    if size and goal.any():
        left, values, right = np.linalg.svd(moved.T @ goal)
        moved = values.sum() / size * moved @ (left @ right)
    return np.asarray(moved + target.mean(0))


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


@dataclass(frozen=True, eq=False)
class WordMap:
    """Occurrences of words as points in the plane, for each of L' layers.

    ``points`` are [L', occurrences, 2]; ``neighbors`` the indices of the nearest other occurrences
    by cosine, and ``cosines`` their cosines [L', occurrences, K]. The map is computed from unit
    vectors with ``method`` and ``seed``.
    """

    occurrences: Sequence[Occurrence]
    layers: Sequence[int]
    points: Array
    neighbors: Array
    cosines: Array
    scores: Sequence[LayerScores]
    method: Method
    seed: int


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
    with reporter or Reporter(quiet=True) as shown:
        shown.start("embedding", len(occurrences), unit="text")
        rows = []
        for start in range(0, len(occurrences), CHUNK):
            chunk = occurrences[start : start + CHUNK]
            embeddings = embedder.encode(occurrence.words for occurrence in chunk)
            for occurrence, found in zip(chunk, embeddings, strict=True):
                rows.append(found.vectors[occurrence.start : occurrence.end].mean(0))
            shown.update(len(rows))
        shown.stop()
        vectors = unit_vectors(np.stack(rows).transpose(1, 0, 2))  # [L', occurrences, H]
        shown.start("projecting", len(vectors), unit="layer")
        points = project_layers(vectors, method=method, seed=seed, done=shown.update)
    count = min(NUM_SHOWN, len(occurrences) - 1)
    neighbors, cosines = zip(*(nearest_neighbors(each, count) for each in vectors), strict=True)
    words, labels = [o.word for o in occurrences], [o.label for o in occurrences]
    scores = [
        layer_scores(layer, each, map_, words, labels)
        for layer, each, map_ in zip(embedder.layers, vectors, points, strict=True)
    ]
    return WordMap(
        occurrences,
        embedder.layers,
        points,
        np.stack(neighbors),
        np.stack(cosines),
        scores,
        method,
        seed,
    )


def figures(word_map: WordMap, model: str) -> dict[str, Any]:
    """Return a map as JSON values."""
    fields = ("id", "word", "label", "before", "form", "after")
    occurrences = [
        {
            **{name: getattr(each, name) for name in fields},
            "points": word_map.points[:, number].round(4).tolist(),
            "neighbors": word_map.neighbors[:, number].tolist(),
            "cosines": word_map.cosines[:, number].round(4).tolist(),
        }
        for number, each in enumerate(word_map.occurrences)
    ]
    return {
        "model": model,
        "method": word_map.method,
        "seed": word_map.seed,
        "layers": list(word_map.layers),
        "scores": [asdict(each) for each in word_map.scores],
        "occurrences": occurrences,
    }


@dataclass(frozen=True)
class Group:
    """The points of one word with one label, in one color and shape."""

    name: str
    count: int
    style: str
    path: str


def page(word_map: WordMap, model: str) -> str:
    """Return the page of a map as HTML."""
    occurrences = word_map.occurrences
    names, groups = _groups(occurrences)
    points, height = _scaled(word_map.points)
    return render(
        "word_map.html",
        PACKAGE,
        **inlined("word_map.js", "word_map.css", package=PACKAGE),
        model=model,
        words=list(dict.fromkeys(each.word for each in occurrences)),
        method=METHODS[word_map.method],
        seed=word_map.seed,
        size=(WIDTH, height),
        layers=word_map.layers,
        occurrences=[
            (each, groups[name], x, y)
            for each, name, (x, y) in zip(occurrences, names, points[-1], strict=True)
        ],
        groups=list(groups.values()),
        table=_table(word_map.scores),
        chart=_chart(word_map.scores),
        majority=majority([o.word for o in occurrences], [o.label for o in occurrences]),
        data={
            "layers": list(word_map.layers),
            "summaries": [_summary(each) for each in word_map.scores],
            "groups": [list(groups).index(name) for name in names],
            "points": points.reshape(len(points), -1).tolist(),
            "neighbors": word_map.neighbors.tolist(),
            "cosines": word_map.cosines.round(3).tolist(),
        },
    )


def _groups(occurrences: Sequence[Occurrence]) -> tuple[list[str], dict[str, Group]]:
    words = dict.fromkeys(each.word for each in occurrences)
    labeled = any(each.label is not None for each in occurrences)

    def name(each: Occurrence) -> str:
        label = "no label" if each.label is None else each.label
        if not labeled:
            return each.word
        return f"{each.word} · {label}" if len(words) > 1 else label

    names = [name(each) for each in occurrences]
    counts = Counter(names)
    if len(counts) > MOST_GROUPS:
        kept = {found for found, _ in counts.most_common(MOST_GROUPS - 1)}
        names = [found if found in kept else "other labels" for found in names]
        counts = Counter(names)
    order = sorted(counts, key=lambda found: (found == "other labels", -counts[found], found))
    groups = {
        found: Group(
            found, counts[found], f"series{number % NUM_COLORS + 1}", SHAPES[number // NUM_COLORS]
        )
        for number, found in enumerate(order)
    }
    return names, groups


def _scaled(points: Any) -> tuple[Any, int]:
    low, high = points.min((0, 1)), points.max((0, 1))
    room = np.array([WIDTH, MOST_HEIGHT]) - 2 * MARGIN
    extent = np.maximum(high - low, np.finfo(float).tiny)
    scale = float((room / extent).min())
    height = max(LEAST_HEIGHT, round(float(extent[1] * scale)) + 2 * MARGIN)
    centered = (points - (low + high) / 2) * scale + np.array([WIDTH, height]) / 2
    return np.round(centered, 1), height


def _summary(scores: LayerScores) -> str:
    values = {SCORES[key]: getattr(scores, key) for key in list(SCORES)[:3]}
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items() if value is not None)


def _table(scores: Sequence[LayerScores]) -> Table:
    keys = [key for key in SCORES if key not in LABELED or scores[0].purity is not None]
    rows = [[str(each.layer), *(getattr(each, key) for key in keys)] for each in scores]
    return Table("Scores by layer", ["layer", *(SCORES[key] for key in keys)], rows)


def _chart(scores: Sequence[LayerScores]) -> Chart | None:
    series = [
        (
            SCORES[key],
            [(each.layer, value) for each in scores if (value := getattr(each, key)) is not None],
        )
        for key in LABELED
    ]
    if len(scores) < 2 or not all(points for _, points in series):
        return None
    label = "; ".join(
        f"{name}: {', '.join(f'{value:.2f}' for _, value in points)}" for name, points in series
    )
    caption = "Separation of labels by layer"
    return chart(caption, "layer", label=f"{caption}. {label}", lines=series)


def draw_map(command: Map, occurrences: Sequence[Occurrence]) -> None:
    """Write the map of the command and print the scores of its layers."""
    embedder = open_embedder(command, command.layers, unit="word", combine="none")
    word_map = make_word_map(
        embedder, occurrences, method=command.method, seed=command.seed, reporter=Reporter()
    )
    numbers = json.dumps(figures(word_map, command.model), ensure_ascii=False)
    write_pages(command.out, lambda: page(word_map, command.model), numbers)
    known = [key for key in SCORES if getattr(word_map.scores[0], key) is not None]
    rows = [[each.layer, *(getattr(each, key) for key in known)] for each in word_map.scores]
    print_table(["layer", *(SCORES[key] for key in known)], rows)
    words, labels = zip(*((each.word, each.label) for each in word_map.occurrences), strict=True)
    number, share = majority(words, labels)
    if number:
        show(
            f"(always the main label of the word: 1-NN purity {share:.4f}, {number:,} occurrences)"
        )
