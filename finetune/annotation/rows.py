"""Annotated rows, with their annotator and the columns besides their gold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from finetune.data.spans import words_to_chars
from finetune.types import Span, TextExample, TokenExample, abbreviated, quantity

ANNOTATORS = ("_annotator_id", "annotator", "_session_id")
"""Columns that name the annotator of a row."""
Omissions = defaultdict[tuple[str, str], list[str]]
"""Names of the rows that a format cannot hold in full, by a problem and its consequence."""
LEFT_OUT = "left out"
"""Consequence for rows that a format cannot hold at all."""


@dataclass(frozen=True)
class AnnotatedRow:
    """A text with labels, or words with tags or spans, as one annotator or model labeled it.

    ``others`` are the values of the columns that the example does not hold. ``predicted`` says that
    a model gave the labels.
    """

    example: Any
    """A ``TextExample`` or ``TokenExample``."""
    others: Mapping[str, Any]
    annotator: str | int | None = None
    predicted: bool = False

    @property
    def name(self) -> str:
        """The id of the row, else its location."""
        key = self.example.key
        return str(key) if key is not None else self.example.where.split(":")[-1]

    @property
    def texts(self) -> dict[str, Any]:
        """The text by its column, and the second one of a pair."""
        texts = {"text": self.example.text}
        if isinstance(self.example, TextExample) and self.example.pair is not None:
            texts["text_pair"] = self.example.pair
        return texts

    @property
    def character_spans(self) -> list[Span]:
        """The spans of a text, in characters."""
        spans = words_to_chars(self.example.offsets or (), self.example.spans or ())
        return sorted([*spans, *self.example.misaligned])

    @property
    def relations(self) -> list[dict[str, Any]] | None:
        """The relations between spans, as indices of ``character_spans`` if there is a text, else
        of the spans in words; None without gold."""
        example = self.example
        if example.relations is None:
            return None
        spans: Sequence[Span] = example.spans or ()
        index = {span: number for number, span in enumerate(spans)}
        if example.text is not None:
            chars = words_to_chars(example.offsets or (), spans)
            numbers = map(self.character_spans.index, chars)
            index = dict(zip(spans, numbers, strict=True))
        return [
            {"subject": index[subject], "object": index[object], "label": label}
            for subject, object, label in example.relations
            if subject in index and object in index
        ]


class Annotations(NamedTuple):
    """The rows of a file, ``text`` (with labels) or ``tokens`` (with tags or spans), and notes."""

    input_type: Literal["text", "tokens"]
    rows: list[AnnotatedRow]
    notes: list[str]


def counted(names: Sequence[Any], which: str, what: str) -> Iterator[str]:
    """Yield a line about rows, with their ids or lines; nothing if there are no rows."""
    if names:
        yield f"{quantity(len(names), 'row')} {which}: {what} ({abbreviated(map(str, names), 6)})"


def merged(
    row: AnnotatedRow, values: Mapping[str, Any], last: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Join the id, values, other columns and last values of a row."""
    example = row.example
    joined: dict[str, Any] = {} if example.key is None else {"id": example.key}
    joined |= values
    if isinstance(example, TokenExample) and example.document is not None:
        joined["document"] = example.document
    for name, value in row.others.items():
        while name in joined or name in last:
            name = f"input_{name}"
        joined[name] = value
    return {**joined, **last}


def with_text(row: AnnotatedRow) -> AnnotatedRow:
    """Give the words of a row a text, joined by blanks if it has none."""
    example = row.example
    if example.text is None:
        ends = accumulate(len(word) + 1 for word in example.words)
        pairs = zip(example.words, ends, strict=True)
        offsets = tuple((end - 1 - len(word), end - 1) for word, end in pairs)
        example = replace(example, text=" ".join(example.words), offsets=offsets)
    return replace(row, example=example)
