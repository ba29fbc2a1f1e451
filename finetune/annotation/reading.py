"""Read annotated data of any format, and the exports of annotation tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.annotation import brat, doccano, inclusive, label_studio, prodigy, spacy
from finetune.annotation.rows import ANNOTATORS, AnnotatedRow, Annotations, counted
from finetune.config.recipes import local_path
from finetune.config.values import conforms
from finetune.data import texts, token_records
from finetune.data.conll import looks_like_conll
from finetune.data.dataset import DataError
from finetune.data.files import UTF_8, DataFile, ReadOptions, Record
from finetune.data.formats import open_data, open_text_table, read_file
from finetune.data.json_files import not_an_object
from finetune.data.labels import convert_labels
from finetune.data.tables import Table, check_columns
from finetune.data.tag_conversion import to_bio
from finetune.data.token_records import TokenRecord, token_record, word_columns
from finetune.types import TokenExample

_OF_TOOLS = ("id", *prodigy.TOOL_COLUMNS, doccano.COMMENTS)
"""Columns that are not kept."""
_OF_PREDICTIONS = (
    "scores",
    "gold",
    "where",
    "positive",
    "positive_label",
    "label_separator",
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


def read_annotations(
    source: str | Path | DataFile,
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str = UTF_8,
) -> Annotations:
    """Read a file, or a folder of brat, with the rows of all annotators.

    A prediction file of a run gives its predicted labels. Rows that an annotator rejected or
    ignored are left out.

    Raises:
        DataError: The file cannot be read, or holds questions, senses or vectors.
    """
    if not isinstance(source, DataFile) and brat.is_document(path := local_path(source)):
        for role, name in (columns or {}).items():
            raise DataError(f"{path}: --columns {role}={name}: documents of brat have no columns.")
        sentences, notes = brat.read_documents(path, encoding)
        return _of_sentences(sentences, notes)
    file = open_data(source, encoding=encoding)
    if file.format == "xml":
        raise DataError(f"{file.name}: senses of words are no labels of texts or spans.")
    if file.format in ("txt", "tsv", "unknown") and looks_like_conll(file):
        file.format = "conll"
    if file.format in ("conll", "conllu"):
        options = ReadOptions(
            check_columns(columns, token_records.ROLES), token_records.HEADER_NAMES
        )
        return _of_sentences(list(read_file(file, options).records), [])
    columns = columns or {}
    if {"words", "tags", "spans"} & columns.keys():
        roles = check_columns(columns, token_records.ROLES)
    else:
        roles = check_columns(columns, (*texts.ROLES, *token_records.ROLES))
    options = ReadOptions(roles, texts.HEADER_NAMES, convert_row=rows_of_tool)
    table = open_text_table(file, options)
    records = table.peek(None)
    if not records:
        raise DataError(f"{file.name}: there is no row in it.")
    names = {name.lower() for name in table.header}
    is_labeled = "text" in names | roles.keys() and names & {"label", "accept", "spans"}
    task = "" if is_labeled else next((_OF_QUESTIONS[n] for n in names & {*_OF_QUESTIONS}), "")
    if task or ("answer" in names and _is_prediction(records[0].values) and not is_labeled):
        raise DataError(
            f"{file.name}: these are questions of {task or 'qa'}, a task that is not supported "
            "here: give labels of texts, tags of words, or spans."
        )
    if roles.keys() & {"words", "tags", "spans"} or _hold_words(records):
        return _of_words(table, records, roles)
    return _of_texts(table, records, roles)


def rows_of_tool(value: Any, where: str) -> Iterator[Record]:
    """Yield the rows of a JSON value of a tool's export; other objects are rows as they are."""
    if spacy.is_pair(value):
        value = {"text": value[0], **value[1]}
    if not isinstance(value, dict):
        raise not_an_object(value, where)
    if isinstance(value.get("sentences"), list) and "doc_key" in value:
        yield from inclusive.sentence_rows(value, where)
    elif label_studio.is_task(value):
        yield from label_studio.task_rows(value, where)
    elif "tokenized_text" in value:
        yield Record(inclusive.gliner_row(value, where), where)
    elif inclusive.is_cluener(value):
        yield Record(inclusive.cluener_row(value, where), where)
    elif prodigy.is_choice(value):
        yield Record(prodigy.read_choice(value), where)
    else:
        values = doccano.read_row(value, where)
        label = values.get("label")
        if isinstance(label, list) and label and isinstance(label[0], dict | list):
            del values["label"]
            values["spans"] = label
        yield Record(values, where)


