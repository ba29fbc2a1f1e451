"""Encoding of words: windows over long texts, or document context around short ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from finetune.config.tasks import WordConfig, max_context_subwords
from finetune.preprocessing.context import fill
from finetune.preprocessing.windows import Window, WordIds, encode_window, encode_words
from finetune.tasks.base import SequencesOfExamples, Task
from finetune.tasks.state import TaskState
from finetune.types import TokenExample, TokenSequence


@dataclass(frozen=True, kw_only=True)
class WordState(TaskState):
    """The state of a task whose examples are words."""

    config: WordConfig

    @property
    def input_keys(self) -> tuple[str, ...]:
        return () if self.config.description.given_spans else ("text", "words")

    @property
    def context_words(self) -> int:
        return max_context_subwords(self.config.context, self.max_length)


class WordTask(Task):
    """Base class of tasks whose examples are words."""

    state: WordState

    _core_only: ClassVar[bool] = True
    """Whether a window has its core words alone; otherwise windows share the words in which they
    overlap."""

    def _sequences(self, examples: Sequence[TokenExample]) -> SequencesOfExamples:
        neighbors = self._neighbors(examples)

        def in_context(example: TokenExample, words: WordIds, spare: int) -> TokenSequence:
            first, everything = self._in_context(example, words, neighbors, spare)
            window = Window(0, len(everything), first, first + len(words))
            return encode_window(self.tokenizer, example.id, everything, window, shift=first)

        return encode_words(
            examples,
            self.tokenizer,
            self.state.max_length,
            self.state.overlap,
            core_only=self._core_only,
            in_context=in_context if neighbors else None,
        )

    def _neighbors(self, examples: Sequence[TokenExample]) -> Mapping[tuple[str, ...], WordIds]:
        if not self.state.context_words:
            return {}
        near = {words: None for e in examples for side in (e.before, e.after) for words in side}
        return dict(zip(near, self.tokenizer.word_subwords(list(near)), strict=True))

    def _in_context(
        self,
        example: TokenExample,
        words: WordIds,
        neighbors: Mapping[tuple[str, ...], WordIds],
        spare: int,
    ) -> tuple[int, WordIds]:
        before = [word for sentence in example.before for word in neighbors[sentence]]
        after = [word for sentence in example.after for word in neighbors[sentence]]
        counts = [len(word) for word in reversed(before)], [len(word) for word in after]
        first, last = fill(*counts, spare, self.state.context_words)
        return first, [*before[len(before) - first :], *words, *after[:last]]
