"""Annotated data of any format, with the annotator of each row and the columns besides its gold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from finetune.config.values import conforms
from finetune.data import texts, token_records, tokens
from finetune.data.conll import looks_like_conll
from finetune.data.dataset import DataError
from finetune.data.files import UTF_8, DataFile, ReadOptions, Record
from finetune.data.formats import open_data, open_text_table, read_file
from finetune.data.json_rows import ANNOTATORS, SKIPPED_ANSWERS
from finetune.data.labels import convert_labels
from finetune.data.spans import words_to_chars
from finetune.data.tables import Table, check_columns
from finetune.data.tag_conversion import to_bio
from finetune.data.token_records import TokenRecord, guess_columns, token_record
from finetune.types import Span, TextExample, TokenExample, abbreviated, quantity

_OF_TOOLS = (
    "id",
    "answer",
    "options",
    "accept",
    "config",
    "_input_hash",
    "_task_hash",
    "_view_id",
    "Comments",
)
_OF_PREDICTIONS = (
    "scores",
    "gold",
    "where",
    "positive",
    "positive_label",
    "offsets",
    "follows",
    "follows_score",
    "votes",
)
_OF_QUESTIONS = {
    "answers": "qa",
    "no_answer_score": "qa",
    "choices": "choice",
    "choice": "choice",
    "endings": "choice",
}
"""The task of rows with a column, in lower case, whose gold is no label."""


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
        """Return a row whose words have a text: they are joined by blanks if it has none."""
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

    @property
    def content(self) -> Any:
        """The text by which decisions find the row."""
        return text_and_pair(self.example.text, self.example.pair)


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
    def content(self) -> Any:
        """The text, or the words without one, by which decisions find the row."""
        return self.example.words if self.example.text is None else self.example.text

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

    def as_text(self) -> Self:
        """Return a row whose words have a text: they are joined by blanks if it has none."""
        words = self.example.words
        if self.example.text is not None:
            return self
        ends = accumulate(len(word) + 1 for word in words)
        pairs = zip(words, ends, strict=True)
        offsets = tuple((end - 1 - len(word), end - 1) for word, end in pairs)
        return replace(self, example=replace(self.example, text=" ".join(words), offsets=offsets))


def text_and_pair(text: str, pair: str | None) -> str:
    """Return a text, or both texts of a pair, as suspects show them."""
    return text if pair is None else f"{text} ||| {pair}"


class Annotations(NamedTuple):
    """The rows of a file, ``text`` (with labels) or ``tokens`` (with tags or spans), and notes."""

    kind: Literal["text", "tokens"]
    rows: list[Any]
    notes: list[str]


def read_annotations(
    source: str | Path | DataFile,
    *,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    encoding: str = UTF_8,
    words: bool = False,
) -> Annotations:
    """Read a file, or a folder of standoff, with the rows of all annotators.

    A prediction file of a run gives its predicted labels. Rows that an annotator rejected or
    ignored are left out. Texts without gold are read as ``words`` if this is set.
    """
    file = open_data(source, format, encoding)
    if file.format == "xml":
        raise DataError(f"{file.name}: senses of words are no labels of texts or spans.")
    if file.format in ("txt", "tsv", "unknown") and looks_like_conll(file):
        file.format = "conll"
    if file.format in ("conll", "conllu", "standoff"):
        options = ReadOptions(check_columns(columns, tokens.ROLES), token_records.HEADER_NAMES)
        records: Any = list(read_file(file, options).records)
        if file.format == "standoff":
            # a document is one row, which its name identifies
            records = [r._replace(key=r.document, document=None) for r in records]
        examples, notes = _examples(records)
        return Annotations("tokens", [WordRow(each, {}) for each in examples], notes)
    columns = columns or {}
    if {"words", "tags", "spans"} & columns.keys():
        known = check_columns(columns, tokens.ROLES)
    else:
        known = check_columns(columns, (*texts.ROLES, *tokens.ROLES))
    table = open_text_table(file, ReadOptions(known, texts.HEADER_NAMES))
    found = table.all()
    if not found:
        raise DataError(f"{file.name}: there is no row in it.")
    names = {name.lower() for name in table.header}
    is_labeled = "text" in names | known.keys() and names & {"label", "accept", "spans"}
    task = "" if is_labeled else next((_OF_QUESTIONS[n] for n in names & {*_OF_QUESTIONS}), "")
    if task or ("answer" in names and _is_prediction(found[0].values) and not is_labeled):
        raise DataError(
            f"{file.name}: these are questions of {task or 'qa'}, a task that is not supported "
            "here: give labels of texts, tags of words, or spans."
        )
    if words or known.keys() & {"words", "tags", "spans"} or _hold_words(found):
        return _of_tokens(table, found, known)
    return _of_texts(table, found, known)


def _hold_words(records: Sequence[Record]) -> bool:
    spans = labels = False
    for record in records:
        values = {name.lower(): value for name, value in record.values.items()}
        label = values.get("label")
        if any(isinstance(values.get(name), list) for name in token_records.WORD_COLUMNS):
            return True
        items = label if isinstance(label, list) else []
        if items and isinstance(items[0], list | dict):
            return True
        labels = labels or label is not None or isinstance(values.get("accept"), list)
        spans = spans or any(isinstance(values.get(name), list) for name in ("spans", "entities"))
    return spans and not labels


def _of_texts(table: Table, records: list[Record], columns: Mapping[str, str]) -> Annotations:
    chosen = texts.guess_columns(table, columns, None)
    named = "answer" in chosen[:3]  # then its values are labels or texts
    kept, notes = (records, []) if named else _without_skipped(records)
    examples = [texts.text_example(index, row, chosen, table) for index, row in enumerate(kept)]
    converted, note = convert_labels({"": examples}, table.typed)
    used = {chosen.text, chosen.pair, chosen.label}
    rows = _rows(TextRow, converted[""], kept, used)
    return Annotations("text", rows, [*table.notes, *notes, *([note] if note else [])])


def _without_skipped(records: list[Record]) -> tuple[list[Record], list[str]]:
    kept = [row for row in records if row.values.get("answer") not in SKIPPED_ANSWERS]
    left = [_name(row) for row in records if row.values.get("answer") in SKIPPED_ANSWERS]
    return kept, list(counted(left, "that annotators rejected or ignored", "left out"))


def _of_tokens(table: Table, records: list[Record], columns: Mapping[str, str]) -> Annotations:
    columns = {role: name for role, name in columns.items() if role in tokens.ROLES}
    kept, notes = _without_skipped(records)
    if unsure := [row for row in kept if _has_null(row.values.get("tags"))]:
        names = [_name(row) for row in unsure]
        notes += counted(names, "with tags that are withheld", "read without tags")
        ids = {*map(id, unsure)}
        kept = [r._replace(values={**r.values, "tags": None}) if id(r) in ids else r for r in kept]
    chosen = guess_columns(table, columns, kept)
    text = columns.get("text", "text")
    found = [_with_text(token_record(row, chosen, table.names), row, text) for row in kept]
    examples, more = _examples(found)
    related = [_name(row) for row in kept if row.values.get(chosen.relations or "")]
    more += counted(related, "with relations between spans", "the relations are not written")
    rows = _rows(WordRow, examples, kept, {*chosen})
    return Annotations("tokens", rows, [*table.notes, *notes, *more])


def _name(record: Record | TokenRecord) -> str | int:
    return record.where if record.key is None else record.key


def _has_null(tags: Any) -> bool:
    return isinstance(tags, list) and None in tags


def _with_text(record: TokenRecord, row: Record, column: str) -> TokenRecord:
    offsets, text = row.values.get("offsets"), row.values.get(column)
    if record.text is not None or not isinstance(offsets, list):
        return record
    if not isinstance(text, str):
        raise DataError(
            f"{row.where}: offsets without a text: write the predictions with --keep-columns."
        )
    pairs = conforms(offsets, list[list[int]]) and len(offsets) == len(record.words)
    if not pairs or any(len(p) != 2 or not 0 <= p[0] <= p[1] <= len(text) for p in offsets):
        raise DataError(
            f"{row.where}: offsets must be the characters of each word, from 0 to {len(text)}, "
            f"such as [[0, 3], [4, 7]], not {offsets!r:.60}."
        )
    return record._replace(text=text, offsets=tuple((start, end) for start, end in offsets))


def _examples(records: list[TokenRecord]) -> tuple[list[TokenExample], list[str]]:
    apart = [_name(record) for record in records if record.discontinuous]
    read = "read from the first start to the last end"
    notes = list(counted(apart, "with discontinuous spans", read))
    if skipped := sum(record.num_skipped_lines for record in records):
        notes.append(f"{quantity(skipped, 'line')} of .ann files without text not read")
    examples, more = to_bio({"": records})
    more = [note for note in more if not note.startswith("nested")]
    return list(examples[""]), notes + more


def _rows(
    row: type[AnnotatedRow],
    examples: Sequence[Any],
    records: Sequence[Record],
    used: set[str | None],
) -> list[AnnotatedRow]:
    predicted = any(_is_prediction(record.values) for record in records)
    unread = {*used, *_OF_TOOLS, *(_OF_PREDICTIONS if predicted else ())}
    if predicted and row is WordRow:
        unread |= {"words", "tags"}
    rows = []
    for example, record in zip(examples, records, strict=True):
        values = {name: value for name, value in record.values.items() if name not in unread}
        found = {name: values.pop(name, None) for name in ANNOTATORS}
        annotators = {name: value for name, value in found.items() if value is not None}
        if row is WordRow and example.text is not None:
            values.pop("text", None)
        annotator = next(iter(annotators.values()), None)
        rows.append(row(example, values | annotators, annotator, predicted))
    return rows


def _is_prediction(values: Mapping[str, Any]) -> bool:
    spans = values.get("spans")
    scored = isinstance(spans, list) and any(isinstance(s, dict) and "score" in s for s in spans)
    known = "uncertainty" in values or ("gold" in values and "where" in values)
    return known or "scores" in values or (scored and "words" in values)


def counted(names: Sequence[Any], which: str, what: str) -> Iterator[str]:
    """Yield a line about rows, with their ids or lines; nothing if there are no rows."""
    if names:
        yield f"{quantity(len(names), 'row')} {which}: {what} ({abbreviated(map(str, names), 6)})"
