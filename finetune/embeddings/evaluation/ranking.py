"""Ranking of second texts by their cosine with first texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROWS = 1024
"""Rows of the matrix of cosines to compute at a time."""


def ranking_scores(
    queries: np.ndarray, candidates: np.ndarray, texts: Sequence[str], answers: Sequence[str]
) -> dict[str, float]:
    """Score the rank of the answer to each text among the answers to all texts.

    Args:
        queries: The vectors [N, H] of the texts.
        candidates: The vectors [N, H] of their answers, in the same order.
        texts: The texts. Other answers to the same text are no competitors of an answer.
        answers: The answers. Equal ones count once.

    Returns:
        ``ranking_accuracy``, the fraction of texts whose answer has the highest cosine, and
        ``ranking_mrr``, the mean of 1 / rank. Of equal cosines the answer has the last rank.
    """
    unit = [
        side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12)
        for side in (queries.astype(np.float64), candidates.astype(np.float64))
    ]
    numbers: dict[str, int] = {}
    for answer in answers:
        numbers.setdefault(answer, len(numbers))
    own = np.array([numbers[answer] for answer in answers])
    first = np.unique(own, return_index=True)[1]
    by_text: dict[str, set[int]] = {}
    for text, number in zip(texts, own, strict=True):
        by_text.setdefault(text, set()).add(int(number))
    ranks = np.empty(len(own))
    for start in range(0, len(own), ROWS):
        cosines = unit[0][start : start + ROWS] @ unit[1][first].T
        for row, scores in enumerate(cosines, start):
            rivals = scores >= scores[own[row]]
            rivals[sorted(by_text[texts[row]])] = False
            ranks[row] = 1 + rivals.sum()
    return {
        "ranking_accuracy": float((ranks == 1).mean()),
        "ranking_mrr": float((1 / ranks).mean()),
    }
