"""`finetune map`: the vectors of each occurrence of a word in the plane, layer by layer.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", fig. 11.7.
A measure says how labels separate.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from finetune.cli.output import print_table, show
from finetune.embeddings.occurrences import Occurrence
from finetune.embeddings.vectors import Array, unit_vectors
from finetune.inference.embed import Embedder
from finetune.reporting.charts import NUM_COLORS, chart
from finetune.reporting.rendering import PageTable, Section, page_of
from finetune.runtime.progress import Reporter
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.embeddings.commands import Map

Method = Literal["tsne", "pca"]
NUM_COMPONENTS = 50
"""Principal components that t-SNE reads."""
PERPLEXITY = 30.0
"""Perplexity of t-SNE for 300 points or more; a tenth of fewer points, and at least 5."""
_CHUNK = 32
"""Contexts embedded at a time: the vectors of all their words in all layers are in memory."""
_TIE = 1e-6


def project_layers(
    vectors: Array,
    *,
    method: Method = "tsne",
    seed: int = 1,
    reporter: Reporter | None = None,
) -> Array:
    """Project the vectors of each layer to the plane.

    The layers are computed from the last to the first. t-SNE starts from the points of the layer
    above, so that a point moves only as far as its neighborhood changes.

    Args:
        vectors: Vectors of length 1 [layers, n, H], so that distances rank like cosines.
        method: t-SNE (van der Maaten & Hinton 2008) of the first 50 principal components, or the
            first two of these (``pca``).
        seed: Seed of t-SNE.
        reporter: Shows the progress.

    Returns:
        Points [layers, n, 2]. Equal vectors have equal points.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    num_layers, num_points, width = vectors.shape
    if num_points < 3:
        raise UserError(f"a map needs 3 points or more, not {num_points}: give more texts.")
    points, above = np.zeros((num_layers, num_points, 2)), None
    reporter = reporter or Reporter(quiet=True)
    reporter.start("projecting", num_layers, unit="layer")
    for done, layer in enumerate(reversed(range(num_layers)), 1):
        centered = vectors[layer] - vectors[layer].mean(0)
        if np.ptp(vectors[layer], axis=0).max() < _TIE:
            above = None  # without position, a word is the same everywhere: all points are zero
            continue
        size = min(NUM_COMPONENTS, num_points, width)
        components = PCA(size, svd_solver="full").fit_transform(centered)
        points[layer] = components[:, :2]
        if method == "tsne":
            start = points[layer] if above is None else above
            tsne = TSNE(
                perplexity=min(PERPLEXITY, max(5.0, num_points / 10), (num_points - 1) / 3),
                init=(start / start.std(axis=0).max() * 1e-4).astype(np.float32),
                random_state=seed,
            )
            points[layer] = tsne.fit_transform(components.astype(np.float32))
            above = points[layer]
        reporter.update(done)
    return points


def nearest_neighbor_purity(
    vectors: Array, words: Sequence[str], labels: Sequence[str | None]
) -> float | None:
    """Measure how vectors [n, H] of length 1 separate labels.

    It is the fraction of occurrences whose nearest neighbor (by cosine, among the other occurrences
    of the word) has the same label, and of several equally near ones the fraction with that label;
    None unless a word has two labels that occur twice.
    """
    rows = labeled_rows(words, labels)
    if not rows:
        return None
    word, label = (np.array([str(names[row]) for row in rows]) for names in (words, labels))
    same_word = (word[:, None] == word) & ~np.eye(len(rows), dtype=bool)
    cosines = np.where(same_word, vectors[rows] @ vectors[rows].T, -np.inf)
    nearest = cosines >= cosines.max(axis=1, keepdims=True) - _TIE
    right = nearest & (label[:, None] == label)
    return float((right.sum(axis=1) / nearest.sum(axis=1)).mean())


def labeled_rows(words: Sequence[str], labels: Sequence[str | None]) -> list[int]:
    """Select the occurrences with labels to score.

    Each label occurs at least twice with its word, and the word has another such label.
    """
    counts = Counter(zip(words, labels, strict=True))
    legal = {key for key, count in counts.items() if key[1] is not None and count > 1}
    num_labels = Counter(word for word, _ in legal)
    pairs = enumerate(zip(words, labels, strict=True))
    return [number for number, key in pairs if key in legal and num_labels[key[0]] > 1]


