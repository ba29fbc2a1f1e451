"""Annotated rows, with their annotator and the columns besides their gold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Literal, NamedTuple, Self

from finetune.data.spans import words_to_chars
from finetune.data.word_splitting import split_words
from finetune.types import Span, TextExample, TokenExample, abbreviated, quantity

ANNOTATORS = ("_annotator_id", "annotator", "_session_id")
"""Columns that name the annotator of a row."""
Omissions = defaultdict[tuple[str, str], list[str]]
"""Names of the rows that a format cannot hold in full, by a problem and its consequence."""
LEFT_OUT = "left out"
"""Consequence for rows that a format cannot hold at all."""
OTHER_COLUMNS = ("with columns besides words and labels", "the other columns are not written")
"""Problem and consequence of rows that lose columns."""


@dataclass(frozen=True)
class AnnotatedRow:
    """A text with labels, or words with tags or spans, as one annotator or model labeled it.

    ``others`` are the values of the columns that the example does not hold. ``predicted`` says that
    a model gave the labels.
    """

    example: Any
    others: Mapping[str, Any]
    annotator: str | int | None = None
    predicted: bool = False

    document: ClassVar[str | None] = None
    """The name of the document that the words are from."""
    words: ClassVar[Sequence[str]] = ()
    """The words, of a row of words."""

    @property
    def texts(self) -> dict[str, Any]:
        """The text by its column, and the second one of a pair."""
        return {"text": self.example.text}

    @property
    def name(self) -> str:
        """The id of the row, else its location."""
        known = self.example.key
        return str(known) if known is not None else ":".join(self.example.where.split(":")[-1:])

    def as_text(self) -> Self:
        """Give the words of a row a text: they are joined by blanks if it has none."""
        return self


class TextRow(AnnotatedRow):
    """A text, or a pair of texts, with a label, several labels or a number."""

    example: TextExample

    @property
    def kind(self) -> str | None:
        """The kind of the gold: ``label``, ``labels`` or ``number``; None without gold."""
        names = {type(None): None, float: "number", tuple: "labels"}
        return names.get(type(self.example.label), "label")

    @property
    def gold(self) -> Any:
        """The label."""
        return self.example.label

    @property
    def texts(self) -> dict[str, Any]:
        """The text by its column, and the second one of a pair."""
        both = {"text": self.example.text, "text_pair": self.example.pair}
        return {name: text for name, text in both.items() if text is not None}


class WordRow(AnnotatedRow):
    """Words, perhaps of a text, with tags or spans."""

    example: TokenExample

    @property
    def kind(self) -> str | None:
        """The kind of the gold: ``spans`` or ``tags``; None without gold."""
        if self.example.spans is not None:
            return "spans"
        return None if self.example.tags is None else "tags"

    @property
    def gold(self) -> Any:
        """The spans in characters of the text, else the tags."""
        return self.example.tags if self.example.spans is None else tuple(self.character_spans)

    @property
    def words(self) -> Sequence[str]:  # type: ignore[override]
        """The words."""
        return self.example.words

    @property
    def document(self) -> str | None:  # type: ignore[override]
        """The name of the document that the words are from."""
        return self.example.document

    @property
    def character_spans(self) -> list[Span]:
        """The spans of a text, in characters."""
        example = self.example
        spans = words_to_chars(example.offsets or (), example.spans or ())
        return sorted([*spans, *example.unreachable])

    @property
    def relations(self) -> list[dict[str, Any]] | None:
        """The relations between spans, as indices of ``character_spans`` if there is a text, else
        of the spans in words; None without gold."""
        example = self.example
        if example.relations is None:
            return None
        spans: Sequence[Span] = example.spans or ()
        if example.text is not None:
            chars = words_to_chars(example.offsets or (), spans)
            numbers = [self.character_spans.index(span) for span in chars]
        else:
            numbers = list(range(len(spans)))
        index = dict(zip(spans, numbers, strict=True))
        return [
            {"subject": index[one.subject], "object": index[one.object], "label": one.label}
            for one in example.relations
            if one.subject in index and one.object in index
        ]

    def as_text(self) -> Self:
        """Give the words of a row a text: they are joined by blanks if it has none."""
        words = self.example.words
        if self.example.text is not None:
            return self
        ends = accumulate(len(word) + 1 for word in words)
        pairs = zip(words, ends, strict=True)
        offsets = tuple((end - 1 - len(word), end - 1) for word, end in pairs)
        return replace(self, example=replace(self.example, text=" ".join(words), offsets=offsets))


class Annotations(NamedTuple):
    """The rows of a file, ``text`` (with labels) or ``tokens`` (with tags or spans), and notes."""

    kind: Literal["text", "tokens"]
    rows: list[Any]
    notes: list[str]


def counted(names: Sequence[Any], which: str, what: str) -> Iterator[str]:
    """Yield a line about rows, with their ids or lines; nothing if there are no rows."""
    if names:
        yield f"{quantity(len(names), 'row')} {which}: {what} ({abbreviated(map(str, names), 6)})"


def merged(
    row: AnnotatedRow, values: Mapping[str, Any], last: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Join the id, values, other columns and last values of a row."""
    known = {} if row.example.key is None else {"id": row.example.key}
    joined: dict[str, Any] = {**known, **values}
    if row.document is not None:
        joined["document"] = row.document
    for name, value in row.others.items():
        while name in joined or name in last:
            name = f"input_{name}"
        joined[name] = value
    return {**joined, **last}


