"""Shares of several sources of data in a sample."""

from __future__ import annotations

from collections.abc import Sequence

from finetune.types import UserError


def sampling_probabilities(sizes: Sequence[float], alpha: float) -> list[float]:
    """Return the probability of each language or source in a sample (Jurafsky & Martin, 11.7).

    q_i = p_i^α / Σ p_j^α for p_i = n_i / Σ n_k: an exponent α below 1 raises small sources
    (Conneau et al. 2020, XLM-R: 0.3), 1 keeps their proportions, 0 makes all equal.

    Args:
        sizes: n, the amount of text of each source, in any unit.
        alpha: α, from 0 to 1.

    Raises:
        UserError: α is outside this range, or a source has no text.

    >>> [round(q, 3) for q in sampling_probabilities([1000, 10], 0.3)]
    [0.799, 0.201]
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"--alpha must be from 0 to 1, not {alpha}.")
    if not sizes or min(sizes) <= 0:
        raise UserError(f"every source needs text, but their sizes are {list(sizes)}.")
    weights = [(size / sum(sizes)) ** alpha for size in sizes]
    return [weight / sum(weights) for weight in weights]
