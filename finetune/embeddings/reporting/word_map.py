"""The HTML page of a word map: one file that needs no network.

This module collects the values that the page shows; ``templates/word_map.html`` sets their markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.embeddings.data.occurrences import Occurrence
from finetune.embeddings.evaluation.projection import LayerScores, majority
from finetune.reporting.charts import NUM_COLORS, Chart, line_chart
from finetune.reporting.html import Table, inlined
from finetune.reporting.rendering import render

if TYPE_CHECKING:
    from finetune.embeddings.inference.word_map import WordMap

PACKAGE = "finetune.embeddings.reporting"
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


@dataclass(frozen=True)
class Group:
    """The points of one word with one label, in one color and shape."""

    name: str
    count: int
    style: str
    path: str


def write_page(file: Any, word_map: WordMap, model: str) -> None:
    """Write the page of a map to a text file."""
    file.write(page(word_map, model))


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
    """Return the group name of each occurrence, and the groups; rare labels share the last one."""
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
    """Scale the points of all layers to SVG units, equally in both directions, with the height."""
    low, high = points.min((0, 1)), points.max((0, 1))
    room = np.array([WIDTH, MOST_HEIGHT]) - 2 * MARGIN
    extent = np.maximum(high - low, np.finfo(float).tiny)
    scale = float((room / extent).min())
    height = max(LEAST_HEIGHT, round(float(extent[1] * scale)) + 2 * MARGIN)
    centered = (points - (low + high) / 2) * scale + np.array([WIDTH, height]) / 2
    return np.round(centered, 1), height


def _summary(scores: LayerScores) -> str:
    """Return the scores of a layer as a line."""
    values = (
        ("1-NN purity", scores.purity),
        ("silhouette", scores.silhouette),
        ("mean cosine", scores.self_similarity),
    )
    return ", ".join(f"{name} {value:.2f}" for name, value in values if value is not None)


def _table(scores: Sequence[LayerScores]) -> Table:
    columns = ["layer", "mean cosine", "trustworthiness"]
    rows: list[list[Any]] = [
        [str(each.layer), each.self_similarity, each.trustworthiness] for each in scores
    ]
    if scores[0].purity is not None:
        columns[1:1] = ["1-NN purity", "silhouette"]
        for row, each in zip(rows, scores, strict=True):
            row[1:1] = [each.purity, each.silhouette]
    return Table("Scores by layer", columns, rows)


def _chart(scores: Sequence[LayerScores]) -> Chart | None:
    """Draw the scores of labels by layer."""
    series = [
        (
            name,
            [(each.layer, value) for each in scores if (value := getattr(each, key)) is not None],
        )
        for name, key in (("1-NN purity", "purity"), ("silhouette", "silhouette"))
    ]
    if len(scores) < 2 or not all(points for _, points in series):
        return None
    label = "; ".join(
        f"{name}: {', '.join(f'{value:.2f}' for _, value in points)}" for name, points in series
    )
    caption = "Separation of labels by layer"
    return line_chart(caption, f"{caption}. {label}", series, "layer")
