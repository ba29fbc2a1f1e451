"""Words -> sequences of pieces: windows over sentences and documents of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from finetune import align
from finetune.tasks.base import BaseTask
from finetune.types import Encoding, TokenExample


def word_windows(
    task: BaseTask, examples: Sequence[TokenExample], *, own: bool
) -> Iterator[list[Encoding]]:
    """The windows of each example, in order, without targets.

    ``own`` lets a window's words be those it answers for (every word once); else they are all the
    words it holds. Words longer than a window are cut, and counted in ``task.num_cut``.
    """
    room = task.max_length - task.tokenizer.single.num_special
    pieces = task.tokenizer.word_pieces([example.words for example in examples])
    for example, words in zip(examples, pieces, strict=True):
        task.num_cut += sum(len(word) > room for word in words)
        words = [word[:room] for word in words]
        windows = align.windows([len(word) for word in words], room, task.overlap)
        yield [_encoding(task, example.id, words, window, own) for window in windows]


def _encoding(
    task: BaseTask, example: int, words: list[list[int]], window: align.Window, own: bool
) -> Encoding:
    first, last = window[2:] if own else window[:2]
    pieces = [piece for word in words[window.start : window.end] for piece in word]
    position = len(task.tokenizer.single.prefix)
    position += sum(len(word) for word in words[window.start : first])
    starts = [position]
    for word in words[first:last]:
        starts.append(starts[-1] + len(word))
    return Encoding(example, *task.tokenizer.build(pieces), starts, first)
