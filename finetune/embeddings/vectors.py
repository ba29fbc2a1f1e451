"""Standardization of vectors over a corpus.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", equations
11.10 to 11.12. Contextual vectors point in similar directions (Ethayarajh 2019), often because a
few dimensions are large (Timkey & van Schijndel 2021); standardizing removes both.

Shapes: N vectors; the shape of one is [H], or [L, H] for several layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.types import UserError

Array = npt.NDArray[Any]
CONSTANT = 1e-7
"""A dimension is constant if its deviation is at most this fraction of its mean (float32)."""


def unit_vectors(vectors: npt.ArrayLike) -> Array:
    """Scale vectors [..., H] to length 1; zero vectors stay zero."""
    values = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    result: Array = np.divide(values, lengths, out=np.zeros_like(values), where=lengths > 0)
    return result


@dataclass(frozen=True, eq=False)
class Standardizer:
    """The mean and the standard deviation of each dimension of vectors over a corpus.

    It applies to vectors of the same model, layers and unit alone.

    Examples:
        >>> standardizer = Standardizer.fit([np.array([[0.0, 5.0], [2.0, 5.0]])])
        >>> standardizer(np.array([3.0, 6.0])).tolist()  # the second dimension is constant
        [2.0, 0.0]
    """

    mean: Array
    deviation: Array
    count: int

    @classmethod
    def fit(cls, vectors: Iterable[npt.ArrayLike]) -> Standardizer:
        """Fit to groups of vectors, each [N, *shape], as a stream (equations 11.10 and 11.11).

        This is the population deviation, with N in the denominator.

        Raises:
            UserError: There are fewer than two vectors.
        """
        from sklearn.preprocessing import StandardScaler  # which takes long to import

        scaler, count, shape = StandardScaler(), 0, ()
        for group in vectors:
            values = np.asarray(group, dtype=np.float64)
            if len(values):
                scaler.partial_fit(values.reshape(len(values), -1))
                count, shape = count + len(values), values.shape[1:]
        if count < 2:
            raise UserError(f"standardizing needs a corpus of two or more vectors, not {count}.")
        mean, deviation = scaler.mean_.reshape(shape), np.sqrt(scaler.var_).reshape(shape)
        deviation = np.where(deviation <= CONSTANT * np.abs(mean), 0.0, deviation)
        return cls(mean, deviation, count)

    def __call__(self, vectors: npt.ArrayLike) -> Array:
        """Compute z = (x - mean) / deviation (equation 11.12) of vectors [..., *shape].

        Dimensions that are constant in the corpus have no scale; they become 0.
        """
        values = np.asarray(vectors)
        if values.shape[values.ndim - self.mean.ndim :] != self.mean.shape:
            raise UserError(
                f"the standardizer is fitted to vectors {list(self.mean.shape)}, not "
                f"{list(values.shape)}: fit it again with this model and these layers."
            )
        scale = np.divide(
            1.0, self.deviation, out=np.zeros_like(self.deviation), where=self.deviation > 0
        )
        result: Array = (values - self.mean) * scale
        return result
