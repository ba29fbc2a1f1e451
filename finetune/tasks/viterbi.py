"""Scores of words from those of their subwords, and the best legal sequence of tags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from finetune.data.tag_schemes import legal_transitions

Transitions = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Log scores (0 or -inf) of tags at the start [C], at the end [C], and of pairs [C, C]."""


def log_transitions(tags: Sequence[str], scheme: str | None) -> Transitions:
    """Return the transitions that a tag scheme allows."""
    start, end, pairs = (np.where(part, 0.0, -np.inf) for part in legal_transitions(tags, scheme))
    return start, end, pairs


def viterbi(scores: np.ndarray, transitions: Transitions) -> np.ndarray:
    """Return the legal tag sequence [W] with the largest sum of scores [W, C] (Viterbi, 1967)."""
    if len(scores) == 0:
        return np.zeros(0, dtype=int)
    start, end, pairs = transitions
    best = scores[0] + start  # [C]
    back = np.zeros(scores.shape, dtype=int)
    for word in range(1, len(scores)):
        paths = best[:, None] + pairs  # [C, C]
        back[word] = paths.argmax(0)
        best = paths.max(0) + scores[word]
    tags = np.zeros(len(scores), dtype=int)
    tags[-1] = (best + end).argmax()
    for word in range(len(scores) - 1, 0, -1):
        tags[word - 1] = back[word, tags[word]]
    return tags


def word_scores(
    logs: torch.Tensor, word_lengths: torch.Tensor, continuations: Sequence[int], how: str
) -> torch.Tensor:
    """Combine log-probabilities of subwords [P, C] to those of words [W, C].

    ``first`` takes the first subword, ``mean`` the mean log-probability, normalized. A later
    subword counts for the tags that continue with its tag (``I-`` for ``B-``), so the first one
    alone decides between tags with the same continuation.
    """
    starts = torch.cumsum(word_lengths, 0) - word_lengths  # [W]
    if how == "first":
        return logs[starts]
    word = torch.arange(len(starts), device=logs.device)
    word = torch.repeat_interleave(word, word_lengths, output_size=len(logs))  # [P]
    index = torch.tensor(continuations, device=logs.device)
    scores = logs[:, index].index_copy(0, starts, logs[starts])  # [P, C]
    sums = logs.new_zeros(len(starts), logs.shape[1]).index_add(0, word, scores)
    return (sums / word_lengths[:, None]).log_softmax(-1)
