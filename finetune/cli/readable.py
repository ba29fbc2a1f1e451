"""Predictions and their explanations as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.cli.output import print_table
from finetune.runtime.row_files import json_line

STRONGEST = 12
"""Words that a table of an explanation has."""
BETWEEN = "   "
"""What separates the answers of a line."""


def prediction_line(row: Mapping[str, Any]) -> str:
    """Format a prediction as a line such as `Maria Keller PER 0.91 Oslo LOC 0.90`."""
    if row.get("spans") is not None:
        return BETWEEN.join(_spans(row)) or "nothing found"
    if "tags" in row:
        pairs = zip(row["words"], row["tags"], strict=True)
        return BETWEEN.join(f"{word} {tag}" for word, tag in pairs)
    if "masks" in row:
        masks = ([f"{c['subword']} {c['score']:.2f}" for c in best] for best in row["masks"])
        return "\n".join(map(BETWEEN.join, masks))
    for name in ("choice_text", "answer", "label"):
        if name in row:
            return _answer(row[name], row)
    return json_line(row)


def _spans(row: Mapping[str, Any]) -> list[str]:
    names = [
        span.get("text") or " ".join(row["words"][span["start"] : span["end"]])
        for span in row["spans"]
    ]
    if "relations" not in row:
        pairs = zip(names, row["spans"], strict=True)
        return [f"{name} {span['label']} {span['score']:.2f}" for name, span in pairs]
    return [
        f"{names[relation['subject']]} {relation['label']} {names[relation['object']]} "
        f"{relation['score']:.2f}"
        for relation in row["relations"]
    ]


def _answer(answer: Any, row: Mapping[str, Any]) -> str:
    if isinstance(answer, list):
        scores = row.get("scores") or {}
        return BETWEEN.join(f"{name} {scores[name]:.2f}" for name in answer) or "no label"
    if row.get("withheld") is not None:
        return f"abstained: {row['withheld']}"
    if isinstance(answer, float):
        return f"{answer:.4g}"
    shown = "no answer" if answer in (None, "") else str(answer)
    return shown if row.get("score") is None else f"{shown} {row['score']:.2f}"


def show_explanations(explanations: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the strongest words for each label."""
    for label in explanations:
        words, scores = ([*label[k], *label.get(f"pair_{k}", ())] for k in ("words", "scores"))
        rows = sorted(zip(words, scores, strict=True), key=lambda pair: -abs(pair[1]))[:STRONGEST]
        span = slice(label.get("start", 0), label.get("end", 0))
        about = f" ({' '.join(words[span])})" if "start" in label else ""
        print_table(("word", label["unit"]), rows, f"{label['label']}{about}")
