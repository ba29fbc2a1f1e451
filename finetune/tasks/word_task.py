"""Encoding of words: windows over long texts, or document context around short ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from finetune.config.tasks import WordConfig, max_context_subwords
from finetune.preprocessing.context import fill
from finetune.preprocessing.windows import WithContext, WordIds, encode_words
from finetune.tasks.base import SequencesOfExamples, Task
from finetune.tasks.state import TaskState
from finetune.types import TokenExample


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
        return encode_words(
            examples,
            self.tokenizer,
            self.state.max_length,
            self.state.overlap,
            core_only=self._core_only,
            with_context=self._with_context(examples),
        )

    def _with_context(self, examples: Sequence[TokenExample]) -> WithContext | None:
        if not (most := self.state.context_words):
            return None
        near = {words: None for e in examples for side in (e.before, e.after) for words in side}
        neighbors = dict(zip(near, self.tokenizer.word_subwords(list(near)), strict=True))

        def with_context(example: TokenExample, words: WordIds, spare: int) -> tuple[int, WordIds]:
            before = [word for sentence in example.before for word in neighbors[sentence]]
            after = [word for sentence in example.after for word in neighbors[sentence]]
            counts = [len(word) for word in reversed(before)], [len(word) for word in after]
            first, last = fill(*counts, spare, most)
            return first, [*before[len(before) - first :], *words, *after[:last]]

        return with_context
