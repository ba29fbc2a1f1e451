"""Scores of words from those of their subwords, and the best legal sequence of tags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from finetune.data.tag_schemes import legal_transitions


class Transitions:
    """Log scores (0 or -inf) of tags at the start [C], at the end [C], and of pairs [C, C]."""

    def __init__(self, tags: Sequence[str], scheme: str | None) -> None:
        start, end, matrix = legal_transitions(tags, scheme)
        self.start = np.where(start, 0.0, -np.inf)
        self.end = np.where(end, 0.0, -np.inf)
        self.matrix = np.where(matrix, 0.0, -np.inf)


def viterbi(scores: np.ndarray, transitions: Transitions) -> np.ndarray:
    """Return the legal tag sequence [W] with the largest sum of scores [W, C] (Viterbi, 1967)."""
    if len(scores) == 0:
        return np.zeros(0, dtype=int)
    best = scores[0] + transitions.start  # [C]
    back = np.zeros(scores.shape, dtype=int)
    for word in range(1, len(scores)):
        paths = best[:, None] + transitions.matrix  # [C, C]
        back[word] = paths.argmax(0)
        best = paths.max(0) + scores[word]
    tags = np.zeros(len(scores), dtype=int)
    tags[-1] = (best + transitions.end).argmax()
    for word in range(len(scores) - 1, 0, -1):
        tags[word - 1] = back[word, tags[word]]
    return tags


def word_scores(
    logs: torch.Tensor, word_lengths: torch.Tensor, continuations: Sequence[int], how: str
) -> torch.Tensor:
    """Combine log-probabilities of subwords [P, C] to those of words [W, C].

    ``first`` takes the first subword, ``mean`` the mean log-probability and ``max`` the largest.
    For both, a later subword counts for the tags that continue with its tag (``I-`` for ``B-``),
    the first subword alone decides between tags with the same continuation, and the result is
    normalized.
    """
    starts = torch.cumsum(word_lengths, 0) - word_lengths  # [W]
    if how == "first":
        return logs[starts]
    word = torch.arange(len(starts), device=logs.device)
    word = torch.repeat_interleave(word, word_lengths, output_size=len(logs))  # [P]
    index = torch.tensor(continuations, device=logs.device)
    scores = logs[:, index]  # [P, C]
    if how == "max":  # otherwise a later subword with a high I- makes B- and I- equal
        scores = scores + _given_continuation(logs[starts], index)[word]
    scores = scores.index_copy(0, starts, logs[starts])
    combined = torch.zeros(len(starts), logs.shape[1], dtype=logs.dtype, device=logs.device)
    combined = combined.scatter_reduce(
        0,
        word[:, None].expand_as(scores),
        scores,
        reduce="mean" if how == "mean" else "amax",
        include_self=False,
    )
    return combined.log_softmax(-1)


def _given_continuation(logs: torch.Tensor, continuations: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities [W, C] of each tag among those with the same continuation."""
    exact = torch.float32 if logs.device.type == "mps" else torch.float64  # mps has no double
    probabilities = logs.to(exact).exp()
    together = torch.zeros_like(probabilities).index_add(1, continuations, probabilities)  # [W, C]
    together = together[:, continuations].clamp_min(torch.finfo(exact).tiny)
    return (logs - together.log()).to(logs.dtype)
