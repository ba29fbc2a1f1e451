"""A data set in memory, its fingerprint, and the texts and labels of its examples."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unicodedata import normalize

from finetune.types import Example, TextExample, TokenExample, UserError

WITHOUT_LEAKS = "_without_leaks"
"""Suffix of a split for the scores of its examples whose texts are not in train."""
ANSWERABLE, UNANSWERABLE = "answer", "no answer"
"""The labels of questions with and without an answer in their context."""


class DataError(UserError):
    """An error in the user's data; the message names file, line, and the correction."""


class WordsNotTexts(DataError):
    """The data are words where texts are read."""


@dataclass
class Dataset:
    """A data set in memory.

    Attributes:
        splits: Examples by split (``train``, ``validation``, ``test``, …). The ``id`` of an example
            is its index.
        fingerprint: SHA-256 of the content of the examples. Machine and file format do not change
            it.
        notes: Sentences for people: what was converted, left out or chosen while reading.
        format: Formats of the files, ``hub`` or ``save_to_disk``.
        label_order: Names of the classes in the order of their numbers, if the data number them
            (``ClassLabel`` of `datasets`).
        pinned: The ``--data`` value that reads the same commit of a hub data set again.
    """

    name: str
    splits: dict[str, list[Any]]  # all TextExample or all TokenExample
    fingerprint: str = ""
    notes: list[str] = field(default_factory=list)
    format: str = ""
    label_order: tuple[str, ...] = ()
    pinned: str | None = None

    def __post_init__(self) -> None:
        """Compute the fingerprint unless it is given."""
        if not self.fingerprint:
            self.fingerprint = fingerprint(self.splits)

    @property
    def training_fingerprint(self) -> str:
        """The fingerprint of all splits but test splits, which do not influence training."""
        return fingerprint({n: rows for n, rows in self.splits.items() if not n.startswith("test")})

    def with_splits(self, splits: dict[str, list[Any]]) -> Dataset:
        """Return the data set with other examples, and so with another fingerprint."""
        return dataclasses.replace(self, splits=splits, fingerprint="")


def fingerprint(splits: Mapping[str, Sequence[Example]]) -> str:
    """Return the hexadecimal SHA-256 of the content of all examples, in order; splits by name."""
    digest = hashlib.sha256()
    for split in sorted(splits):
        digest.update(f"\x00{split}\n".encode())
        for example in splits[split]:
            digest.update(json.dumps(_content(example), separators=(",", ":")).encode())
            digest.update(b"\n")
    return digest.hexdigest()


def _content(example: Example) -> list[Any]:
    if isinstance(example, TextExample):
        content: list[Any] = ["text", example.text, example.pair, example.label]
        if example.answers is not None:
            return [*content, example.answers]
        if example.choices:
            return [*content, example.choices]
        if example.targets is not None:
            return [*content, example.negative, example.document, example.targets]
        if example.document is not None:
            return [*content, example.negative, example.document]
        return content if example.negative is None else [*content, example.negative]
    gold = [example.spans, example.tags]
    content = ["token", example.words, *gold, example.document, example.text, example.offsets]
    if example.relations is not None:
        content.append(example.relations)
    if example.targets:
        targets = [(t.start, t.end, t.lemma, t.pos, t.senses) for t in example.targets]
        return [*content, example.unreachable, targets]
    return [*content, example.unreachable] if example.unreachable else content


def texts_of(example: Example) -> list[str]:
    """Return the text, or both texts of a pair, with choices, or the words joined by blanks."""
    if isinstance(example, TokenExample):
        return [" ".join(example.words)]
    texts = [example.text] if example.pair is None else [example.text, example.pair]
    return [*texts, *example.choices]


def normalized_texts(example: Example) -> tuple[str, ...]:
    """Return the texts of an example without differences of case, width and white space."""
    return tuple(
        " ".join((text if text.isascii() else normalize("NFKC", text)).casefold().split())
        for text in texts_of(example)
    )


def gold_labels(example: Example) -> list[str] | None:
    """Return the labels of an example, None without gold: of its relations, spans or words.

    A question has the label ``ANSWERABLE`` or ``UNANSWERABLE``.
    """
    if isinstance(example, TokenExample):
        if example.relations is not None:
            return [relation.label for relation in example.relations]
        if example.spans is not None:
            return [span.label for span in (*example.spans, *example.unreachable)]
        return None if example.tags is None else list(example.tags)
    if example.answers is not None:
        return [ANSWERABLE if example.answers else UNANSWERABLE]
    if example.label is None:
        return None
    return list(example.label) if isinstance(example.label, tuple) else [str(example.label)]


def numbered_order(labels: Collection[str], order: Sequence[str]) -> list[str]:
    """Return labels in the order of their numbers; empty if they are not all in ``order``."""
    return [name for name in order if name in labels] if {*labels} <= {*order} else []


def renumbered(examples: Sequence[Example]) -> list[Example]:
    """Return the examples with ``id`` = index."""
    return [dataclasses.replace(example, id=index) for index, example in enumerate(examples)]
