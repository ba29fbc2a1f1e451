"""What is read around a sentence: words of the sentences next to it in its document.

Schweter & Akbik (2020, FLERT) put 64 subtokens of the document on either side of a sentence, Zhong
& Chen (2021, PURE) fill both sides up to a window of so many words. Both take the words as running
text, without separators, stop at the borders of the document, and learn and answer the sentence in
the middle alone.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from finetune.config.tasks import NerConfig, TagConfig, TrainConfig, max_context_subwords
from finetune.data import DataError, Dataset, document_notes
from finetune.preprocessing.tokenizer import LONGEST
from finetune.types import TokenExample

HOW_TO_NAME = (
    "-DOCSTART- lines (CoNLL columns), # newdoc lines (CoNLL-U), or a column `document` (all "
    "others; --columns document=NAME where it is called something else)"
)
"""How data say which sentences stand together."""


def fill(before: Sequence[int], after: Sequence[int], spare: int, most: int) -> tuple[int, int]:
    """How many words to read before and after a sentence that leaves room for ``spare`` pieces.

    ``before`` and ``after`` are the pieces of each word, outward from the sentence. A side gets at
    most ``most`` pieces. It gets half of the room, or more where the other has too few to fill its
    half; what then remains goes word by word to the side with fewer pieces, if it fits.
    """
    sums = [[0, *accumulate(side)] for side in (before, after)]
    sums = [side[: bisect_right(side, most)] for side in sums]  # the pieces of 0, 1, 2, … words
    halves = (max(spare // 2, spare - sums[other][-1]) for other in (1, 0))
    words = [bisect_right(side, half) - 1 for side, half in zip(sums, halves, strict=True)]
    pieces = [side[number] for side, number in zip(sums, words, strict=True)]
    while fitting := [
        side
        for side in (0, 1)
        if words[side] + 1 < len(sums[side])
        and sums[side][words[side] + 1] + pieces[1 - side] <= spare
    ]:
        side = min(fitting, key=pieces.__getitem__)
        words[side] += 1
        pieces[side] = sums[side][words[side]]
    return words[0], words[1]


def surrounded(examples: Iterable[TokenExample], reach: int) -> Iterator[TokenExample]:
    """The same examples, in order, each with the sentences next to it in its document.

    A document is a run of examples that name the same one; an example without a document stands
    alone. On either side sentences are given up to the one with the ``reach``-th word, so that a
    stream is read no further ahead than that.
    """
    for document, sentences in groupby(examples, key=lambda example: example.document):
        if document is not None:
            sentences = _around(sentences, reach)
        yield from sentences


def _around(sentences: Iterable[TokenExample], reach: int) -> Iterator[TokenExample]:
    """``surrounded`` for the sentences of one document."""
    before: deque[tuple[str, ...]] = deque()
    coming: deque[TokenExample] = deque()  # a sentence, and those after it that were read
    num_coming = 0

    def first() -> TokenExample:
        nonlocal num_coming
        sentence = coming.popleft()
        num_coming -= _size(sentence.words)
        after = _up_to(reach, (other.words for other in coming))
        placed = replace(sentence, before=tuple(before), after=after)
        if sentence.words:
            before.append(sentence.words)
            kept = len(_up_to(reach, reversed(before)))
            while len(before) > kept:
                before.popleft()
        return placed

    for sentence in sentences:
        coming.append(sentence)
        num_coming += _size(sentence.words)
        while num_coming - _size(coming[0].words) >= reach:
            yield first()
    while coming:
        yield first()


def _size(words: Sequence[str]) -> int:
    """The words of a sentence; empty ones count too, so that a stream of them is not kept."""
    return max(1, len(words))


def _up_to(reach: int, sentences: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """The first sentences, without empty ones, up to that with the ``reach``-th word."""
    found, total = [], 0
    for words in sentences:
        if total >= reach:
            break
        if words:
            found.append(words)
            total += len(words)
    return tuple(found)


def read_in_context(
    examples: Iterable[TokenExample], config: TrainConfig, max_length: int
) -> Iterator[TokenExample]:
    """The same examples, with the sentences around them if ``--context`` asks for them."""
    limit = 0
    if isinstance(config, NerConfig | TagConfig):
        limit = max_context_subwords(config.context, max_length)
    return surrounded(examples, limit) if limit else iter(examples)


def in_documents(config: TagConfig | NerConfig, data: Dataset) -> Dataset:
    """The data with what stands around each sentence, if the task is to read that.

    Sentences without gold are context as well: call it before they are left out. Raises DataError
    for a split that names no documents, and for training data in which all have one sentence.
    """
    # A word has one subword or more.
    reach = max_context_subwords(config.context, config.max_length or LONGEST)
    if not reach:
        return data
    splits = {split: list(surrounded(rows, reach)) for split, rows in data.splits.items()}
    notes = list(data.notes)
    for split, rows in splits.items():
        if all(row.document is None for row in rows):
            raise DataError(
                f"--context {config.context}: no sentence of {split} in {data.name} names its "
                f"document: write {HOW_TO_NAME}, or leave --context out."
            )
        notes += document_notes(split, rows)
    if not any(row.before or row.after for row in splits.get("train", ())):
        raise DataError(
            f"--context {config.context}: each document of train in {data.name} has one sentence, "
            f"so there is nothing to read around it: leave --context out."
        )
    return replace(data, splits=splits, notes=notes)


def context_facts(examples: Sequence[TokenExample]) -> str:
    """All that stands around examples, as text to be hashed: each sentence once."""
    numbers: dict[tuple[str, ...], int] = {}
    around = [
        [
            [numbers.setdefault(words, len(numbers)) for words in side]
            for side in (e.before, e.after)
        ]
        for e in examples
    ]
    return json.dumps([list(numbers), around])
