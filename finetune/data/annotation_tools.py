"""Exports of annotation tools as rows: Label Studio, Prodigy, and several annotators of one text.

A row of Label Studio's default export is a task with all its annotations; each becomes a row in the
form of Prodigy: the fields of the task, ``label`` or ``spans``, ``answer`` and ``_annotator_id``.
Label Studio and Prodigy count the characters of a text as Python does. doccano counts UTF-16 code
units (https://github.com/doccano/doccano/issues/2290), in which an emoji has two.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, combinations
from statistics import mean
from typing import Any, NamedTuple

from finetune.data.dataset import DataError
from finetune.data.files import Record
from finetune.types import quantity

SKIPPED_ANSWERS = ("reject", "ignore")
"""Values of the column ``answer`` with which an annotator excludes a row."""

ANNOTATORS = ("_annotator_id", "annotator", "_session_id")
"""Columns that name the annotator of a row."""
DOCCANO_COMMENTS = "Comments"
"""Column of every export of doccano."""
_TASK = "_input_hash"
"""Column with the task of a row, whatever its text."""


def tool_rows(row: dict[str, Any], where: str) -> Iterator[Record]:
    """Yield an object as one row, or as one row for each of its annotations (Label Studio)."""
    task, annotations = row.get("data"), row.get("annotations")
    if isinstance(annotations, list) and isinstance(task, Mapping):
        base = {"id": row.get("id"), **task, "_input_hash": row.get("id")}
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


def annotator(record: Record) -> Any:
    """Return the annotator of a row, None if it names none."""
    for key in ANNOTATORS:
        if (name := record.values.get(key)) not in (None, ""):
            return name
    return None


class AnnotatedColumns(NamedTuple):
    """The columns of texts and of gold."""

    texts: Sequence[str | None]
    gold: Sequence[str | None]
    ordered: bool = False
    """Whether lists of names are in the order of words, as tags are."""


def resolve_annotators(
    records: Sequence[Record], columns: AnnotatedColumns
) -> tuple[list[Record], list[str]]:
    """Keep one row of each text that several annotators have annotated, with notes.

    The row of the majority is kept. A text without a majority is left out.
    """
    skipped = () if "answer" in columns.gold else SKIPPED_ANSWERS
    groups: defaultdict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        name = annotator(record)
        if name is not None and record.values.get("answer") not in skipped:
            groups[_text(record, columns)][json.dumps(name, default=str)] = record
    shared = {text: rows for text, rows in groups.items() if len(rows) > 1}
    if not shared:
        return list(records), []
    kept: dict[str, Record | None] = {}
    for text, rows in shared.items():
        golds = {name: _gold(record, columns) for name, record in rows.items()}
        (first, count), *_ = Counter(golds.values()).most_common()
        majority = next(rows[name] for name, gold in golds.items() if gold == first)
        kept[text] = majority if 2 * count > len(rows) else None
    all_golds = [
        {name: _gold(row, columns) for name, row in own.items()} for own in shared.values()
    ]
    differ = sum(len({*golds.values()}) > 1 for golds in all_golds)
    without = sum(record is None for record in kept.values())
    result: list[Record] = []
    for record in records:
        if (text := _text(record, columns)) not in kept or kept[text] is record:
            result.append(record)
    annotators = {name for rows in shared.values() for name in rows}
    note = (
        f"{quantity(len(shared), 'text')} with several annotators ({len(annotators)} in all), who "
        f"differ on {differ:,}: {_agreement(all_golds)}; the annotation of the majority is kept, "
        f"and {quantity(without, 'text')} without a majority left out"
    )
    return result, [note]


def _text(record: Record, columns: AnnotatedColumns) -> str:
    values = [record.values.get(name) for name in (_TASK, *filter(None, columns.texts))]
    known = any(value is not None for value in values)
    return json.dumps(values if known else record.where, default=str)


def _gold(record: Record, columns: AnnotatedColumns) -> str:
    """Return the annotation of a row in a form that can be compared."""
    values = [record.values.get(name) for name in filter(None, columns.gold)]
    lists = [value for value in values if isinstance(value, list)]
    if lists:
        items = (
            _item([place, item] if columns.ordered and isinstance(item, str | int) else item)
            for value in lists
            for place, item in enumerate(value)
        )
        return json.dumps(sorted(items))
    return json.dumps(values[0] if len(values) == 1 else values, default=str)


def _item(item: Any) -> str:
    if isinstance(item, Mapping):
        keys = ("start", "end", "label", "labels")
        return json.dumps([item.get(key) for key in keys if item.get(key) is not None])
    return json.dumps(item, default=str)


def _agreement(all_golds: Sequence[Mapping[str, str]]) -> str:
    """Return the agreement of annotators: Cohen's kappa of labels, F1 of lists and spans.

    F1 of one annotator against another is the limit of kappa where most spans of a text are
    negative (Hripcsak & Rothschild, 2005).
    """
    pairs: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for golds in all_golds:
        for one, other in combinations(sorted(golds), 2):
            pairs[one, other].append((golds[one], golds[other]))
    every = [gold for sides in pairs.values() for side in sides for gold in side]
    if any(gold.startswith("[") for gold in every):
        values = [_f1(sides) for sides in pairs.values()]
        return f"F1 of one against another {mean(values):.2f}, the mean over pairs of annotators"
    kappas = [cohens_kappa(*zip(*sides, strict=True)) for sides in pairs.values()]
    return f"Cohen's kappa {mean(kappas):.2f}, the mean over pairs of annotators"


def cohens_kappa(one: Sequence[str], other: Sequence[str]) -> float:
    """Return Cohen's kappa (1960) of the labels of two annotators; 1 if all labels are equal."""
    from sklearn.metrics import cohen_kappa_score

    if list(one) == list(other):
        return 1.0  # it is undefined where all texts have one label
    return float(cohen_kappa_score(one, other))


def _f1(sides: Sequence[tuple[str, str]]) -> float:
    """Return the F1 of the lists of two annotators, as JSON."""
    lists = [
        [{*json.loads(side)} if side.startswith("[") else set() for side in both] for both in sides
    ]
    total = sum(len(one) + len(other) for one, other in lists)
    return 2 * sum(len(one & other) for one, other in lists) / total if total else 1.0
