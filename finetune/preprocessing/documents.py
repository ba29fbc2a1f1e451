"""Documents around the sentences of training data, and what is refused or told about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from finetune.config.context import most_pieces
from finetune.config.tasks import NerConfig, TagConfig
from finetune.data import DataError, Dataset, document_notes
from finetune.preprocessing.context import surrounded
from finetune.preprocessing.tokenizer import LONGEST
from finetune.types import TokenExample

HOW_TO_NAME = (
    "-DOCSTART- lines (CoNLL columns), # newdoc lines (CoNLL-U), or a column `document` (all "
    "others; --columns document=NAME where it is called something else)"
)
"""How data say which sentences stand together."""


def in_documents(config: TagConfig | NerConfig, data: Dataset) -> Dataset:
    """The data with what stands around each sentence, if the task is to read that.

    Sentences without gold are context as well: call it before they are left out. Raises DataError
    for a split that names no documents, and for training data in which all have one sentence.
    """
    reach = most_pieces(config.context, config.max_length or LONGEST)  # a word is a piece or more
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