def _of_sentences(sentences: list[TokenRecord], notes: list[str]) -> Annotations:
    examples, more = _examples(sentences)
    return Annotations("tokens", [AnnotatedRow(example, {}) for example in examples], notes + more)


def _hold_words(records: Sequence[Record]) -> bool:
    spans = labels = False
    for record in records:
        values = {name.lower(): value for name, value in record.values.items()}
        if any(isinstance(values.get(name), list) for name in token_records.WORD_COLUMNS):
            return True
        labels = labels or values.get("label") not in (None, [])
        spans = spans or any(isinstance(values.get(name), list) for name in ("spans", "entities"))
    return spans and not labels


def _of_texts(table: Table, records: list[Record], columns: Mapping[str, str]) -> Annotations:
    chosen = texts.text_columns(table, columns, None)
    named = "answer" in chosen.values()  # then its values are labels or texts
    kept, notes = (records, []) if named else _without_skipped(records)
    make = texts.example_maker(chosen, table)
    examples = [make(index, row) for index, row in enumerate(kept)]
    converted, note = convert_labels({"": examples}, table.typed)
    rows = _rows(converted[""], kept, {*chosen.values()})
    return Annotations("text", rows, [*table.notes, *notes, *([note] if note else [])])


def _without_skipped(records: list[Record]) -> tuple[list[Record], list[str]]:
    kept = [row for row in records if row.values.get("answer") not in prodigy.SKIPPED_ANSWERS]
    names = [_name(row) for row in records if row.values.get("answer") in prodigy.SKIPPED_ANSWERS]
    return kept, list(counted(names, "that annotators rejected or ignored", "left out"))


def _of_words(table: Table, records: list[Record], columns: Mapping[str, str]) -> Annotations:
    columns = {role: name for role, name in columns.items() if role in token_records.ROLES}
    kept, notes = _without_skipped(records)
    abstained = []
    for number, row in enumerate(kept):
        tags = row.values.get("tags")
        if isinstance(tags, list) and None in tags:
            abstained.append(_name(row))
            kept[number] = row._replace(values={**row.values, "tags": None})
    notes += counted(abstained, "with abstained tags", "read without tags")
    chosen = word_columns(table, columns, kept)
    spans = chosen["spans"]
    sentences = []
    for number, row in enumerate(kept):
        values = dict(row.values)
        if spans is not None and values.get(spans) is None:
            if values.get("label") == []:
                del values["label"]
                values[spans] = []
            elif values.get("answer") == "accept":
                values[spans] = []
            kept[number] = row = row._replace(values=values)
        related = values.get(chosen["relations"] or "") is not None
        record = token_record(row, chosen, table.names, related)
        sentences.append(_with_text(record, row, columns.get("text", "text")))
    examples, more = _examples(sentences)
    rows = _rows(examples, kept, {*chosen.values()})
    return Annotations("tokens", rows, [*table.notes, *notes, *more])


def _name(record: Record | TokenRecord) -> str | int:
    return record.where if record.key is None else record.key


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
    names = [_name(record) for record in records if record.discontinuous]
    what = "read from the first start to the last end"
    examples, notes = to_bio({"": records})
    notes = [note for note in notes if not note.startswith("nested")]
    return list(examples[""]), [*counted(names, "with discontinuous spans", what), *notes]


def _rows(
    examples: Sequence[Any], records: Sequence[Record], used: set[str | None]
) -> list[AnnotatedRow]:
    predicted = any(_is_prediction(record.values) for record in records)
    unread = {*used, *_OF_TOOLS, *(_OF_PREDICTIONS if predicted else ())}
    rows = []
    for example, record in zip(examples, records, strict=True):
        values = {name: value for name, value in record.values.items() if name not in unread}
        annotators = {name: values.pop(name, None) for name in ANNOTATORS}
        annotators = {name: who for name, who in annotators.items() if who is not None}
        if isinstance(example, TokenExample):
            in_example = {"words", "tags"} if predicted else set[str]()
            in_example |= {"text"} if example.text is not None else set()
            values = {name: value for name, value in values.items() if name not in in_example}
        annotator = next(iter(annotators.values()), None)
        rows.append(AnnotatedRow(example, values | annotators, annotator, predicted))
    return rows


def _is_prediction(values: Mapping[str, Any]) -> bool:
    spans = values.get("spans")
    scored = isinstance(spans, list) and any(isinstance(s, dict) and "score" in s for s in spans)
    known = "uncertainty" in values or ("gold" in values and "where" in values)
    return known or "scores" in values or (scored and "words" in values)
