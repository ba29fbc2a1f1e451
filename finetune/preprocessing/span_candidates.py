"""Candidate spans of a text, their order, and their assignment to overlapping windows.

A span-based tagger scores every span of up to a number of words, S(x) in Jurafsky & Martin, *Speech
and Language Processing*, "Masked Language Models", on span-based NER. Heads, targets and
predictions identify a candidate by its index in the order defined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=128)
def candidates(num_words: int, max_width: int) -> np.ndarray:
    """All spans of 1 to ``max_width`` words as (start, end): [S, 2] int32.

    They are ordered by start and then by end. The array is shared and read-only.
    """
    size = num_candidates(num_words, max_width)
    starts = np.arange(num_words, dtype=np.int32)
    num_ends = np.minimum(num_words - starts, min(max_width, num_words))  # [W]
    start = np.repeat(starts, num_ends)  # [S]
    first = np.repeat(np.cumsum(num_ends) - num_ends, num_ends)  # [S] index of each start's first
    spans = np.stack([start, start + np.arange(1, size + 1) - first], axis=1).astype(np.int32)
    spans.flags.writeable = False
    return spans


def num_candidates(num_words: int, max_width: int) -> int:
    """The number of candidates of a text."""
    width = min(max_width, num_words)
    return num_words * width - width * (width - 1) // 2


def candidate_index(
    start: int | np.ndarray, end: int | np.ndarray, num_words: int, max_width: int
) -> int | np.ndarray:
    """The index of a span in ``candidates``, or of each span of two arrays."""
    width = min(max_width, num_words)
    first, last = np.asarray(start, dtype=np.int64), np.asarray(end, dtype=np.int64)
    num_following = num_words - first  # the last candidates equal those of a text of this length
    narrow = np.minimum(num_following, width)
    from_here = num_following * narrow - narrow * (narrow - 1) // 2
    index = num_candidates(num_words, max_width) - from_here + last - first - 1
    return int(index) if index.ndim == 0 else index


def predicted_candidates(
    bounds: Sequence[tuple[int, int]], index: int, max_width: int
) -> np.ndarray:
    """Which candidates of window ``index`` this window predicts: bool [S].

    A long text is read in overlapping windows of words ``bounds[k] = (start, end)``. If several
    windows contain a span, the window with the span furthest from a cut edge predicts it; on a tie,
    the earlier window. The distance is ``min(span.start - window.start, window.end - span.end)`` in
    words; edges of the text are not cut. So every span inside a window is predicted exactly once.
    """
    start, end = bounds[index]
    text = min(first for first, _ in bounds), max(last for _, last in bounds)
    spans = candidates(end - start, max_width) + start  # [S, 2]
    margin = _margin(spans, bounds[index], text)
    predicted = np.ones(len(spans), dtype=bool)
    for number, other in enumerate(bounds):
        if number == index or other[1] <= start or end <= other[0]:
            continue
        other_margin = _margin(spans, other, text)
        predicted &= other_margin < margin if number < index else other_margin <= margin
    return predicted


def _margin(spans: np.ndarray, window: tuple[int, int], text: tuple[int, int]) -> np.ndarray:
    left, right = spans[:, 0] - window[0], window[1] - spans[:, 1]
    before = left if window[0] > text[0] else np.inf
    after = right if window[1] < text[1] else np.inf
    return np.where((left < 0) | (right < 0), -1.0, np.minimum(before, after))
