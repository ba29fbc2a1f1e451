"""Document context: the words of neighboring sentences that a model reads around each sentence.

Schweter & Akbik (2020, FLERT) add 64 subwords of the document on each side of a sentence. Zhong &
Chen (2021, PURE) fill both sides up to a window of a fixed number of words. Both read the words as
running text without separators, stop at the borders of the document, and train and predict only the
sentence in the middle.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, groupby, islice

from finetune.config.tasks import WordConfig, max_context_subwords
from finetune.data import DataError, Dataset, document_notes
from finetune.data.examples import Examples
from finetune.preprocessing.tokenizer import LONGEST
from finetune.types import TokenExample


def fill(before: Sequence[int], after: Sequence[int], spare: int, most: int) -> tuple[int, int]:
    """Compute how many words around a sentence fit into ``spare`` subwords: before, and after.

    ``before`` and ``after`` are the numbers of subwords of each word, outward from the sentence. A
    side gets at most ``most`` subwords: half of the room, or more if the other side cannot fill its
    half. The rest goes word by word to the side with fewer subwords.
    """
    sums = [[0, *accumulate(side)] for side in (before, after)]
    sums = [side[: bisect_right(side, most)] for side in sums]  # subwords of 0, 1, 2, … words
    halves = (max(spare // 2, spare - sums[other][-1]) for other in (1, 0))
    words = [bisect_right(side, half) - 1 for side, half in zip(sums, halves, strict=True)]
    subwords = [side[number] for side, number in zip(sums, words, strict=True)]
    while fitting := [
        side
        for side in (0, 1)
        if words[side] + 1 < len(sums[side])
        and sums[side][words[side] + 1] + subwords[1 - side] <= spare
    ]:
        side = min(fitting, key=subwords.__getitem__)
        words[side] += 1
        subwords[side] = sums[side][words[side]]
    return words[0], words[1]


def surrounded(
    examples: Iterable[TokenExample], reach: int, *, keep: bool = False
) -> Iterator[TokenExample]:
    """Add to each example, in order, the sentences around it in its document.

    A document is a run of examples with the same document name. Each side gets whole sentences
    until they have ``reach`` words, so a stream is read no further ahead. With ``keep``, an example
    that has sentences around it keeps them.
    """
    for document, sentences in groupby(examples, key=lambda example: example.document):
        if document is None:
            yield from sentences
            continue
        before: deque[tuple[str, ...]] = deque()
        coming: deque[TokenExample] = deque()  # a sentence and those read after it
        for sentence in chain(sentences, [None]):
            if sentence is not None:
                coming.append(sentence)
            while coming and (
                sentence is None
                or sum(max(1, len(other.words)) for other in islice(coming, 1, None)) >= reach
            ):
                middle = coming.popleft()
                after = _up_to(reach, (other.words for other in coming))
                has_context = keep and (middle.before or middle.after)
                yield middle if has_context else replace(middle, before=tuple(before), after=after)
                if middle.words:
                    before.append(middle.words)
                    while len(before) > len(_up_to(reach, reversed(before))):
                        before.popleft()


def _up_to(reach: int, sentences: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    gathered, total = [], 0
    for words in sentences:
        if words and total < reach:
            gathered.append(words)
            total += len(words)
    return tuple(gathered)


def context_text(examples: Sequence[TokenExample]) -> str:
    """The context of all examples as text for a hash, each sentence once."""
    numbers: dict[tuple[str, ...], int] = {}
    around = [
        [[numbers.setdefault(words, len(numbers)) for words in s] for s in (e.before, e.after)]
        for e in examples
    ]
    return json.dumps([list(numbers), around])


def in_documents(config: WordConfig, data: Dataset) -> Dataset:
    """Add to each example of a data set the sentences around it if ``--context`` is set.

    Sentences without gold are context too: call this before they are dropped. Raises DataError for
    a split without documents, and if every training document has one sentence.
    """
    reach = max_context_subwords(config.context, config.max_length or LONGEST)  # in words
    if not reach:
        return data
    splits = {split: Examples(surrounded(rows, reach)) for split, rows in data.splits.items()}
    notes = list(data.notes)
    for split, rows in splits.items():
        if all(row.document is None for row in rows):
            raise DataError(
                f"--context {config.context}: no sentence of {split} in {data.name} names its "
                "document: add -DOCSTART- lines (CoNLL columns), # newdoc lines (CoNLL-U) or a "
                "column `document` (other formats; --columns document=NAME for another name), or "
                "leave --context out."
            )
        notes += document_notes(split, rows)
    if not any(row.before or row.after for row in splits.get("train", Examples())):
        raise DataError(
            f"--context {config.context}: each document of train in {data.name} has one sentence, "
            f"so there is no context: leave --context out."
        )
    return replace(data, splits=splits, notes=notes)
