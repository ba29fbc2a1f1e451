"""Subwords of texts and words, and sequences of them between special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain, repeat
from typing import Any

FAR = 64
"""Number of characters for each subword beyond which a text is cut before it is tokenized."""


@dataclass(frozen=True, slots=True)
class Template:
    """The special tokens around one text, or around and between two."""

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    token_types: tuple[int, ...]
    """Segment ids of prefix, first text, middle, second text, suffix (one each)."""

    @property
    def num_special(self) -> int:
        """Number of special tokens in a sequence."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)


class Subwords:
    """A tokenizer of the library tokenizers, and templates of special tokens.

    Attributes:
        backend: The ``tokenizers.Tokenizer``, without truncation and padding.
        single, pair: The special tokens of a text and of a pair.
        uses_token_types: Whether sequences have token type ids.
        leading_space: Whether the caller puts a space before each word.
        placeholder: Id that represents a word without subwords.
    """

    backend: Any
    single: Template
    pair: Template
    uses_token_types: bool
    leading_space: bool
    placeholder: int

    @classmethod
    def restored(cls, backend: Any, fields: Mapping[str, Any]) -> Subwords:
        """Restore a tokenizer from its backend and its ``fields``."""
        subwords = Subwords()
        subwords.backend = backend
        subwords.single, subwords.pair = (
            Template(*map(tuple, fields[name])) for name in ("single", "pair")
        )
        subwords.uses_token_types, subwords.leading_space, subwords.placeholder = fields["others"]
        return subwords

    def fields(self) -> dict[str, Any]:
        """The properties that the backend does not store, as JSON values."""
        return {
            "single": astuple(self.single),
            "pair": astuple(self.pair),
            "others": [self.uses_token_types, self.leading_space, self.placeholder],
        }

    def room(self, max_length: int, *, pair: bool = False) -> int:
        """The number of subwords of a text, or of two, that fit into a sequence."""
        return max_length - (self.pair if pair else self.single).num_special

    def text_subwords(self, texts: Sequence[str]) -> list[list[int]]:
        """The subword ids of each text, without special tokens."""
        encoded = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def first_subwords(
        self, texts: Sequence[str], number: int, *, last: bool = False
    ) -> list[list[int]]:
        """The first subwords of each text, at least ``number`` if it has so many.

        A text far beyond is cut before, since its subwords take hundreds of bytes each: twice
        ``number`` are found, so that the cut changes none of the first ones. ``last`` keeps the end
        of the text in place of its beginning.
        """
        subwords = self.text_subwords([_part(text, FAR * number, last) for text in texts])
        for index, text in enumerate(texts):
            size = FAR * number
            while size < len(text) and len(subwords[index]) < 2 * number:  # of white space or so
                size *= 4
                subwords[index] = self.text_subwords([_part(text, size, last)])[0]
        return subwords

    def word_subwords(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The subword ids of each word of each sentence; the placeholder if it has none."""
        raw, placeholder = self.raw_word_subwords(sentences), [self.placeholder]
        return [[ids or placeholder for ids in words] for words in raw]

    def raw_word_subwords(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The subword ids of each word of each sentence; none for words that it drops."""
        unique = list(dict.fromkeys(chain.from_iterable(sentences)))
        spaced = [" " + word for word in unique] if self.leading_space else unique
        ids_by_word = dict(zip(unique, self.text_subwords(spaced), strict=True))
        return [list(map(ids_by_word.__getitem__, words)) for words in sentences]

    def build(
        self, first: Sequence[int], second: Sequence[int] | None = None
    ) -> tuple[list[int], list[int] | None]:
        """Add the special tokens to a text or pair: (input ids, token type ids or None)."""
        template = self.single if second is None else self.pair
        parts = [template.prefix, first, template.middle, second or (), template.suffix]
        ids = list(chain.from_iterable(parts))
        if not self.uses_token_types:
            return ids, None
        token_types = map(repeat, template.token_types, map(len, parts))
        return ids, list(chain.from_iterable(token_types))


def _part(text: str, size: int, last: bool) -> str:
    return text[-size:] if last else text[:size]
