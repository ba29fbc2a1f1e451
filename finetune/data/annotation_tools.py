"""Exports of annotation tools as rows: Label Studio, Prodigy and doccano.

A row of Label Studio's default export is a task with all its annotations; each becomes a row in the
form of Prodigy: the fields of the task, ``label`` or ``spans``, ``answer`` and ``_annotator_id``.
Label Studio and Prodigy count the characters of a text as Python does. doccano counts UTF-16 code
units (https://github.com/doccano/doccano/issues/2290), in which an emoji has two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from finetune.data.dataset import DataError
from finetune.data.files import Record

SKIPPED_ANSWERS = ("reject", "ignore")
"""Values of the column ``answer`` with which an annotator excludes a row."""

ANNOTATORS = ("_annotator_id", "annotator", "_session_id")
"""Columns that name the annotator of a row."""
DOCCANO_COMMENTS = "Comments"
"""Column of every export of doccano."""


def tool_rows(row: dict[str, Any], where: str) -> Iterator[Record]:
    """Yield an object as one row, or as one row for each of its annotations (Label Studio)."""
    task, annotations = row.get("data"), row.get("annotations")
    if isinstance(annotations, list) and isinstance(task, Mapping):
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


def _label_studio(annotation: Any, where: str) -> dict[str, Any]:
    """Return the label or the spans of one annotation of Label Studio."""
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
    """Return the spans of an export of doccano, by column, in characters."""
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
