"""Scores of words from scores of their subwords, and the best legal sequences of tags.

W words of N sequences are laid end to end, ``num_words`` each. The recursions go from position to
position over all sequences that are long enough, so nothing is padded. Transitions are log scores;
-inf rules out. Numpy alone, as exported models decode with this file too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from finetune.data.tag_schemes import legal_transitions

Transitions = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Log scores of tags at the start [C], at the end [C], and of pairs [C, C]."""


def log_transitions(tags: Sequence[str], scheme: str | None) -> Transitions:
    """Return the transitions that a tag scheme allows, with scores of 0."""
    start, end, pairs = (np.where(part, 0.0, -np.inf) for part in legal_transitions(tags, scheme))
    return start, end, pairs


def viterbi(
    scores: np.ndarray, transitions: Transitions, num_words: Sequence[int] | None = None
) -> np.ndarray:
    """Return the tags [W] with the largest sum of scores [W, C] and transitions (Viterbi, 1967).

    ``num_words`` lists the words of each sequence; None makes all words one sequence.
    """
    start, end, pairs = transitions
    positions = _positions([len(scores)] if num_words is None else num_words)
    tags = np.zeros(len(scores), dtype=int)
    if not positions:
        return tags
    best, origins = [scores[positions[0]] + start], []  # [n, C] each
    for rows in positions[1:]:
        paths = best[-1][: len(rows), :, None] + pairs  # [n, C, C]
        origins.append(paths.argmax(1))
        best.append(paths.max(1) + scores[rows])
    current = np.zeros(0, dtype=int)
    for number in reversed(range(len(positions))):
        going_on = len(current)
        if going_on:
            current = origins[number][np.arange(going_on), current]
        last = (best[number][going_on:] + end).argmax(1)
        tags[positions[number]] = current = np.concatenate([current, last])
    return tags


def marginals(scores: np.ndarray, transitions: Transitions, num_words: Sequence[int]) -> np.ndarray:
    """Return the probability of each tag of each word given its sequence, [W, C].

    This is the forward-backward algorithm; a tag on no legal path has exactly 0.
    """
    start, end, pairs = transitions
    before = _messages(scores, start, pairs, _positions(num_words))
    after = _messages(scores, end, pairs.T, _positions(num_words, from_end=True))
    logs = before + scores + after
    found = np.exp(logs - logs.max(-1, keepdims=True))
    probabilities: np.ndarray = found / found.sum(-1, keepdims=True)
    return probabilities


def _messages(
    scores: np.ndarray, first: np.ndarray, pairs: np.ndarray, positions: list[np.ndarray]
) -> np.ndarray:
    """Return log sums over all tag sequences before each tag of each word, [W, C]."""
    found = np.zeros_like(scores)
    for rows in positions[:1]:
        found[rows] = first
    for earlier, rows in pairwise(positions):
        states = (found[earlier] + scores[earlier])[: len(rows), :, None] + pairs  # [n, C, C]
        top = states.max(1, keepdims=True)
        top[np.isneginf(top)] = 0
        with np.errstate(divide="ignore"):
            found[rows] = np.log(np.exp(states - top).sum(1)) + top[:, 0]
    return found


def _positions(num_words: Sequence[int], *, from_end: bool = False) -> list[np.ndarray]:
    """Return the rows of the words at each position, from the longest to the shortest sequence."""
    lengths = np.asarray(num_words, dtype=int)
    begins = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    lengths, begins = lengths[order], begins[order]
    counts = [int((lengths > position).sum()) for position in range(max([0, *num_words]))]
    if from_end:
        ends = begins + lengths - 1
        return [ends[:count] - position for position, count in enumerate(counts)]
    return [begins[:count] + position for position, count in enumerate(counts)]


def word_scores(
    logs: np.ndarray, word_lengths: np.ndarray, continuations: Sequence[int], how: str
) -> np.ndarray:
    """Combine log-probabilities of subwords [P, C] to log-probabilities of words [W, C].

    ``first`` takes the first subword, ``mean`` the mean log-probability, normalized. A later
    subword counts for the tags that continue with its tag (``I-`` for ``B-``), so only the first
    subword decides between tags with the same continuation.
    """
    starts = np.cumsum(word_lengths) - word_lengths  # [W]
    if how == "first" or not len(starts):
        firsts: np.ndarray = logs[starts]
        return firsts
    scores = logs[:, list(continuations)]
    scores[starts] = logs[starts]
    means = np.add.reduceat(scores, starts) / word_lengths[:, None].astype(logs.dtype)
    return log_softmax(means)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities [..., C] of logits [..., C]."""
    shifted = logits - logits.max(-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found