def majority_sense(words: Sequence[str], labels: Sequence[str | None]) -> float | None:
    """Compute the fraction of scored occurrences with the main label of their word."""
    rows = labeled_rows(words, labels)
    main: Counter[str] = Counter()
    for (word, _), count in Counter((words[row], labels[row]) for row in rows).items():
        main[word] = max(main[word], count)
    return main.total() / len(rows) if rows else None


def draw_map(command: Map, occurrences: Sequence[Occurrence]) -> None:
    """Write the map of the command and print the scores of its layers."""
    options: dict[str, Any] = {"unit": "word", "combine": "none", **command.encoder.keywords()}
    embedder = Embedder(command.model, layers=command.layers, **options)
    rows: list[Array] = []
    with Reporter() as progress:
        progress.start("embedding", len(occurrences), unit="text")
        for start in range(0, len(occurrences), _CHUNK):
            chunk = occurrences[start : start + _CHUNK]
            embeddings = embedder.encode(use.words for use in chunk)
            for use, embedding in zip(chunk, embeddings, strict=True):
                rows.append(embedding.vectors[use.start : use.end].mean(0))
            progress.update(len(rows))
        vectors = unit_vectors(np.stack(rows, axis=1))  # [layers, occurrences, H]
        settings: Any = {"method": command.method, "seed": command.seed}
        points = project_layers(vectors, **settings, reporter=progress)
    words, labels = [use.word for use in occurrences], [use.label for use in occurrences]
    baseline = majority_sense(words, labels)
    figures: dict[str, Any] = {
        "model": command.model,
        **settings,
        "layers": list(embedder.layers),
        "scores": [
            {"layer": layer, "purity": nearest_neighbor_purity(of_layer, words, labels)}
            for layer, of_layer in zip(embedder.layers, vectors, strict=True)
        ],
        "occurrences": [
            {
                "id": use.id,
                "word": use.word,
                "label": use.label,
                "text": use.shown,
                "points": points[:, number].round(4).tolist(),
            }
            for number, use in enumerate(occurrences)
        ],
    }
    text = json.dumps(figures, ensure_ascii=False)
    command.write(lambda: _page(figures, points, baseline), text)
    if baseline is not None:
        print_table(*_table(figures["scores"]))
        show(f"(always the main label of the word: 1-NN purity {baseline:.4f})")


def _page(figures: dict[str, Any], points: Array, baseline: float | None) -> str:
    notes, scores = list[str](), list[PageTable]()
    if baseline is not None:
        scores.append(PageTable("Scores", *_table(figures["scores"])))
        notes.append(
            "1-NN purity is the fraction of occurrences whose nearest vector, among the other "
            "occurrences of the word, has the same label. Always naming the main label of the word "
            f"would reach {baseline:.4f}."
        )
    if figures["method"] == "tsne":
        notes.append("t-SNE keeps neighborhoods only: sizes and distances of groups mean nothing.")
    occurrences = figures["occurrences"]
    words = list(dict.fromkeys(use["word"] for use in occurrences))
    names = [use["label"] or "no label" for use in occurrences]
    if len(words) > 1:
        names = [f"{use['word']} · {name}" for use, name in zip(occurrences, names, strict=True)]
    frequent = [name for name, _ in Counter(names).most_common()]
    if len(frequent) > NUM_COLORS:
        frequent = [*frequent[: NUM_COLORS - 1], "other labels"]
    charts = []
    for layer, of_layer in zip(figures["layers"], points.tolist(), strict=True):
        groups: dict[str, list[tuple[float, float, str]]] = {name: [] for name in frequent}
        for use, name, (x, y) in zip(occurrences, names, of_layer, strict=True):
            groups.get(name, groups[frequent[-1]]).append((x, y, f"{name}: {use['text']}"))
        charts.append(chart(f"Layer {layer}", dots=list(groups.items())))
    texts = [[use["id"], use["label"] or "", use["text"]] for use in occurrences]
    return page_of(
        "word map",
        ", ".join(words),
        [
            Section("Map", notes, charts, scores),
            Section("Occurrences", tables=[PageTable("Texts", ["id", "label", "text"], texts)]),
        ],
        about=f"{len(occurrences):,} occurrences, encoded by {figures['model']}, projected by "
        f"{figures['method']} with seed {figures['seed']}. Each point is one occurrence; near "
        "points have similar vectors.",
        command="finetune map",
    )


def _table(scores: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    return ["layer", "1-NN purity"], [[row["layer"], row["purity"]] for row in scores]
