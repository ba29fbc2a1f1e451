"""Predictions and their reasons as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finetune.cli.output import print_table
from finetune.runtime.row_files import json_line

STRONGEST = 12
"""Words that a table of an explanation has."""
BETWEEN = "   "
"""What separates the answers of a line."""


def without_reasons(row: Mapping[str, Any]) -> dict[str, Any]:
    """Remove from a row its attributions and nearest training examples."""
    return {name: value for name, value in row.items() if name not in ("explanation", "nearest")}


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
    return json_line(without_reasons(row))


def _names(row: Mapping[str, Any]) -> list[str]:
    return [
        span.get("text") or " ".join(row["words"][span["start"] : span["end"]])
        for span in row["spans"]
    ]


def _gold(example: Mapping[str, Any]) -> Any:
    gold = example["gold"]
    if not isinstance(gold, Mapping):
        return gold
    if gold.get("spans") is None:
        return " ".join(gold["tags"])
    labels = [span["label"] for span in gold["spans"]]
    pairs = zip(_names({**example, **gold}), labels, strict=True)
    return BETWEEN.join(f"{name} {label}" for name, label in pairs)


def _spans(row: Mapping[str, Any]) -> list[str]:
    names = _names(row)
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


def show_reasons(row: Mapping[str, Any]) -> None:
    """Print tables of the strongest words for each label, and of the nearest training examples."""
    for reasons in row.get("explanation", ()):
        words, scores = ([*reasons[k], *reasons.get(f"pair_{k}", ())] for k in ("words", "scores"))
        rows = sorted(zip(words, scores, strict=True), key=lambda pair: -abs(pair[1]))[:STRONGEST]
        span = slice(reasons.get("start", 0), reasons.get("end", 0))
        about = f" ({' '.join(words[span])})" if "start" in reasons else ""
        print_table(("word", reasons["unit"]), rows, f"{reasons['label']}{about}")
    if near := row.get("nearest"):
        texts = [example.get("text") or " ".join(example.get("words", ())) for example in near]
        columns = ("similarity", "gold", "text", "place")
        values = [
            [example["similarity"], _gold(example), text, example.get("where", "")]
            for example, text in zip(near, texts, strict=True)
        ]
        print_table(columns, values, "nearest training examples")
