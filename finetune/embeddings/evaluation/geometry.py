"""Geometry of contextual vectors: anisotropy, rogue dimensions, self-similarity, dimension.

Ethayarajh 2019, "How contextual are contextualized word representations?"; Timkey & van Schijndel
2021, "All bark and no bite: rogue dimensions in transformer language models obscure
representational quality"; Facco, d'Errico, Rodriguez & Laio 2017, "Estimating the intrinsic
dimension of datasets by a minimal neighborhood information" (TwoNN).

Shapes: U words of a text, L layers, H dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.embeddings.evaluation.similarity import ExpectedCosine, unit_vectors

Array = npt.NDArray[Any]

TOP_DIMENSIONS = (1, 3, 5, 10)
"""Numbers of largest dimensions whose share of the expected cosine is reported."""
DISCARDED = 0.1
"""Fraction of the points, with the largest ratios, that TwoNN leaves out of its fit."""
NUM_POINTS = 2000
"""Words that the intrinsic dimension is estimated from."""
LEAST_POINTS = 20


@dataclass(frozen=True)
class LayerGeometry:
    """The geometry of one layer, raw or standardized."""

    layer: int
    expected_cosine: float
    """Mean cosine of two words: the anisotropy."""
    shares: dict[int, float] | None
    """Share of the largest dimensions in the expected cosine, by their number; None if the expected
    cosine is not positive."""
    dimensions: list[tuple[int, float]]
    """The largest dimensions, each with its contribution to the expected cosine."""
    self_similarity: float | None
    """Mean cosine of two uses of a word, over words; None if no word is used often enough."""
    intra_sentence: float
    """Mean cosine of a word and the mean vector of its text."""
    norm: float
    """Mean length of a vector."""
    intrinsic_dimension: float | None
    """TwoNN estimate; None for too few points."""

    def share(self, number: int) -> float | None:
        """Return the share of the ``number`` largest dimensions; None if it is unknown."""
        return None if self.shares is None else self.shares.get(number)

    @property
    def adjusted_self_similarity(self) -> float | None:
        """Self-similarity minus the expected cosine (Ethayarajh 2019)."""
        if self.self_similarity is None:
            return None
        return self.self_similarity - self.expected_cosine

    @property
    def adjusted_intra_sentence(self) -> float:
        """Similarity within a text minus the expected cosine."""
        return self.intra_sentence - self.expected_cosine


@dataclass
class GeometryMeasure:
    """Sums over a stream of texts, from which the geometry of each layer follows.

    Memory does not grow with the text: it holds sums, also for each of the ``words`` whose
    self-similarity is measured, and a sample of vectors.
    """

    layers: Sequence[int]
    words: Collection[str]
    seed: int = 0
    _expected: ExpectedCosine = field(default_factory=ExpectedCosine)
    _by_word: dict[str, ExpectedCosine] = field(default_factory=dict)
    _intra: Any = 0.0
    _num_texts: int = 0
    _norms: Any = 0.0
    _points: list[Array] = field(default_factory=list)
    _sampler: Random = field(init=False)

    def __post_init__(self) -> None:
        self._sampler = Random(self.seed)

    def add(self, words: Sequence[str], vectors: Array) -> None:
        """Add the words of a text and their vectors [U, L, H]."""
        if not words:
            return
        units = unit_vectors(vectors)
        self._expected.add_units(units)
        self._norms = self._norms + np.linalg.norm(vectors, axis=-1).sum(axis=0)
        center = unit_vectors(vectors.mean(axis=0))
        self._intra = self._intra + (units * center).sum(axis=-1).mean(axis=0)
        self._num_texts += 1
        start = self._expected.count - len(words)
        for place, word in enumerate(words):
            if word in self.words:
                self._by_word.setdefault(word, ExpectedCosine()).add_units(units[place][None])
        for number, vector in enumerate(vectors, start):
            if number < NUM_POINTS:  # reservoir sampling, as in data.running_text
                self._points.append(vector.astype(np.float32))
            elif (place := self._sampler.randrange(number + 1)) < NUM_POINTS:
                self._points[place] = vector.astype(np.float32)

    @property
    def num_words(self) -> int:
        """The number of words read."""
        return self._expected.count

    def self_similarity(self) -> dict[str, Array]:
        """Return the mean cosine of two uses of each word [L], for words with two uses."""
        found = {word: each.value for word, each in self._by_word.items() if each.count > 1}
        return dict(sorted(found.items()))

    def uses(self) -> dict[str, int]:
        """Return the number of uses of each measured word."""
        return {word: each.count for word, each in self._by_word.items()}

    def result(self) -> list[LayerGeometry]:
        """Return the geometry of each layer."""
        by_word = list(self.self_similarity().values())
        mean_of_words = np.mean(by_word, axis=0) if by_word else None
        contributions, points = self._expected.contributions, np.stack(self._points)
        found = []
        for place, layer in enumerate(self.layers):
            each = contributions[place]
            largest = np.argsort(-each, kind="stable")[: TOP_DIMENSIONS[-1]]
            total = float(each.sum())
            sums = np.cumsum(each[largest])
            shares = (
                {k: float(sums[min(k, len(sums)) - 1] / total) for k in TOP_DIMENSIONS}
                if total > 0
                else None
            )
            found.append(
                LayerGeometry(
                    layer,
                    total,
                    shares,
                    [(int(index), float(each[index])) for index in largest],
                    None if mean_of_words is None else float(mean_of_words[place]),
                    float(self._intra[place] / self._num_texts),
                    float(self._norms[place] / self._expected.count),
                    intrinsic_dimension(points[:, place]),
                )
            )
        return found


def intrinsic_dimension(vectors: Array) -> float | None:
    """Return the TwoNN estimate of the dimension of points [N, H] (Facco et al. 2017).

    The ratio mu of the distances to the second and the first neighbor has the distribution
    1 - mu^-d. d is the slope of a line through the origin, fitted to -log(1 - F(mu)) over log mu
    without the largest tenth. Equal points count once; None for fewer than 20 points.
    """
    points = np.unique(vectors, axis=0).astype(np.float64)
    number = len(points)
    if number < LEAST_POINTS:
        return None
    from sklearn.neighbors import NearestNeighbors

    distances, _ = NearestNeighbors(n_neighbors=3, algorithm="brute").fit(points).kneighbors()
    nearest, second = distances[:, 0], distances[:, 1]
    apart = nearest > 0  # distances of near points round to 0
    ratios = np.sort(second[apart] / nearest[apart])
    if len(ratios) < LEAST_POINTS:
        return None
    kept = int(len(ratios) * (1 - DISCARDED))
    x = np.log(ratios[:kept])
    y = -np.log1p(-np.arange(1, kept + 1) / len(ratios))
    return float(x @ y / (x @ x)) if x.any() else None
