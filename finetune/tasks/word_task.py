"""Words -> sequences of pieces: windows over sentences and documents of any length, with words of
neighbouring sentences around those that leave room for them (``--context``)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from finetune.config.tasks import NerConfig, TagConfig, max_context_subwords
from finetune.data import Dataset, read_tokens
from finetune.preprocessing.context import context_facts, fill, surrounded
from finetune.preprocessing.windows import Window, windows
from finetune.tasks.base import BaseTask
from finetune.types import Encoding, TokenExample

Pieces = list[list[int]]
"""Piece ids of each of some words."""


class WordTask(BaseTask):
    """What tasks share that answer for words."""

    words = True
    config: TagConfig | NerConfig

    @classmethod
    def open(cls, config: TagConfig | NerConfig) -> Dataset:
        """Read words with tags or spans."""
        return read_tokens(config.data, columns=config.column_map)

    @property
    def context(self) -> int:
        """The most pieces of other sentences on either side of one; 0 without --context."""
        return max_context_subwords(self.config.context, self.max_length)

    def in_context(self, examples: Iterable[TokenExample]) -> Iterator[TokenExample]:
        """Examples to answer, with the sentences around them if these are to be read."""
        return surrounded(self._counted(examples), self.context) if self.context else iter(examples)

    def _counted(self, examples: Iterable[TokenExample]) -> Iterator[TokenExample]:
        for example in examples:
            self.num_alone += example.document is None
            yield example

    def encoding_key(self, examples: Sequence[TokenExample]) -> str:
        """A hash of all that ``encode(examples)`` follows from, what stands around them too."""
        key = super().encoding_key(examples)
        if not self.context:
            return key
        return hashlib.sha256((key + context_facts(examples)).encode()).hexdigest()

    def windows(self, examples: Sequence[TokenExample], *, own: bool) -> Iterator[list[Encoding]]:
        """The windows of each example, in order, without targets.

        ``own`` lets a window's words be those it answers for (every word once); else they are all
        the example's words that it holds. Words longer than a window are cut, and counted in
        ``num_cut``. An example in one window has words of other sentences around it as far as
        ``context`` and the room allow; a longer one has none.
        """
        room = self.max_length - self.tokenizer.single.num_special
        pieces = self.tokenizer.word_pieces([example.words for example in examples])
        around = self._around(examples)
        for example, words in zip(examples, pieces, strict=True):
            self.num_cut += sum(len(word) > room for word in words)
            words = [word[:room] for word in words]
            counts = [len(word) for word in words]
            found = windows(counts, room, self.overlap)
            if around and len(found) == 1 and words:
                yield [self._in_context(example, words, around, room - sum(counts))]
            else:
                yield [self._encoding(example.id, words, window, own) for window in found]

    def _around(self, examples: Sequence[TokenExample]) -> Mapping[tuple[str, ...], Pieces]:
        """The pieces of each sentence that stands around one of the examples."""
        if not self.context:
            return {}
        near = {words: None for e in examples for side in (e.before, e.after) for words in side}
        return dict(zip(near, self.tokenizer.word_pieces(list(near)), strict=True))

    def _in_context(
        self,
        example: TokenExample,
        words: Pieces,
        around: Mapping[tuple[str, ...], Pieces],
        spare: int,
    ) -> Encoding:
        """A sentence in the middle of what there is room for."""
        before = [word for sentence in example.before for word in around[sentence]]
        after = [word for sentence in example.after for word in around[sentence]]
        counts = [len(word) for word in reversed(before)], [len(word) for word in after]
        first, last = fill(*counts, spare, self.context)
        everything = [*before[len(before) - first :], *words, *after[:last]]
        window = Window(0, len(everything), first, first + len(words))
        return self._encoding(example.id, everything, window, True, first)

    def _encoding(
        self, example: int, words: Pieces, window: Window, own: bool, shift: int = 0
    ) -> Encoding:
        """A window of words, of which number ``shift`` is the first of the example."""
        first, last = window[2:] if own else window[:2]
        pieces = [piece for word in words[window.start : window.end] for piece in word]
        position = len(self.tokenizer.single.prefix)
        position += sum(len(word) for word in words[window.start : first])
        starts = [position]
        for word in words[first:last]:
            starts.append(starts[-1] + len(word))
        return Encoding(example, *self.tokenizer.build(pieces), starts, first - shift)
