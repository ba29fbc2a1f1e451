"""Decisions on labels of texts, as the page of `finetune review` writes them, applied to data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from finetune.data.annotations import Annotations
from finetune.data.dataset import DataError
from finetune.data.files import read_lines
from finetune.data.json_files import parse_json
from finetune.types import abbreviated, quantity


def text_and_pair(text: str, pair: str | None) -> str:
    """Return a text, or both texts of a pair, as suspects show them."""
    return text if pair is None else f"{text} ||| {pair}"


def read_decisions(path: Path) -> list[dict[str, Any]]:
    """Return the decisions of a file; raises DataError for any other line."""
    found = []
    for number, line in read_lines(str(path), path):
        where = f"{path}:{number}"
        row = parse_json(line, where)
        known = isinstance(row, dict) and {"text", "given", "decision", "label"} <= row.keys()
        if not known or not isinstance(row["label"], str):
            raise DataError(f"{where}: not a decision of the page of `finetune review`.")
        found.append(row | {"where": where})
    return found


def apply_decisions(
    annotations: Annotations, decisions: list[dict[str, Any]]
) -> tuple[Annotations, list[str]]:
    """Return annotations with the labels that were decided on, and notes.

    A decision is on the rows with its text, and if it names a label, on those that have this label.
    """
    if annotations.kind != "text":
        raise DataError("decisions are on labels of texts, and the data have words or spans.")
    by_text = defaultdict(list)
    for decision in decisions:
        by_text[decision["text"]].append(decision)
    used: set[str] = set()
    changed = []
    rows = list(annotations.rows)
    for index, row in enumerate(rows):
        example = row.example
        label = example.label
        for decision in by_text.get(text_and_pair(example.text, example.pair), ()):
            if _applies(decision, label, example.where):
                used.add(decision["where"])
                label = _decided(decision, label)
        if label != example.label:
            changed.append(row.name)
            rows[index] = replace(row, example=replace(example, label=label), predicted=False)
    notes = [
        f"{quantity(len(used), 'decision')} applied, {quantity(len(changed), 'label')} changed"
    ]
    if left := [decision["where"] for decision in decisions if decision["where"] not in used]:
        few = abbreviated(left, 4)
        notes.append(f"{quantity(len(left), 'decision')} on no row of the data: {few}")
    return annotations._replace(rows=rows), notes


def _applies(decision: Mapping[str, Any], label: Any, where: str) -> bool:
    given = decision["given"]
    if isinstance(label, tuple) and given is not None:
        absent = given.startswith("not ") and given not in label
        return (given[4:] not in label) if absent else given in label
    if given is not None and given != label:
        return False
    line = decision.get("line")
    return line is None or not where.rpartition(":")[2].isdecimal() or where.endswith(f":{line}")


def _decided(decision: Mapping[str, Any], label: Any) -> Any:
    """Return the decided label; one of several is added, or removed by ``not NAME``."""
    name = decision["label"]
    if not isinstance(label, tuple) or decision["given"] is None:
        return name
    if name.startswith("not ") and name not in label:
        return tuple(each for each in label if each != name[4:])
    return label if name in label else (*label, name)