def labeled(row: TextRow) -> dict[str, Any]:
    """The texts of a row with its label, if it has one."""
    return row.texts | ({} if row.gold is None else {"label": row.gold})


def omit_votes(rows: Sequence[TextRow], omitted: Omissions) -> None:
    """Count rows with votes, of which a format holds the majority."""
    names = [row.name for row in rows if row.example.votes]
    if names:
        omitted["with votes of annotators", "the label of the majority is written"] = names


def omit_relations(rows: Sequence[WordRow], omitted: Omissions) -> None:
    """Count rows with relations, which a format cannot hold."""
    names = [row.name for row in rows if row.example.relations]
    if names:
        omitted["with relations between spans", "the relations are not written"] = names


def omit_invisible(rows: Sequence[WordRow], omitted: Omissions) -> None:
    """Count rows with words that begin or end with a character that no reader of a text sees."""
    names = [row.name for row in rows if not all(map(_is_visible, row.words))]
    if names:
        what = "a reader of their text leaves these characters out of its words"
        omitted["with words that begin or end with invisible characters", what] = names


def _is_visible(word: str) -> bool:
    offsets = split_words(word)[1]
    return not word or (bool(offsets) and (offsets[0][0], offsets[-1][1]) == (0, len(word)))


def tokens_of(example: TokenExample) -> list[dict[str, Any]]:
    """The words of a text with their characters, as Prodigy has them."""
    return [
        {"text": word, "start": start, "end": end, "id": number}
        for number, (word, (start, end)) in enumerate(
            zip(example.words, example.offsets or (), strict=True)
        )
    ]


def with_text(row: WordRow, omitted: Omissions) -> WordRow:
    """Add a text to a row, and drop and count spans of empty words."""
    row = row.as_text()
    example = row.example
    if not example.spans:
        return row
    places = words_to_chars(example.offsets or (), example.spans)
    pairs = zip(example.spans, places, strict=True)
    kept = tuple(span for span, place in pairs if place.start < place.end)
    if len(kept) == len(example.spans):
        return row
    omitted["with spans of empty words", "these spans are not written"].append(row.name)
    return replace(row, example=replace(example, spans=kept))


def outermost(spans: Iterable[Span]) -> list[Span]:
    """Of spans that overlap, the first and longest."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return kept
