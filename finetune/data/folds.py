"""Folds for cross-validation that keep related examples (documents, equal texts) together."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from finetune.data.dataset import DataError, normalized_texts
from finetune.types import Example, TextExample, TokenExample

MIN_SHARED_WORDS = 10
"""Number of words from which a sentence that two documents share joins them. Shorter ones
("Results :") would join most documents of a corpus."""


def assign_folds(examples: Sequence[Example], number: int, seed: int = 0) -> list[int]:
    """Return the fold of each example, from 0.

    Examples of one document, and those of one text (ignoring case and white space; in documents
    from ``MIN_SHARED_WORDS`` words on), share a fold. Folds have nearly equal sizes, and nearly
    equal fractions of each label if examples have one label each.
    """
    groups = list(_groups(examples))
    if len(groups) < number:
        problem = f"the data have only {len(groups)} documents or different texts"
        raise DataError(f"--folds {number}: {problem}: write a smaller number.")
    random.Random(seed).shuffle(groups)
    groups.sort(key=len, reverse=True)
    sizes: Counter[int] = Counter()
    labels: Counter[tuple[int, str]] = Counter()
    folds = [0] * len(examples)
    for group in groups:
        first = examples[group[0]]
        label = str(first.label) if isinstance(first, TextExample) else ""
        fold = min(range(number), key=lambda fold: (labels[fold, label], sizes[fold], fold))
        labels[fold, label] += len(group)
        sizes[fold] += len(group)
        for index in group:
            folds[index] = fold
    return folds


def _groups(examples: Sequence[Example]) -> Iterator[list[int]]:
    """Yield the indices of examples that share a key, directly or through others (union-find)."""
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
    document = example.document if isinstance(example, TokenExample) else None
    if document is not None:
        yield "document", document
    long = isinstance(example, TokenExample) and len(example.words) >= MIN_SHARED_WORDS
    if document is None or long:
        yield "text", *normalized_texts(example)
