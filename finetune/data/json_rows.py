"""Rows from JSON: objects in lines or a list, files of SQuAD, and exports of annotation tools.

SQuAD has articles with paragraphs, whose questions have answers:

{"version": "1.1", "data": [{"title": …, "paragraphs": [{"context": …, "qas": [
    {"id": …, "question": …, "answers": [{"text": …, "answer_start": 0}]}]}]}]}

A row of Label Studio's default export is a task with all its annotations; each becomes a row in the
form of Prodigy: the fields of the task, ``label`` or ``spans``, ``answer`` and ``_annotator_id``.
Label Studio and Prodigy count the characters of a text as Python does. doccano counts UTF-16 code
units (https://github.com/doccano/doccano/issues/2290), in which an emoji has two.

Spans in three formats have inclusive ends; rows get spans with exclusive ends. DyGIE++ and PURE
count the words of a document, GLiNER the words of a sentence, CLUENER characters:

{"doc_key": …, "sentences": [["A", "dog"], …], "ner": [[[1, 1, "Animal"]], …],
 "relations": [[[1, 1, 4, 4, "eats"]], …]}
{"tokenized_text": ["A", "dog"], "ner": [[1, 1, "animal"]]}
{"text": "A dog", "label": {"animal": {"dog": [[2, 4]]}}}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.files import (
    DataFile,
    Line,
    ReadOptions,
    Record,
    Rows,
    check_characters,
    keep_error,
)
from finetune.data.json_files import parse_json
from finetune.data.tables import Table, is_countable

SKIPPED_ANSWERS = ("reject", "ignore")
"""Values of the column ``answer`` with which an annotator excludes a row."""

ANNOTATORS = ("_annotator_id", "annotator", "_session_id")
"""Columns that name the annotator of a row."""
DOCCANO_COMMENTS = "Comments"
"""Column of every export of doccano."""


_JSON_ROW = 'one object per line, such as {"text": "Fine film", "label": "positive"}'
_JSON_ADVICE = f": write {_JSON_ROW}."


def read_json_lines(file: DataFile, options: ReadOptions) -> Table:
    """Read one JSON object per line."""

    def parse(lines: Iterable[Line]) -> Iterator[Record]:
        for number, text in lines:
            if text.strip():
                where = file.where(number)
                try:
                    value = parse_json(text, where, _JSON_ADVICE)
                except DataError as error:
                    check_characters(file.name, Line(number, text), is_last=True)
                    keep_error(error, options.errors)
                else:
                    yield from _rows(value, where, options.errors)

    return Table(file.name, [], file.lines.converted(parse, _count_json_rows))


_SEVERAL_ROWS = b'"annotations"', b'"paragraphs"', b'"sentences"'
"""Keys of objects that are several rows."""
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")


def _count_json_rows(block: Any) -> int | None:
    if not is_countable(block) or any(key in block.content for key in _SEVERAL_ROWS):
        return None
    if b"\\u00" in block.content and _ESCAPED_LETTER.search(block.content):
        return None  # such a key may be written with escapes
    lines = block.content.decode(errors="replace").split("\n")
    return len(lines) - sum(not line.strip() for line in lines)


def read_json(file: DataFile, options: ReadOptions) -> Table:
    """Read one list of objects, or JSON Lines in a file with the suffix ``.json``."""
    first = file.first_line().strip()
    if first.startswith("{") and first != "{":
        return read_json_lines(file, options)
    items = parse_json("\n".join(line.text for line in file), file.name, _JSON_ADVICE)
    if is_squad(items):
        return Table(file.name, [], Rows(squad_rows(items, file.name, options.errors)))
    if not isinstance(items, list):
        raise DataError(
            f"{file.name}: holds one JSON {_json_type(items)}, not a list of objects: write "
            '[{"text": …, "label": …}, …], or one object per line in a .jsonl file.'
        )
    numbered = ((f"{file.name}:item {i}", item) for i, item in enumerate(items, 1))
    parse = partial(_rows, errors=options.errors)
    return Table(file.name, [], Rows(numbered, lambda item: parse(item[1], item[0])))


def _rows(value: Any, where: str, errors: list[str] | None) -> Iterator[Record]:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict):
        value = {"text": value[0], **value[1]}
    if is_squad(value):
        yield from squad_rows(value, where, errors)
        return
    try:
        if not isinstance(value, dict):
            problem = f"a row must be a JSON object, not a {_json_type(value)}: write {_JSON_ROW}."
            raise DataError(f"{where}: {problem}")
        yield from tool_rows(value, where)
    except DataError as error:
        keep_error(error, errors)


def _json_type(value: Any) -> str:
    types = {dict: "object", list: "list", str: "string", type(None): "null", bool: "boolean"}
    return types.get(type(value), "number")


def is_squad(value: Any) -> bool:
    """Return whether a JSON value is a file of SQuAD, or one of its articles."""
    if not isinstance(value, dict):
        return False
    articles = value.get("data")
    if isinstance(articles, list) and articles:
        return isinstance(articles[0], Mapping) and "paragraphs" in articles[0]
    return isinstance(value.get("paragraphs"), list)


def squad_rows(
    value: Mapping[str, Any], where: str, errors: list[str] | None = None
) -> Iterator[Record]:
    """Yield the questions of a file of SQuAD, or of one article, with their context.

    ``where`` is the place of the value. A question is found by its id: ``FILE:question ID``.
    ``errors`` gets the errors of articles, paragraphs and questions; None raises the first.
    """

    def value_of(part: Any, name: str, place: str, missing: Any = None) -> Any:
        """Return a value of a part of the file, None if it is missing."""
        wanted = list if name in ("paragraphs", "qas") else str
        found = part.get(name, missing) if isinstance(part, Mapping) else None
        if isinstance(found, wanted):
            return found
        must = f"{name!r} must be {'a list' if wanted is list else 'a text'}, not {found!r:.60}"
        keep_error(DataError(f"{place}: in a file of SQuAD, {must}."), errors)
        return None

    articles = [value] if value.get("data") is None else value["data"]
    file = where.rpartition(":")[0] or where
    for number, article in enumerate(articles, 1):
        title = value_of(article, "title", f"{file}:article {number}", missing="")
        if title is None:
            continue
        place = f"{file}:article {number}" + (f" ({title})" if title else "")
        for count, paragraph in enumerate(value_of(article, "paragraphs", place) or (), 1):
            inside = f"{place}, paragraph {count}"
            context = value_of(paragraph, "context", inside)
            questions = None if context is None else value_of(paragraph, "qas", inside)
            for index, question in enumerate(questions or (), 1):
                here = f"{inside}, question {index}"
                if value_of(question, "question", here) is None:
                    continue
                id = question.get("id")
                known = f"{file}:question {id}" if id is not None else here
                yield Record({"title": title, "context": context, **question}, known)


def tool_rows(row: dict[str, Any], where: str) -> Iterator[Record]:
    """Yield an object as one row, or as rows: annotations (Label Studio), sentences (DyGIE++)."""
    task, annotations, label = row.get("data"), row.get("annotations"), row.get("label")
    if isinstance(row.get("sentences"), list) and "doc_key" in row:
        yield from _sentence_rows(row, where)
    elif "tokenized_text" in row:
        yield Record(_gliner_row(row, where), where)
    elif isinstance(label, dict) and any(isinstance(each, dict) for each in label.values()):
        yield Record(_cluener_row(row, where), where)
    elif isinstance(annotations, list) and isinstance(task, Mapping):
        base = {"id": row.get("id"), **task}
        for annotation in annotations:
            yield Record(base | _label_studio(annotation, where), where)
        if not annotations:
            yield Record(base, where)
    elif isinstance(row.get("accept"), list) and isinstance(row.get("options"), list):
        config = row.get("config")
        style = config.get("choice_style") if isinstance(config, Mapping) else None
        single = style in (None, "single")
        chosen = row["accept"]
        label = (chosen[0] if chosen else None) if single else chosen
        yield Record({**row, "label": label}, where)
    elif isinstance(row.get("text"), str) and not row["text"].isascii():
        yield Record(row | _doccano_spans(row, where), where)
    else:
        yield Record(row, where)


def _sentence_rows(row: Mapping[str, Any], where: str) -> Iterator[Record]:
    first = 0
    for number, words in enumerate(row["sentences"]):
        place = f"{where}, sentence {number + 1}"
        found: dict[str, Any] = {"tokens": words, "document": row["doc_key"]}
        try:
            if "ner" in row:
                spans = [(start, end, label) for start, end, label, *_ in row["ner"][number]]
                found["spans"] = [[s - first, e + 1 - first, label] for s, e, label in spans]
                index = {(start, end): place for place, (start, end, _) in enumerate(spans)}
                if (relations := row.get("relations")) is not None:
                    found["relations"] = [
                        {"subject": index.get((a, b)), "object": index.get((c, d)), "label": label}
                        for a, b, c, d, label, *_ in relations[number]
                    ]
            first += len(words)
        except (LookupError, TypeError, ValueError):
            legal = "lists of [first word, last word, label] for each sentence"
            raise DataError(
                f"{place}: `ner` and `relations` must be as in DyGIE++, {legal}, and of two such "
                "pairs of words with a label."
            ) from None
        yield Record(found, place)


def _gliner_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = {key: row[key] for key in row if key not in ("tokenized_text", "ner")}
    found["tokens"] = row["tokenized_text"]
    if "ner" in row:
        try:
            found["spans"] = [[start, end + 1, label] for start, end, label in row["ner"]]
        except (TypeError, ValueError):
            legal = "a list of [first word, last word, label]"
            raise DataError(f"{where}: `ner` must be as in GLiNER, {legal}.") from None
    return found


def _cluener_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    try:
        spans = [
            {"start": start, "end": end + 1, "label": label, "text": text}
            for label, mentions in row["label"].items()
            for text, places in mentions.items()
            for start, end in places
        ]
    except (AttributeError, TypeError, ValueError):
        legal = "{label: {mention: [[first character, last character]]}}"
        raise DataError(f"{where}: `label` must be as in CLUENER, {legal}.") from None
    return {key: row[key] for key in row if key != "label"} | {"spans": spans}


def _label_studio(annotation: Any, where: str) -> dict[str, Any]:
    results = annotation.get("result") if isinstance(annotation, Mapping) else None
    if not isinstance(results, list) or not all(isinstance(each, Mapping) for each in results):
        raise DataError(
            f"{where}: {annotation!r:.60} is not an annotation of Label Studio: export as JSON."
        )
    found: dict[str, Any] = {"_annotator_id": annotation.get("completed_by")}
    if annotation.get("was_cancelled"):
        found["answer"] = "ignore"
    values = [each["value"] for each in results if isinstance(each.get("value"), Mapping)]
    chosen = [value["choices"] for value in values if isinstance(value.get("choices"), list)]
    choices = [name for names in chosen for name in names]
    numbers = [
        float(value[kind])
        for value in values
        for kind in ("rating", "number")
        if isinstance(value.get(kind), int | float)
    ]
    spans = [value for value in values if "start" in value and value.get("labels")]
    if chosen or numbers:
        found["label"] = choices if chosen and len(choices) != 1 else (choices or numbers)[0]
    if spans or not (chosen or numbers):
        found["spans"] = spans
    return found


def _doccano_spans(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    positions: dict[int, int] = {}
    for column in ("label", "entities"):
        spans = row.get(column)
        if not isinstance(spans, list):
            continue
        listed = DOCCANO_COMMENTS in row and all(isinstance(s, list) and len(s) == 3 for s in spans)
        if not listed and not all(isinstance(s, dict) and "start_offset" in s for s in spans):
            continue
        positions = positions or {
            unit: index for index, unit in enumerate(utf16_positions(row["text"]))
        }
        places = [span[:2] if listed else [span.get(key) for key in _DOCCANO] for span in spans]
        if any(place not in positions for each in places for place in each):
            raise DataError(
                f"{where}: a span begins or ends within a character or outside the text: doccano "
                "counts UTF-16 code units (an emoji is two); for others remove the column "
                f"{DOCCANO_COMMENTS!r} or write start and end in place of start_offset and "
                "end_offset."
            )
        found[column] = [
            [positions[start], positions[end], span[2]]
            if listed
            else span | dict(zip(_DOCCANO, (positions[start], positions[end]), strict=True))
            for span, (start, end) in zip(spans, places, strict=True)
        ]
    return found


_DOCCANO = ("start_offset", "end_offset")


def utf16_positions(text: str) -> list[int]:
    """Return the number of UTF-16 code units before each character, and of all.

    >>> utf16_positions("a😀b")
    [0, 1, 3, 4]
    """
    return [0, *accumulate(1 + (character > "\uffff") for character in text)]
