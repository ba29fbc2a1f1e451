"""Sequences of questions with windows of their contexts, and the characters of context tokens.

A sequence is the question and a window of the context, as a pair of texts. Its one "word" is the
window; ``part`` is the number of the window's first token in the context.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from finetune.data.word_splitting import UNSPACED
from finetune.preprocessing.subwords import Subwords
from finetune.preprocessing.windows import window_starts
from finetune.types import Answer, Question, TextExample, TokenSequence

CACHED = 1024
"""Number of contexts whose tokens are kept while questions are decoded."""


class ContextTokens(NamedTuple):
    """The n tokens of a context, and the characters ``starts`` to ``ends - 1`` of each: [n].

    ``first_words`` and ``last_words`` are the numbers of the words of its characters [n].
    White space at the edges of a token does not belong to it; a token of white space is empty.
    Bytes of one character all have the character. Combining marks belong to the token before them,
    also where the tokenizer drops them.
    """

    ids: list[int]
    starts: np.ndarray
    ends: np.ndarray
    first_words: np.ndarray
    last_words: np.ndarray

    @classmethod
    def of(cls, text: str, ids: list[int], offsets: Iterable[tuple[int, int]]) -> ContextTokens:
        """Find the tokens of a text from the offsets of the tokenizer."""
        starts, ends = _characters(text, offsets)
        words = np.append(word_numbers(text), 0)
        last = np.maximum.accumulate(words[np.maximum(ends - 1, 0)])
        return cls(ids, starts, ends, words[starts], last)

    def of_answer(self, answer: Answer) -> tuple[int, int] | None:
        """The first and the last token of an answer; None if it has none."""
        if answer.start is None:
            return None
        start, end = answer.start, answer.start + len(answer.text)
        inside = np.flatnonzero(
            (self.ends > start) & (self.starts < end) & (self.starts < self.ends)
        )
        return (int(inside[0]), int(inside[-1])) if len(inside) else None


def context_tokens(tokenizer: Subwords, contexts: Sequence[str]) -> list[ContextTokens]:
    """The tokens of each context."""
    encoded = tokenizer.backend.encode_batch(list(contexts), add_special_tokens=False)
    return [
        ContextTokens.of(context, encoding.ids, encoding.offsets)
        for context, encoding in zip(contexts, encoded, strict=True)
    ]


@lru_cache(maxsize=CACHED)
def tokens_of(tokenizer: Subwords, context: str) -> ContextTokens:
    """The tokens of one context; of the last ``CACHED`` contexts they are kept.

    Questions about one context have sequences of similar lengths, so that they are decoded one
    soon after the other.
    """
    return context_tokens(tokenizer, [context])[0]


def encode_questions(
    examples: Sequence[TextExample], tokenizer: Subwords, max_length: int, overlap: int
) -> tuple[list[list[TokenSequence]], int]:
    """Encode each question into sequences, and count the questions that were cut.

    Neighboring windows of a context share ``overlap`` tokens, at most half of a window. A question
    has at most half of the room. The target of a window is the first and the last token of the
    first answer with a place; without an answer in the window, the first token of the sequence
    (Devlin et al., 2019, section 4.3). A pair of texts is a question without gold: -1.
    """
    questions = tokenizer.text_subwords([example.text for example in examples])
    contexts = list(dict.fromkeys(example.pair or "" for example in examples))
    tokens = dict(zip(contexts, context_tokens(tokenizer, contexts), strict=True))
    room, prefix = tokenizer.room(max_length, pair=True), len(tokenizer.pair.prefix)
    result, num_cut = [], 0
    for example, question in zip(examples, questions, strict=True):
        context = tokens[example.pair or ""]
        num_cut += len(question) > room // 2
        question = question[: room // 2]
        size = room - len(question)
        begin = prefix + len(question) + len(tokenizer.pair.middle)
        answers = example.answers if isinstance(example, Question) else None
        answer_tokens = map(context.of_answer, answers or ())
        gold = next((tokens for tokens in answer_tokens if tokens is not None), None)
        windows = []
        for first in window_starts(len(context.ids), size, overlap):
            window_ids = context.ids[first : first + size]
            ids, token_type_ids = tokenizer.build(question, window_ids)
            end = first + len(window_ids)
            start = last = -1 if answers is None else 0
            if gold is not None and first <= gold[0] and gold[1] < end:
                start, last = (begin + token - first for token in gold)
            target = {"start": [start], "end": [last]}
            starts = [begin, begin + len(window_ids)]
            windows.append(TokenSequence(example.id, ids, token_type_ids, starts, first, target))
        result.append(windows)
    return result, num_cut


def _characters(text: str, offsets: Iterable[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    bounds = np.array(list(offsets), dtype=np.int64).reshape(-1, 2)
    starts, ends = bounds[:, 0].copy(), bounds[:, 1].copy()
    spaces = is_space(text)
    inside = np.flatnonzero(~spaces)
    following = np.append(inside, len(text))[np.searchsorted(inside, starts)]
    before = np.insert(inside + 1, 0, 0)[np.searchsorted(inside, ends)]
    starts = np.minimum(following, ends)
    ends = np.maximum(before, starts)
    if not text.isascii():
        for index in np.flatnonzero(starts < ends).tolist():
            end = int(ends[index])
            while end < len(text) and unicodedata.category(text[end])[0] == "M":
                end += 1
            ends[index] = end
    return starts, ends


def is_space(text: str) -> np.ndarray:
    """Whether each character of a text is white space: [len(text)]."""
    return np.fromiter(map(str.isspace, text), bool, len(text))


def word_numbers(text: str) -> np.ndarray:
    """The number of the word of each character, from 0: [len(text)].

    Words are between white space; a letter of a script without spaces is a word.

    >>> word_numbers("to be").tolist()
    [0, 0, 0, 1, 1]
    """
    spaces = is_space(text)
    begins = ~spaces
    begins[1:] &= spaces[:-1]
    unspaced = np.zeros(len(text), dtype=bool)
    unspaced[[match.start() for match in UNSPACED.finditer(text)]] = True
    begins |= unspaced
    begins[1:] |= unspaced[:-1] & ~spaces[1:]
    numbers: np.ndarray = np.maximum(np.cumsum(begins) - 1, 0)
    return numbers
