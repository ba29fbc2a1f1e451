"""Predictions and their explanations as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        answers = _texts(row, row.get("relations", row["spans"]))
        answers += [f"abstained: {text}" for text in _texts(row, row.get("withheld") or ())]
        return BETWEEN.join(answers) or "nothing found"
    if "tags" in row:
        of_word = {s["start"]: f"abstained: {s['label']}" for s in row.get("withheld") or ()}
        tags = (tag or of_word.get(index, "") for index, tag in enumerate(row["tags"]))
        pairs = zip(row["words"], tags, strict=True)
        return BETWEEN.join(f"{word} {tag}" for word, tag in pairs)
    if "masks" in row:
        masks = ([f"{c['subword']} {c['score']:.2f}" for c in best] for best in row["masks"])
        return "\n".join(map(BETWEEN.join, masks))
    for name in ("choice_text", "answer", "label"):
        if name in row:
            return _answer(row[name], row)
    return json_line(row)


def _texts(row: Mapping[str, Any], values: Iterable[Mapping[str, Any]]) -> list[str]:
    # spans, or relations of the spans of the row
    def name(span: Mapping[str, Any]) -> str:
        return span.get("text") or " ".join(row["words"][span["start"] : span["end"]])

    texts = []
    for value in values:
        if "subject" in value:
            subject, object = (name(row["spans"][value[side]]) for side in ("subject", "object"))
            texts.append(f"{subject} {value['label']} {object} {value['score']:.2f}")
        else:
            texts.append(f"{name(value)} {value['label']} {value['score']:.2f}")
    return texts


def _answer(answer: Any, row: Mapping[str, Any]) -> str:
    withheld = row.get("withheld")
    if isinstance(answer, list):
        scores = row.get("scores") or {}
        labels = [f"{name} {scores[name]:.2f}" for name in answer]
        labels += [f"abstained: {name} {scores[name]:.2f}" for name in withheld or ()]
        return BETWEEN.join(labels) or "no label"
    if withheld is not None:
        return f"abstained: {'no answer' if withheld == '' else withheld}"
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
