"""Similarity of pairs of vectors, and its correlation with gold judgments.

Tables of semantic textual similarity pool the pairs of all subsets ("all"), or average the scores
of the subsets ("mean"): the names of the scores say which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.evaluation.metrics import METRICS
from finetune.evaluation.pairs import pair
from finetune.evaluation.resampling import Counts
from finetune.evaluation.significance import Estimate, estimate

Array = npt.NDArray[Any]

NUM_RESAMPLES = 1000
"""Resamples of a confidence interval."""
LEAST_PAIRS = 3
"""Pairs from which a correlation is computed."""


def unit_vectors(vectors: npt.ArrayLike) -> Array:
    """Return vectors [..., H] scaled to length 1; zero vectors stay zero."""
    values = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    result: Array = np.divide(values, lengths, out=np.zeros_like(values), where=lengths > 0)
    return result


def cosine(first: npt.ArrayLike, second: npt.ArrayLike) -> Array:
    """Return the cosines of vectors [..., H] -> [...]; a zero vector has the cosine 0."""
    result: Array = (unit_vectors(first) * unit_vectors(second)).sum(axis=-1)
    return result.clip(-1.0, 1.0)


@dataclass
class ExpectedCosine:
    """The expected cosine of two different vectors, over all pairs of a stream.

    The mean over all pairs of N unit vectors u is (|sum u|^2 - sum |u|^2) / N (N - 1), in which
    each dimension has its own term: its contribution (Timkey & van Schijndel 2021).
    """

    total: Array | float = 0.0
    squares: Array | float = 0.0
    count: int = 0

    def add(self, vectors: npt.ArrayLike) -> None:
        """Add vectors [N, ..., H]."""
        self.add_units(unit_vectors(vectors))

    def add_units(self, units: Array) -> None:
        """Add vectors of length 1 [N, ..., H]."""
        self.total = self.total + units.sum(axis=0)
        self.squares = self.squares + (units**2).sum(axis=0)
        self.count += len(units)

    @property
    def contributions(self) -> Array:
        """The contribution of each dimension to the expected cosine [..., H]."""
        pairs = max(1, self.count * (self.count - 1))
        result: Array = (np.square(self.total) - np.asarray(self.squares)) / pairs
        return result

    @property
    def value(self) -> Array:
        """The expected cosine [...]: the sum of the contributions."""
        result: Array = self.contributions.sum(axis=-1)
        return result


def correlations(
    gold: Sequence[float],
    predicted: Sequence[float],
    subsets: Sequence[str] | None = None,
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return the rank and linear correlation with gold, with bootstrap intervals.

    With subsets ``spearman_all`` pools all pairs and ``spearman_mean`` is the mean over the
    subsets, and so for ``pearson``; an interval of a mean resamples all pairs.
    """
    pairs = pair("number", gold, predicted)
    scores = {}
    for name in ("spearman", "pearson"):
        metric = METRICS["number"][name]
        ranks = name == "spearman"
        rows = np.array([gold, predicted], dtype=np.float64).T if ranks else metric.counts(pairs)
        counts = Counts(rows.astype(np.float64), metric.value, ranks)
        if subsets is None:
            kinds = {name: counts}
        else:
            numbers = np.unique(list(subsets), return_inverse=True)[1]
            mean = Counts(counts.rows, metric.value, ranks, subset=numbers)
            kinds = {f"{name}_all": counts, f"{name}_mean": mean}
        for key, each in kinds.items():
            scores[key] = estimate([each], num_resamples=num_resamples, seed=seed)
    return scores


def scores_by_subset(
    gold: Sequence[float], predicted: Sequence[float], subsets: Sequence[str]
) -> list[tuple[str, int, float, float]]:
    """Return name, number of pairs, Spearman and Pearson of each subset, in order of occurrence."""
    rows = []
    names = np.array(subsets)
    for name in dict.fromkeys(subsets):
        chosen = names == name
        both = np.array(gold)[chosen], np.array(predicted)[chosen]
        rows.append((name, int(chosen.sum()), *_both_correlations(*both)))
    return rows


def _both_correlations(gold: Array, predicted: Array) -> tuple[float, float]:
    pairs = pair("number", gold.tolist(), predicted.tolist())
    return tuple(  # type: ignore[return-value]
        float(metric.value(metric.counts(pairs).sum(axis=0)))
        for metric in (METRICS["number"]["spearman"], METRICS["number"]["pearson"])
    )


def records(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, float]]:
    """Return estimates as JSON values."""
    return {name: each._asdict() for name, each in estimates.items()}
