"""Tasks of Label Studio (https://labelstud.io/guide/predictions).

They hold choices, numbers, spans and relations.

A task has all its annotations; each is a row with the fields of the task. Positions count the
characters of a text as Python does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.annotation.rows import ANNOTATORS, AnnotatedRow, merged
from finetune.data.files import Row
from finetune.types import DataError, TextExample

ANNOTATOR = "_annotator_id"
"""Column of the rows of all annotations."""
ANNOTATION = "annotation_id"
"""Column of the rows of JSON-MIN, CSV and TSV."""


def is_task(row: Mapping[str, Any]) -> bool:
    """Whether a row is a task with its annotations."""
    return isinstance(row.get("annotations"), list) and isinstance(row.get("data"), Mapping)


def is_annotation(row: Mapping[str, Any]) -> bool:
    """Whether a row is an annotation, so that it has no labels if none is in it."""
    return ANNOTATOR in row or ANNOTATION in row


def minimal_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of JSON-MIN, which has several choices as an object."""
    return {
        name: value["choices"] if isinstance(value, dict) and {*value} == {"choices"} else value
        for name, value in row.items()
    }


def task_rows(row: Mapping[str, Any], where: str) -> Iterator[Row]:
    """Yield a row for each annotation of a task, and one without gold for a task without any."""
    base = {"id": row.get("id"), **row["data"]}
    for annotation in row["annotations"]:
        yield Row(base | _annotation(annotation, where), where)
    if not row["annotations"]:
        yield Row(base, where)


def _annotation(annotation: Mapping[str, Any], where: str) -> dict[str, Any]:
    results = annotation["result"]
    row: dict[str, Any] = {ANNOTATOR: annotation.get("completed_by")}
    if annotation.get("was_cancelled"):
        row["answer"] = "ignore"
    regions = [result for result in results if isinstance(result.get("value"), Mapping)]
    values = [region["value"] for region in regions]
    chosen = [value["choices"] for value in values if isinstance(value.get("choices"), list)]
    choices = [name for names in chosen for name in names]
    numbers = [
        float(value[key])
        for value in values
        for key in ("rating", "number")
        if isinstance(value.get(key), int | float)
    ]
    spans = [r for r in regions if "start" in r["value"] and r["value"].get("labels")]
    if chosen or numbers:
        row["label"] = choices if chosen and len(choices) != 1 else (choices or numbers)[0]
    if spans:
        row["spans"] = [region["value"] for region in spans]
    elif not (chosen or numbers):
        row["label"] = []
    links = [result for result in results if result.get("type") == "relation"]
    if links:
        row["relations"] = _relations(links, [region.get("id") for region in spans], where)
    return row


def _relations(
    links: Sequence[Mapping[str, Any]], ids: Sequence[Any], where: str
) -> list[dict[str, Any]]:
    relations = []
    for link in links:
        ends = [link.get("from_id"), link.get("to_id")]
        labels = link.get("labels")
        if not all(end in ids for end in ends) or not isinstance(labels, list) or not labels:
            raise DataError(
                f"{where}: a relation needs labels and the ids of two regions (from_id, to_id): "
                "correct it in Label Studio."
            )
        if link.get("direction") == "left":
            ends.reverse()
        subject, object = map(ids.index, ends)
        relations += [{"subject": subject, "object": object, "label": name} for name in labels]
    return relations


def write_tasks(rows: Sequence[AnnotatedRow]) -> Iterator[dict[str, Any]]:
    """Yield a task for each text, with the annotations of all its rows."""
    tasks: defaultdict[tuple[Any, ...], list[AnnotatedRow]] = defaultdict(list)
    for row in rows:
        alone = id(row) if row.annotator is None else None
        words = () if isinstance(row.example, TextExample) else row.example.words
        tasks[alone, row.example.key, *row.texts.values(), words].append(row)
    for group in tasks.values():
        fields = merged(group[0], group[0].texts)
        data = {name: value for name, value in fields.items() if name not in ANNOTATORS}
        task: dict[str, Any] = {"data": data, "annotations": []}
        for row in group:
            result = _choices(row) if isinstance(row.example, TextExample) else _spans(row)
            if result is None:
                continue
            if row.predicted:
                predicted = {"model_version": "finetune", "result": result}
                task.setdefault("predictions", []).append(predicted)
            else:
                who = {} if row.annotator is None else {"completed_by": row.annotator}
                task["annotations"].append({"result": result, **who})
        yield task


def _region(number: int, region_type: str, value: Mapping[str, Any]) -> dict[str, Any]:
    names = {"id": f"r{number}", "from_name": "label", "to_name": "text"}
    return {**names, "type": region_type, "value": dict(value)}


def _choices(row: AnnotatedRow) -> list[dict[str, Any]] | None:
    label = row.example.label
    if label is None:
        return None
    if isinstance(label, float):
        return [_region(0, "number", {"number": label})]
    choices = list(label) if isinstance(label, tuple) else [label]
    return [_region(0, "choices", {"choices": choices})]


def _spans(row: AnnotatedRow) -> list[dict[str, Any]] | None:
    if row.example.spans is None:
        return None
    text, regions = row.example.text or "", []
    for number, (start, end, label) in enumerate(row.character_spans):
        value = {"start": start, "end": end, "labels": [label], "text": text[start:end]}
        regions.append(_region(number, "labels", value))
    links = [
        {
            "type": "relation",
            "from_id": f"r{relation['subject']}",
            "to_id": f"r{relation['object']}",
            "direction": "right",
            "labels": [relation["label"]],
        }
        for relation in row.relations or ()
    ]
    return [*regions, *links]
