"""Maps of words: the vectors of each occurrence of a word in the plane, layer by layer.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", fig. 11.7.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np

from finetune.embeddings.data.occurrences import Occurrence
from finetune.embeddings.evaluation.projection import (
    Array,
    LayerScores,
    Method,
    layer_scores,
    nearest_neighbors,
    project_layers,
)
from finetune.embeddings.evaluation.similarity import unit_vectors
from finetune.inference.embed import Embedder
from finetune.runtime.progress import Reporter

CHUNK = 32
"""Contexts embedded at a time: the vectors of all their words in all layers are in memory."""
NUM_SHOWN = 8
"""Nearest neighbors that a map holds for each occurrence."""


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
    reporter = reporter or Reporter(quiet=True)
    with reporter:
        reporter.start("embedding", len(occurrences), unit="text")
        rows = []
        for start in range(0, len(occurrences), CHUNK):
            chunk = occurrences[start : start + CHUNK]
            embeddings = embedder.encode(occurrence.words for occurrence in chunk)
            for occurrence, found in zip(chunk, embeddings, strict=True):
                rows.append(found.vectors[occurrence.start : occurrence.end].mean(0))
            reporter.update(len(rows))
        reporter.stop()
        vectors = unit_vectors(np.stack(rows).transpose(1, 0, 2))  # [L', occurrences, H]
        reporter.start("projecting", len(vectors), unit="layer")
        points = project_layers(vectors, method=method, seed=seed, done=reporter.update)
        reporter.stop()
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


def write_json(file: IO[str], word_map: WordMap, model: str) -> None:
    """Write a map as one JSON object."""
    occurrences = []
    for number, each in enumerate(word_map.occurrences):
        occurrences.append(
            {
                "id": each.id,
                "word": each.word,
                "label": each.label,
                "before": each.before,
                "form": each.form,
                "after": each.after,
                "points": word_map.points[:, number].round(4).tolist(),
                "neighbors": word_map.neighbors[:, number].tolist(),
                "cosines": word_map.cosines[:, number].round(4).tolist(),
            }
        )
    content: dict[str, Any] = {
        "model": model,
        "method": word_map.method,
        "seed": word_map.seed,
        "layers": list(word_map.layers),
        "scores": [asdict(each) for each in word_map.scores],
        "occurrences": occurrences,
    }
    json.dump(content, file, ensure_ascii=False)
    file.write("\n")
