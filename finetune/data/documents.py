"""Which documents the sentences of a split name: how many, how long, and what is odd about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import mean

from finetune.data.dataset import Dataset
from finetune.data.findings import Finding, first_places
from finetune.types import Example, TokenExample


def document_notes(split: str, rows: Sequence[Example]) -> list[str]:
    """Sentences that name no document, and documents that are not in one piece, in lines."""
    return [finding.message for finding in _oddities(split, _sentences(rows))]


def check_documents(dataset: Dataset) -> Iterator[Finding]:
    """The documents of each split of words; one line where no split names any."""
    splits = {split: _sentences(rows) for split, rows in dataset.splits.items()}
    if not any(splits.values()):
        return
    if all(row.document is None for rows in splits.values() for row in rows):
        message = "no sentence names its document, which training with --context would need"
        yield Finding("info", "documents", message)
        return
    for split, rows in splits.items():
        if sizes := [len(document) for document in _runs(rows)]:
            message = (
                f"{split}: {len(sizes):,} documents of {mean(sizes):.1f} sentences on average, the "
                f"longest of {max(sizes):,}"
            )
            yield Finding("info", "documents", message)
        yield from _oddities(split, rows)


def _oddities(split: str, rows: Sequence[TokenExample]) -> Iterator[Finding]:
    if nameless := [row.where for row in rows if row.document is None]:
        message = f"{split}: {len(nameless):,} of {len(rows):,} sentences name no document"
        message += ": --context has nothing to add to them"
        yield Finding("warning", "documents", message, first_places(nameless))
    begun: set[str | None] = set()
    again = []
    for document in _runs(rows):
        if document[0].document in begun:
            again.append(document[0].where)
        begun.add(document[0].document)
    if again:
        message = f"{split}: documents go on {len(again):,} times after another one began"
        message += ": --context ends there (the sentences of a document belong together)"
        yield Finding("warning", "documents", message, first_places(again))


def _runs(rows: Sequence[TokenExample]) -> list[list[TokenExample]]:
    """The sentences of each document, as far as they stand together."""
    groups = groupby(rows, key=lambda row: row.document)
    return [list(document) for name, document in groups if name is not None]


def _sentences(rows: Sequence[Example]) -> list[TokenExample]:
    return [row for row in rows if isinstance(row, TokenExample)]
