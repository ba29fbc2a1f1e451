"""Rows of doccano (https://doccano.github.io/doccano/tutorial/), with labels or spans.

doccano counts UTF-16 code units (https://github.com/doccano/doccano/issues/2290), in which an emoji
has two. Its exports are known by the column ``Comments`` or by ``start_offset``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from finetune.annotation.rows import AnnotatedRow, merged
from finetune.types import DataError, TextExample

COMMENTS = "Comments"
"""Column of every export of doccano."""
_ENDS = ("start_offset", "end_offset")


def read_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Convert spans in ``label`` or ``entities`` to characters, and relations to their indices."""
    values = dict(row)
    if isinstance(row.get("data"), str) and "text" not in row:
        values["text"] = values.pop("data")
    text = values.get("text")
    for column in ("label", "entities"):
        spans = values.get(column)
        if not isinstance(text, str) or not isinstance(spans, list) or not spans:
            continue
        listed = all(isinstance(span, list) and len(span) == 3 for span in spans)
        named = all(isinstance(span, dict) and "start_offset" in span for span in spans)
        if named or (listed and COMMENTS in row):
            ends = [span[:2] if listed else [span.get(key) for key in _ENDS] for span in spans]
            names = [span[2] if listed else span.get("label") for span in spans]
            positions = _characters(text, ends, where)
            values[column] = [[*pair, name] for pair, name in zip(positions, names, strict=True)]
    if "entities" in values and values.get("relations"):
        values["relations"] = _relations(values["relations"], row["entities"])
    return values


def _characters(text: str, ends: list[Any], where: str) -> list[list[int]]:
    positions = {unit: index for index, unit in enumerate(utf16_positions(text))}
    pairs = [[positions.get(end) if type(end) is int else None for end in pair] for pair in ends]
    if any(None in pair for pair in pairs):
        raise DataError(
            f"{where}: a span begins or ends within a character or outside the text: doccano "
            "counts UTF-16 code units (an emoji is two); for others remove the column "
            f"{COMMENTS!r} or write start and end in place of start_offset and end_offset."
        )
    return [[int(end) for end in pair if end is not None] for pair in pairs]


def _relations(relations: Any, entities: Any) -> list[dict[str, Any]]:
    index = {entity["id"]: number for number, entity in enumerate(entities)}
    return [
        {"subject": index[one["from_id"]], "object": index[one["to_id"]], "label": one["type"]}
        for one in relations
    ]


def write_row(row: AnnotatedRow) -> dict[str, Any]:
    """Convert a text with labels, or words with spans in UTF-16 code units."""
    example, values = row.example, row.texts
    if isinstance(example, TextExample):
        if example.label is not None:
            values["label"] = example.label
    elif example.spans is not None:
        units = utf16_positions(example.text or "")
        values["label"] = [
            [units[start], units[end], label] for start, end, label in row.character_spans
        ]
    return merged(row, values, {COMMENTS: []})


def utf16_positions(text: str) -> list[int]:
    """Number of UTF-16 code units before each character, and of all.

    >>> utf16_positions("a😀b")
    [0, 1, 3, 4]
    """
    return [0, *accumulate(1 + (character > "\uffff") for character in text)]
