"""Texts and pairs of texts: examples of what Python gives; their sequences, cut or in windows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from finetune.data.word_splitting import split_words
from finetune.preprocessing.subwords import Subwords
from finetune.preprocessing.windows import window_starts
from finetune.types import Example, TextExample, TokenExample, TokenSequence, UserError

Input = str | Sequence[str]
"""A text; a pair of texts (for a model of pairs); or words (for a model that tags words)."""


def as_example(
    index: int,
    item: Input,
    type: type[TextExample] | type[TokenExample],
    *,
    pairs: bool | None,
    where: str = "",
) -> Example:
    """Convert an input to an example of a type; raise UserError if that is impossible.

    ``pairs`` is the field of ``TaskState``.
    """
    where = where or f"input {index}"
    item = item.tolist() if isinstance(item, np.ndarray) else item  # words in a frame of Parquet
    texts = isinstance(item, list | tuple) and all(isinstance(text, str) for text in item)
    rows = " (predict of a predictor reads rows)" if isinstance(item, Mapping) else ""
    check_prepared_characters((item,) if isinstance(item, str) else item if texts else (), where)
    if issubclass(type, TextExample):
        if isinstance(item, str):
            return check_pair(type(index, item, None, where=where), pairs)
        if not texts or len(item) != 2:
            raise UserError(f"{where}: {item!r:.60} is neither a text nor a pair of texts{rows}.")
        return check_pair(type(index, item[0], item[1], where=where), pairs)
    if isinstance(item, str):
        split, offsets = split_words(item)
        return TokenExample(index, tuple(split), text=item, offsets=tuple(offsets), where=where)
    if not texts:
        raise UserError(f"{where}: {item!r:.60} is neither a text nor a list of words{rows}.")
    return TokenExample(index, tuple(item), where=where)


def check_prepared_characters(texts: Iterable[str], where: str) -> None:
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
            f"{example.where}: this model reads single texts and got a pair: leave the second "
            "text out."
        )
    return example


def encode_texts(
    examples: Sequence[TextExample],
    tokenizer: Subwords,
    max_length: int,
    long_text: str,
    overlap: int = 0,
) -> tuple[list[list[TokenSequence]], int]:
    """Encode each text or pair into one sequence, or into windows, and count the texts cut.

    Args:
        examples: Texts or pairs of texts.
        tokenizer: Makes their subwords.
        max_length: Length of the longest sequence in tokens, special tokens included.
        long_text: The treatment of longer texts, as in ``--long-text``.
        overlap: Number of subwords that neighboring windows of a text share.
    """
    subwords = tokenizer.text_subwords
    if long_text != "window":
        subwords = partial(tokenizer.first_subwords, number=max_length)
    firsts = subwords([example.text for example in examples])
    seconds = iter(subwords([example.pair for example in examples if example.pair is not None]))
    result, num_cut = [], 0
    for example, first in zip(examples, firsts, strict=True):
        second = None if example.pair is None else next(seconds)
        room = tokenizer.room(max_length, pair=second is not None)
        size = len(first) + len(second or ())
        in_windows = min(len(first), len(second or ())) <= room // 2  # else the shorter is cut
        num_cut += size > room and not (long_text == "window" and in_windows)
        if size <= room:
            windows = [(first, second)]
        elif long_text == "window":
            windows = _windows_of(first, second, room, overlap)
        else:
            windows = [truncated(first, second, room)]
        built = [tokenizer.build(*window) for window in windows]
        result.append([TokenSequence(example.id, *b, window=k) for k, b in enumerate(built)])
    return result, num_cut


def encode_apart(
    examples: Sequence[TextExample], tokenizer: Subwords, max_length: int
) -> tuple[list[list[TokenSequence]], int]:
    """Encode each pair as a sequence: its texts, each with its special tokens, in turn.

    They are the two "words" of the sequence. The arguments are those of ``encode_texts``.
    """
    subwords = partial(tokenizer.first_subwords, number=max_length)
    firsts = subwords([example.text for example in examples])
    seconds = subwords([example.pair or "" for example in examples])
    room = tokenizer.room(max_length)
    result, num_cut = [], 0
    for example, *pair in zip(examples, firsts, seconds, strict=True):
        size = max(map(len, pair))
        num_cut += size > room
        (first, types), (second, more) = (tokenizer.build(text[:room]) for text in pair)
        both = None if types is None or more is None else types + more
        starts = [0, len(first), len(first) + len(second)]
        result.append([TokenSequence(example.id, first + second, both, starts)])
    return result, num_cut


def _windows_of(
    first: list[int], second: list[int] | None, room: int, overlap: int
) -> list[tuple[list[int], list[int] | None]]:
    second_is_longer = second is not None and len(first) <= len(second)
    long, short = (second or [], first) if second_is_longer else (first, second or [])
    short = short[: room // 2]
    size = room - len(short)
    windows = [long[start : start + size] for start in window_starts(len(long), size, overlap)]
    if second is None:
        return [(window, None) for window in windows]
    return [(short, window) if second_is_longer else (window, short) for window in windows]


def truncated(
    first: list[int], second: list[int] | None, room: int
) -> tuple[list[int], list[int] | None]:
    """Cut the end of the longer text until both fit (`longest_first` of fast tokenizers).

    If both are cut, the longer one (the second of equal ones) keeps the odd subword.
    """
    if second is None:
        return first[:room], None
    half = (room + 1) // 2 if len(first) > len(second) else room // 2
    keep = min(len(first), max(half, room - len(second)))
    return first[:keep], second[: room - keep]
