"""Pairs of a text and its entities, as spaCy's examples are made
(https://spacy.io/usage/training#training-data)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from finetune.annotation.rows import LEFT_OUT, AnnotatedRow, Omissions, outermost


def is_pair(value: Any) -> bool:
    """Whether a JSON value is ``["Ann ran", {"entities": [[0, 3, "PER"]]}]``."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict)


def write_pairs(rows: Sequence[AnnotatedRow], omitted: Omissions) -> Iterator[list[Any]]:
    """Yield the pair of each row with spans; of spans that overlap the outermost."""
    for row in rows:
        if row.example.spans is None:
            omitted["without tags or spans", LEFT_OUT].append(row.name)
            continue
        if row.others or row.example.key is not None:
            omitted["with an id or other columns", "they are not written"].append(row.name)
        spans = row.character_spans
        kept = outermost(spans)
        if len(kept) < len(spans):
            omitted["with spans that overlap", "the outermost are written"].append(row.name)
        yield [row.example.text, {"entities": [list(span) for span in kept]}]
