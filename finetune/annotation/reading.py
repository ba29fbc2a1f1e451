"""Read annotated data of any format, and the exports of annotation tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.annotation import brat, doccano, inclusive, label_studio
from finetune.annotation.rows import ANNOTATORS, AnnotatedRow, Annotations, counted
from finetune.config.recipes import local_path
from finetune.data import texts, token_rows
from finetune.data.conll import looks_like_conll
from finetune.data.examples import Examples
from finetune.data.files import UTF_8, ReadOptions, Row, open_data
from finetune.data.json_files import not_an_object
from finetune.data.labels import convert_labels
from finetune.data.tables import Table, check_columns, open_text_table, read_file
from finetune.data.tag_conversion import to_bio
from finetune.data.token_rows import TokenRow, token_row, word_columns
from finetune.types import DataError, TokenExample

_SKIPPED_ANSWERS = ("reject", "ignore")
"""Values of the column ``answer`` of Prodigy with which an annotator excludes a row."""
_OF_TOOLS = (
    "id",
    doccano.COMMENTS,
    *("answer", "options", "accept", "config", "_input_hash", "_task_hash", "_view_id"),
)
"""Columns that are not kept, of doccano and of Prodigy."""
_ANSWER = "no_answer_score"
"""Column of predicted answers to questions."""
_OF_PREDICTIONS = (
    "scores",
    "gold",
    "where",
    "positive",
    "positive_label",
    "label_separator",
    "offsets",
    "similarity",
    "follows",
    "follows_score",
    "votes",
)


def read_annotations(
    source: str | Path, *, columns: Mapping[str, str] | None = None, encoding: str = UTF_8
) -> Annotations:
    """Read a file, or a folder of brat, with the rows of all annotators.

    A prediction file of a run gives its predicted labels. Rows that an annotator rejected or
    ignored are left out.

    Raises:
        DataError: The file cannot be read.
    """
    if brat.is_document(path := local_path(source)):
        for role, name in (columns or {}).items():
            raise DataError(f"{path}: --columns {role}={name}: documents of brat have no columns.")
        sentences, notes = brat.read_documents(path, encoding)
        return _of_sentences(sentences, notes)
    file = open_data(source, encoding=encoding)
    if file.format in ("txt", "tsv", "unknown") and looks_like_conll(file):
        file.format = "conll"
    if file.format in ("conll", "conllu"):
        options = ReadOptions(check_columns(columns, token_rows.ROLES), token_rows.HEADER_NAMES)
        return _of_sentences(list(read_file(file, options).rows), [])
    of_words = {"words", "tags", "spans"} & (columns or {}).keys()
    legal = token_rows.ROLES if of_words else (*texts.ROLES, *token_rows.ROLES)
    roles = check_columns(columns, legal)
    options = ReadOptions(roles, texts.HEADER_NAMES, convert_row=rows_of_tool)
    table = open_text_table(file, options)
    rows = table.peek(None)
    if not rows:
        raise DataError(f"{file.name}: there is no row in it.")
    if not roles and ({"context", "question"} <= {*rows[0].values} or _ANSWER in rows[0].values):
        raise DataError(
            f"{file.name}: it has questions on contexts, and convert takes texts with labels or "
            "spans: name a column of texts with --columns text=NAME."
        )
    kept = [row for row in rows if row.values.get("answer") not in _SKIPPED_ANSWERS]
    names = [_name(row) for row in rows if row.values.get("answer") in _SKIPPED_ANSWERS]
    skipped = counted(names, "that annotators rejected or ignored", "left out")
    read = _of_words if of_words or ("label" not in roles and _hold_words(rows)) else _of_texts
    annotations = read(table, kept, roles, list(skipped))
    no_gold = read is _of_texts and all(row.example.label is None for row in annotations.rows)
    if no_gold and file.format != "txt":
        annotations.notes.append(
            "no row is known to have labels or spans: read as texts without gold; "
            "name their column with --columns label=NAME or spans=NAME"
        )
    return annotations


def rows_of_tool(value: Any, where: str) -> Iterator[Row]:
    """Yield the rows of a JSON value of a tool's export; other objects are rows as they are.

    Raises:
        DataError: The value is no row, or is not as its tool writes it.
    """
    try:
        yield from _rows_of_tool(value, where)
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: the row is not as its annotation tool writes it ({type(error).__name__}: "
            f"{error}): correct it, or export again."
        ) from error


def _rows_of_tool(value: Any, where: str) -> Iterator[Row]:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict):  # of spaCy
        value = {"text": value[0], **value[1]}
    if not isinstance(value, dict):
        raise not_an_object(value, where)
    if isinstance(value.get("sentences"), list) and "doc_key" in value:
        yield from inclusive.sentence_rows(value, where)
    elif label_studio.is_task(value):
        yield from label_studio.task_rows(value, where)
    elif "tokenized_text" in value:
        yield Row(inclusive.gliner_row(value), where)
    elif isinstance(value.get("accept"), list) and isinstance(value.get("options"), list):
        yield Row(value | {"label": _choice_of_prodigy(value)}, where)
    else:
        values = doccano.read_row(label_studio.minimal_row(value), where)
        label = values.get("label")
        if isinstance(label, list) and label and isinstance(label[0], dict | list):
            del values["label"]
            values["spans"] = label
        yield Row(values, where)


def _choice_of_prodigy(task: Mapping[str, Any]) -> Any:
    # one accepted option is the label, several are a list (https://prodi.gy/docs/api-interfaces)
    config, chosen = task.get("config"), task["accept"]
    style = config.get("choice_style") if isinstance(config, Mapping) else None
    return chosen if style not in (None, "single") else next(iter(chosen), None)


def _of_sentences(sentences: list[TokenRow], notes: list[str]) -> Annotations:
    examples, more = _examples(sentences)
    return Annotations("tokens", [AnnotatedRow(example, {}) for example in examples], notes + more)


def _hold_words(rows: Sequence[Row]) -> bool:
    spans = labels = False
    for row in rows:
        values = {name.lower(): value for name, value in row.values.items()}
        if any(isinstance(values.get(name), list) for name in token_rows.WORD_COLUMNS):
            return True
        labels = labels or values.get("label") not in (None, [])
        spans = spans or any(isinstance(values.get(name), list) for name in ("spans", "entities"))
    return spans and not labels


def _of_texts(
    table: Table, rows: list[Row], columns: Mapping[str, str], notes: list[str]
) -> Annotations:
    predicted = any(_is_prediction(row.values) for row in rows)
    if predicted and "label" not in columns:  # `score` is a probability
        table.header = [name for name in table.header if name != "score"]
    make = texts.TextReader().choose(table, rows, columns, "read")
    if (label := table.read["label"]) is not None:
        labels = [row.values.get(label) for row in rows]
        labels = [value for value in labels if value not in (None, [])]
        several = not labels or any(isinstance(value, list) for value in labels)
        for number, row in enumerate(rows):
            if label_studio.is_annotation(row.values) and row.values.get(label) in (None, []):
                values = {**row.values, label: [] if several else None}
                rows[number] = row._replace(values=values)
    examples = Examples(make(index, row) for index, row in enumerate(rows))
    converted, note = convert_labels({"": examples}, table.typed)
    annotated = _rows(converted[""], rows, {*table.read.values()})
    return Annotations("text", annotated, [*table.notes, *notes, *([note] if note else [])])


def _of_words(
    table: Table, rows: list[Row], columns: Mapping[str, str], notes: list[str]
) -> Annotations:
    columns = {role: name for role, name in columns.items() if role in token_rows.ROLES}
    chosen = dict(word_columns(table, columns, rows))
    spans, relations = chosen["spans"], chosen["relations"]
    related = any(row.values.get(relations or "") for row in rows)
    sentences = []
    for number, row in enumerate(rows):
        values = dict(row.values)
        if spans is not None and values.get(spans) is None:
            if values.get("label") == []:
                del values["label"]
                values[spans] = []
            elif values.get("answer") == "accept" or label_studio.is_annotation(values):
                values[spans] = []
        if related and label_studio.ANNOTATOR in values and values.get(spans or "") is not None:
            values.setdefault(relations or "", [])  # its annotations have a relation, or none
        rows[number] = row = row._replace(values=values)
        has_relations = values.get(relations or "") is not None
        sentence = token_row(row, chosen, table.names, has_relations)
        sentences.append(_with_text(sentence, row, columns.get("text", "text")))
    examples, more = _examples(sentences)
    annotated = _rows(examples, rows, {*chosen.values()})
    return Annotations("tokens", annotated, [*table.notes, *notes, *more])


def _name(sentence: Row | TokenRow) -> str | int:
    return sentence.where if sentence.key is None else sentence.key


def _with_text(sentence: TokenRow, row: Row, column: str) -> TokenRow:
    offsets, text = row.values.get("offsets"), row.values.get(column)
    if sentence.text is not None or not isinstance(offsets, list):
        return sentence
    if not isinstance(text, str):
        raise DataError(
            f"{row.where}: offsets without a text: write the predictions with --keep-columns."
        )
    return sentence._replace(text=text, offsets=tuple((start, end) for start, end in offsets))


def _examples(sentences: list[TokenRow]) -> tuple[list[TokenExample], list[str]]:
    names = [_name(sentence) for sentence in sentences if sentence.num_discontinuous]
    what = "read from the first start to the last end"
    examples, notes = to_bio({"": sentences})
    notes = [note for note in notes if not note.startswith("nested")]
    return list(examples[""]), [*counted(names, "with discontinuous spans", what), *notes]


def _rows(
    examples: Sequence[Any], rows: Sequence[Row], used: set[str | None]
) -> list[AnnotatedRow]:
    predicted = any(_is_prediction(row.values) for row in rows)
    unread = {*used, *_OF_TOOLS, *(_OF_PREDICTIONS if predicted else ())}
    annotated = []
    for example, row in zip(examples, rows, strict=True):
        values = {name: value for name, value in row.values.items() if name not in unread}
        annotators = {name: values.pop(name, None) for name in ANNOTATORS}
        annotators = {name: who for name, who in annotators.items() if who is not None}
        if isinstance(example, TokenExample):
            in_example = {"words", "tags"} if predicted else set[str]()
            in_example |= {"text"} if example.text is not None else set()
            values = {name: value for name, value in values.items() if name not in in_example}
        annotator = next(iter(annotators.values()), None)
        annotated.append(AnnotatedRow(example, values | annotators, annotator, predicted))
    return annotated


def _is_prediction(values: Mapping[str, Any]) -> bool:
    spans = values.get("spans")
    scored = isinstance(spans, list) and any(isinstance(s, dict) and "score" in s for s in spans)
    is_number = type(values.get("label")) is float
    return (
        not values.keys().isdisjoint(("uncertainty", "scores"))
        or values.get("similarity") == "cosine"  # of `finetune sentence`
        or ("gold" in values and ("where" in values or is_number))
        or (scored and "words" in values)
    )
