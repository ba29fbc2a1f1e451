"""Texts, pairs of texts and words from Python as examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from finetune.data.word_splitting import split_words
from finetune.types import Example, TextExample, TokenExample, UserError

Input = str | Sequence[str]
"""A text; a pair of texts (for a model of pairs); or words (for a model that tags words)."""


def as_example(
    index: int, item: Input, *, words: bool, pairs: bool | None, where: str = ""
) -> Example:
    """Convert an input to an example; raise UserError if that is impossible.

    ``words`` says whether the model reads words. ``pairs`` is the field of ``TaskRecord``.
    """
    where = where or f"input {index}"
    texts = isinstance(item, list | tuple) and all(isinstance(text, str) for text in item)
    check_characters((item,) if isinstance(item, str) else item if texts else (), where)
    if not words:
        if isinstance(item, str):
            return check_pair(TextExample(index, item, None, where=where), pairs)
        if not texts or len(item) != 2:
            raise UserError(f"{where}: {item!r:.60} is neither a text nor a pair of texts.")
        return check_pair(TextExample(index, item[0], item[1], where=where), pairs)
    if isinstance(item, str):
        split, offsets = split_words(item)
        return TokenExample(index, tuple(split), text=item, offsets=tuple(offsets), where=where)
    if not texts:
        raise UserError(f"{where}: {item!r:.60} is neither a text nor a list of words.")
    return TokenExample(index, tuple(item), where=where)


def check_characters(texts: Iterable[str], where: str) -> None:
    """Raise UserError for a text with half of a surrogate pair, which is no text of Unicode."""
    for text in texts:
        if re.search("[\ud800-\udfff]", text):
            raise UserError(f"{where}: {text!r:.60} is not valid UTF-8: convert it.")


def check_pair(example: TextExample, pairs: bool | None) -> TextExample:
    """Raise UserError for one text if the model compares pairs, and for a pair if it does not."""
    if pairs is True and example.pair is None:
        raise UserError(
            f"{example.where}: this model compares two texts and got one: give the second, with "
            "--pair or in a column text_pair (in Python as (text, text))."
        )
    if pairs is False and example.pair is not None:
        raise UserError(
            f"{example.where}: this model was trained on single texts and got a pair: leave the "
            "second text out."
        )
    return example
