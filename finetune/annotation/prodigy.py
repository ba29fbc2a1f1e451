"""Tasks of Prodigy (https://prodi.gy/docs/api-interfaces): choices, and spans with tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.annotation.rows import AnnotatedRow, Omissions, merged, prodigy_tokens

SKIPPED_ANSWERS = ("reject", "ignore")
"""Values of the column ``answer`` with which an annotator excludes a row."""
TOOL_COLUMNS = ("answer", "options", "accept", "config", "_input_hash", "_task_hash", "_view_id")
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


def write_choices(rows: Sequence[AnnotatedRow]) -> Iterator[dict[str, Any]]:
    """Yield a task for each text, whose options are the labels of all, or its several labels."""
    several = any(isinstance(row.example.label, tuple) for row in rows)
    labels = {str(row.example.label) for row in rows if row.example.label is not None}
    for row in rows:
        if (label := row.example.label) is None:
            yield merged(row, row.texts)
            continue
        chosen = list(label) if several else [label]
        names = sorted({*chosen} if several else labels)
        last: dict[str, Any] = {
            "options": [{"id": name, "text": name} for name in names],
            "accept": chosen,
            "config": {"choice_style": "multiple" if several else "single"},
        }
        yield merged(row, row.texts, last | _answer(row))


def _answer(row: AnnotatedRow) -> dict[str, str]:
    return {} if row.predicted else {"answer": "accept"}


def write_spans(row: AnnotatedRow, omitted: Omissions) -> dict[str, Any]:
    """Convert words with spans to a task with tokens."""
    example = row.example
    offsets = example.offsets or ()
    if example.misaligned:
        what = "written, Prodigy marks whole tokens"
        omitted["with spans inside of words", what].append(row.name)
    values = row.texts
    if example.words:
        values["tokens"] = prodigy_tokens(example)
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
    ] + [span._asdict() for span in example.misaligned]
    return merged(row, values, _answer(row))
