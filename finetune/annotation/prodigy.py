"""Tasks of Prodigy (https://prodi.gy/docs/api-interfaces): choices, and spans with tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.annotation.rows import (
    AnnotatedRow,
    Omissions,
    TextRow,
    WordRow,
    merged,
    tokens_of,
    with_text,
)

SKIPPED_ANSWERS = ("reject", "ignore")
"""Values of the column ``answer`` with which an annotator excludes a row."""
COLUMNS = ("answer", "options", "accept", "config", "_input_hash", "_task_hash", "_view_id")
"""Columns that only the tool reads."""


def is_choice(row: Mapping[str, Any]) -> bool:
    """Whether a row has accepted options."""
    return isinstance(row.get("accept"), list) and isinstance(row.get("options"), list)


def read_choice(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a task with options: one accepted option is the label, several are a list."""
    config = row.get("config")
    style = config.get("choice_style") if isinstance(config, Mapping) else None
    chosen = row["accept"]
    single = chosen[0] if chosen else None
    return {**row, "label": single if style in (None, "single") else chosen}


def labels_of(rows: Sequence[TextRow]) -> list[str] | None:
    """The labels of all rows; None if a row has several."""
    if any(row.kind == "labels" for row in rows):
        return None
    return sorted({str(row.gold) for row in rows if row.gold is not None})


def write_choice(labels: list[str] | None, row: TextRow) -> dict[str, Any]:
    """Convert a text with labels to a task with options; ``labels`` are as in ``labels_of``."""
    if labels == [] or row.gold is None:
        return merged(row, row.texts)
    style = "multiple" if labels is None else "single"
    chosen = list(row.gold) if labels is None else [row.gold]
    names = sorted({*chosen}) if labels is None else labels
    options = [{"id": name, "text": name} for name in names]
    last = {"options": options, "accept": chosen, "config": {"choice_style": style}}
    return merged(row, row.texts, last | _answer(row))


def _answer(row: AnnotatedRow) -> dict[str, str]:
    return {} if row.predicted else {"answer": "accept"}


def write_spans(row: WordRow, omitted: Omissions) -> dict[str, Any]:
    """Convert words with spans to a task with tokens."""
    row = with_text(row, omitted)
    example = row.example
    offsets = example.offsets or ()
    if example.unreachable:
        what = "written, Prodigy marks whole tokens"
        omitted["with spans inside of words", what].append(row.name)
    values: dict[str, Any] = {"text": example.text}
    if example.words:
        values["tokens"] = tokens_of(example)
    if example.spans is None:
        return merged(row, values)
    values["spans"] = [
        {
            "start": offsets[start][0],
            "end": offsets[end - 1][1],
            "token_start": start,
            "token_end": end - 1,
            "label": label,
        }
        for start, end, label in example.spans
    ] + [span._asdict() for span in example.unreachable]
    return merged(row, values, _answer(row))
