"""Examples dealt into folds, so that what belongs together is never learned from and asked both."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from finetune.data.dataset import DataError
from finetune.data.duplicates import text_key
from finetune.types import Example, TextExample, TokenExample

LONG = 10
"""Words from which a sentence that two documents share joins them; shorter ones ("Results :") say
nothing, and would join most documents of a corpus."""


def assign_folds(examples: Sequence[Example], number: int, seed: int = 0) -> list[int]:
    """The fold of each example, from 0.

    Examples of one document, and those of one text (case and white space evened out; in documents
    from ``LONG`` words on), share a fold. Folds are of nearly equal size, and of nearly equal
    shares of each label where examples have one label each. Raises DataError where there are fewer
    groups than folds.
    """
    groups = list(_groups(examples))
    if len(groups) < number:
        raise DataError(
            f"--folds {number}: the data have only {len(groups)} documents or different texts: "
            "write a smaller number."
        )
    random.Random(seed).shuffle(groups)
    groups.sort(key=len, reverse=True)
    sizes: Counter[int] = Counter()
    labels: Counter[tuple[int, str]] = Counter()
    folds = [0] * len(examples)
    for group in groups:
        label = _label(examples[group[0]])
        fold = min(range(number), key=lambda fold: (labels[fold, label], sizes[fold], fold))
        labels[fold, label] += len(group)
        sizes[fold] += len(group)
        for index in group:
            folds[index] = fold
    return folds


def _label(example: Example) -> str:
    return str(example.label) if isinstance(example, TextExample) else ""


def _groups(examples: Sequence[Example]) -> Iterator[list[int]]:
    """Places of the examples that belong together."""
    parent = list(range(len(examples)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[str, ...], int] = {}
    for index, example in enumerate(examples):
        for key in _keys(example):
            parent[root(index)] = root(first.setdefault(key, index))
    members: defaultdict[int, list[int]] = defaultdict(list)
    for index in range(len(examples)):
        members[root(index)].append(index)
    yield from members.values()


def _keys(example: Example) -> Iterator[tuple[str, ...]]:
    """What an example shares with those of its group."""
    document = example.document if isinstance(example, TokenExample) else None
    if document is not None:
        yield "document", document
    if document is None or (isinstance(example, TokenExample) and len(example.words) >= LONG):
        yield "text", *text_key(example)
