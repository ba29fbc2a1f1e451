"""Geometry of contextual vectors: anisotropy, rogue dimensions, self-similarity.

Ethayarajh 2019, "How contextual are contextualized word representations?"; Timkey & van Schijndel
2021, "All bark and no bite: rogue dimensions in transformer language models obscure
representational quality".

Shapes: U words of a text, L layers, H dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.embeddings.evaluation.similarity import ExpectedCosine, unit_vectors

Array = npt.NDArray[Any]

TOP_DIMENSIONS = (1, 3, 5, 10)
"""Numbers of largest dimensions whose share of the expected cosine is reported."""


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
    self-similarity is measured.
    """

    layers: Sequence[int]
    words: Collection[str]
    _expected: ExpectedCosine = field(default_factory=ExpectedCosine)
    _by_word: dict[str, ExpectedCosine] = field(default_factory=dict)
    _intra: Any = 0.0
    _num_texts: int = 0
    _norms: Any = 0.0

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
        for place, word in enumerate(words):
            if word in self.words:
                self._by_word.setdefault(word, ExpectedCosine()).add_units(units[place][None])

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
        contributions = self._expected.contributions
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
                )
            )
        return found
