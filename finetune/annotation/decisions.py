"""Decisions on labels, tags and spans, as the page of `finetune review` writes them.

A decision is a line of JSON: the ``text`` (or the ``words`` of a sentence without a text), the
``given`` annotation (None without gold), and the decided annotation: a ``label``, a list of labels,
``tags``, or ``spans`` in characters of a text, else in words. ``id`` and ``line`` choose among rows
with the same text.

    {"text": "bad", "given": "pos", "decision": "accept", "label": "neg", "line": 3}
    {"text": "Bo ran", "given": {"spans": []}, "decision": "edit",
     "spans": [{"start": 0, "end": 2, "label": "PER"}]}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from finetune.annotation.annotations import AnnotatedRow, Annotations, counted
from finetune.config.values import conforms
from finetune.data.dataset import DataError
from finetune.data.files import read_lines
from finetune.data.json_files import parse_json
from finetune.data.spans import overlapping
from finetune.data.tag_schemes import spans_to_tags
from finetune.data.token_records import read_spans
from finetune.types import TextExample, TokenExample, abbreviated, quantity

Decision = Mapping[str, Any]

_KINDS = {"label": str | list[str], "tags": list[str], "spans": list[dict[str, Any]]}


def read_decisions(path: Path) -> list[dict[str, Any]]:
    """Return the decisions of a file; raises DataError for any other line."""
    found = []
    for number, line in read_lines(str(path), path):
        where = f"{path}:{number}"
        row = parse_json(line, where)
        if not isinstance(row, dict) or not _is_decision(row):
            raise DataError(f"{where}: not a decision of the page of `finetune review`.")
        found.append(row | {"where": where})
    return found


def _is_decision(row: Decision) -> bool:
    kinds = [kind for kind in _KINDS if kind in row]
    if len(kinds) != 1 or not {"given", "decision"} <= row.keys():
        return False
    (kind,), given = kinds, row["given"]
    if kind != "label" and isinstance(given, dict):
        given = given.get(kind, ())
    known = isinstance(row.get("text"), str) or conforms(row.get("words"), list[str])
    typed = given is None or conforms(given, _KINDS[kind])
    return known and typed and conforms(row[kind], _KINDS[kind])


def apply_decisions(
    annotations: Annotations, decisions: Sequence[Decision]
) -> tuple[Annotations, list[str]]:
    """Return annotations with the decisions applied, and notes.

    A decision applies to the rows with its text; if it names given labels, only to rows that still
    have them. Rows that only a model has labeled are left out if no decision applies to them.

    Raises:
        DataError: A decision is of another kind than the data, or the row with its id has another
            text.
    """
    rows = list(annotations.rows)
    by_content: defaultdict[Any, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_content[row.content].append(index)
    ids = {str(row.example.key) for row in rows if row.example.key is not None}
    decided: set[int] = set()
    changed: set[int] = set()
    left = []
    for decision in decisions:
        if ("label" in decision) != (annotations.kind == "text"):
            kinds = ("texts", "words and spans")
            of, have = kinds if annotations.kind == "tokens" else reversed(kinds)
            raise DataError(f"{decision['where']}: a decision on {of}, and the data have {have}.")
        same = by_content.get(decision.get("text", tuple(decision.get("words", ()))), [])
        if not same and str(decision.get("id")) in ids:
            raise DataError(
                f"{decision['where']}: the row with the id {decision['id']!r} has another text: "
                "name the data that the review page was made from."
            )
        applied = False
        for index in _matching_rows(same, rows, decision):
            example = rows[index].example
            after = (_relabeled if "label" in decision else _annotated)(example, decision)
            if after is not None:
                applied = True
                decided.add(index)
                if after != example:
                    changed.add(index)
                rows[index] = replace(rows[index], example=after, predicted=False)
        if not applied:
            left.append(decision["where"])
    if annotations.kind == "tokens" and any(overlapping(row.example.spans or ()) for row in rows):
        rows = [  # as in ``to_bio``
            row
            if row.example.spans is None
            else replace(row, example=replace(row.example, tags=None))
            for row in rows
        ]
    notes = [
        f"{quantity(len(decisions) - len(left), 'decision')} applied, "
        f"{quantity(len(changed), 'row')} changed"
    ]
    if left:
        few = abbreviated(left, 4)
        notes.append(f"{quantity(len(left), 'decision')} on no row of the data: {few}")
    undecided = [row.name for row in rows if row.predicted]
    notes += counted(undecided, "with predicted labels and no decision", "left out")
    return annotations._replace(rows=[row for row in rows if not row.predicted]), notes


def _matching_rows(
    indices: list[int], rows: Sequence[AnnotatedRow], decision: Decision
) -> list[int]:
    id, line = decision.get("id"), str(decision.get("line"))
    keyed = [i for i in indices if id is not None and str(rows[i].example.key) == str(id)]
    placed = [i for i in keyed or indices if rows[i].example.where.rpartition(":")[2] == line]
    return placed or keyed or indices


def _relabeled(example: TextExample, decision: Decision) -> TextExample | None:
    given, name, label = decision["given"], decision["label"], example.label
    if isinstance(name, list):
        if given is not None and not (isinstance(label, tuple) and {*label} == {*given}):
            return None
        return replace(example, label=tuple(name))
    if not isinstance(label, tuple):
        return replace(example, label=name, votes=None) if given in (None, label) else None
    if given is None:
        return replace(example, label=(name,))
    absent = given.startswith("not ") and given not in label  # one of several labels
    if (given[4:] in label) if absent else given not in label:
        return None
    if name.startswith("not ") and name not in label:
        return replace(example, label=tuple(each for each in label if each != name[4:]))
    return example if name in label else replace(example, label=(*label, name))


def _annotated(example: TokenExample, decision: Decision) -> TokenExample | None:
    given, where = decision["given"], decision["where"]
    if "tags" in decision:
        if len(decision["tags"]) != len(example.words):
            tags, words = quantity(len(decision["tags"]), "tag"), len(example.words)
            raise DataError(f"{where}: {tags} for {quantity(words, 'word')}.")
        if given is not None and tuple(given["tags"]) != example.tags:
            return None
        return replace(example, tags=tuple(decision["tags"]))
    place = where, len(example.words), example.text, example.offsets
    if given is not None:
        known = read_spans(given["spans"], *place)
        own = sorted({*(example.spans or ())}), sorted({*example.unreachable})
        if example.spans is None or (list(known.spans), list(known.unreachable)) != own:
            return None
    found = read_spans(decision["spans"], *place)
    flat = not overlapping(found.spans)
    return replace(
        example,
        spans=found.spans,
        unreachable=found.unreachable,
        tags=tuple(spans_to_tags(found.spans, place[1], "BIO")) if flat else None,
    )
