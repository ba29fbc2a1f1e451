"""Sequences of words: windows over long texts; every word is a core word of exactly one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from finetune.preprocessing.subwords import Subwords
from finetune.types import TokenExample, TokenSequence

WINDOW_OVERLAP = 64
"""Number of tokens that neighboring windows of a long text share, unless it is half of them."""
WordIds = list[list[int]]
"""The ids of the subwords of each word."""
WithContext = Callable[[TokenExample, WordIds, int], tuple[int, WordIds]]
"""Adds up to a number of subwords of its context around the words of an example; returns the number
of words before it, and all words."""


class Window(NamedTuple):
    """Words ``start .. end-1`` of a text; the core words are ``core_start .. core_end-1``."""

    start: int
    end: int
    core_start: int
    core_end: int


def windows(subword_counts: Sequence[int], capacity: int, overlap: int) -> list[Window]:
    """Split words with these numbers of subwords into windows of at most ``capacity`` subwords.

    Neighboring windows share ``overlap`` subwords or slightly more, and fewer only if the next word
    would not fit otherwise. A shared word is a core word of the window in which it is further from
    the cut edge. A word longer than ``capacity`` gets a window alone and is not cut here. Windows
    without core words are left out; a text without words has one empty window. ``overlap`` is less
    than ``capacity``.
    """
    if sum(subword_counts) <= capacity:
        return [Window(0, len(subword_counts), 0, len(subword_counts))]
    before = [0, *accumulate(subword_counts)]  # subwords before each word
    bounds = [(0, _reach(before, 0, capacity))]
    while (end := bounds[-1][1]) < len(subword_counts):
        latest = bisect_right(before, before[end] - overlap) - 1  # the last start that overlaps
        earliest = bisect_left(before, before[end + 1] - capacity)  # the first that fits word end
        start = min(max(latest, earliest), end)
        bounds.append((start, _reach(before, start, capacity)))
    inner = [_cut(before, right[0], left[1]) for left, right in pairwise(bounds)]
    core = pairwise([0, *inner, len(subword_counts)])
    all_windows = [Window(*bound, *words) for bound, words in zip(bounds, core, strict=True)]
    return [w for w in all_windows if w.core_start < w.core_end] or [Window(0, 0, 0, 0)]


def window_starts(length: int, size: int, overlap: int) -> list[int]:
    """The first token of each window. All windows have ``size`` tokens, or the one has less.

    >>> window_starts(10, 4, 2)
    [0, 2, 4, 6]
    """
    last = max(0, length - size)
    return [*range(0, last, size - min(overlap, size // 2)), last]


def encode_words(
    examples: Sequence[TokenExample],
    tokenizer: Subwords,
    max_length: int,
    overlap: int,
    *,
    core_only: bool,
    with_context: WithContext | None = None,
) -> tuple[list[list[TokenSequence]], int]:
    """Encode each example into windows, without targets, and count the words that were cut.

    Args:
        examples: Sentences or longer texts.
        tokenizer: Makes their subwords.
        max_length: Length of the longest sequence in tokens.
        overlap: Number of subwords that neighboring windows share.
        core_only: Each window has only its core words; otherwise windows share the words in which
            they overlap.
        with_context: Adds context to an example that fits into one window.
    """
    room = tokenizer.room(max_length)
    result, num_cut = [], 0
    subwords = tokenizer.word_subwords([example.words for example in examples])
    for example, words in zip(examples, subwords, strict=True):
        counts = list(map(len, words))
        if max(counts, default=0) > room:
            num_cut += sum(count > room for count in counts)
            words = [word[:room] for word in words]
            counts = list(map(len, words))
        text_windows = windows(counts, room, overlap)
        if with_context and len(text_windows) == 1 and words:
            first, everything = with_context(example, words, room - sum(counts))
            window = Window(0, len(everything), first, first + len(words))
            result.append([encode_window(tokenizer, example.id, everything, window, shift=first)])
        else:
            result.append(
                [
                    encode_window(tokenizer, example.id, words, window, core_only=core_only)
                    for window in text_windows
                ]
            )
    return result, num_cut


def encode_window(
    tokenizer: Subwords,
    example: int,
    words: Sequence[Sequence[int]],
    window: Window,
    *,
    core_only: bool = True,
    shift: int = 0,
) -> TokenSequence:
    """Encode a window of words, given by their subwords. Word ``shift`` is the example's first.

    With ``core_only`` the encoding predicts its core words, otherwise all words of the window.
    """
    first, last = window[2:] if core_only else window[:2]
    subwords = list(chain.from_iterable(words[window.start : window.end]))
    before = sum(map(len, words[window.start : first]))
    starts = accumulate(map(len, words[first:last]), initial=len(tokenizer.single.prefix) + before)
    return TokenSequence(example, *tokenizer.build(subwords), list(starts), first - shift)


def _reach(before: Sequence[int], start: int, capacity: int) -> int:
    fitting = bisect_right(before, before[start] + capacity) - 1
    return min(max(fitting, start + 1), len(before) - 1)


def _cut(before: Sequence[int], start: int, end: int) -> int:
    edges = before[start] + before[end]
    return next((w for w in range(start, end) if before[w] + before[w + 1] > edges), end)
