"""Analyze the predictions of one system: scores of classes and subgroups, calibration, errors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from finetune.evaluation.calibration import reliability
from finetune.evaluation.decisions.abstaining import abstained_note, risk_table
from finetune.evaluation.metrics import ECE, class_scores, name_of, score
from finetune.evaluation.predictions import GoldSource, align_runs
from finetune.evaluation.runs import find_system
from finetune.evaluation.tables import TableRows, Tables
from finetune.types import UserError

TITLES = {
    "confusion": "Confusion: gold in rows, predicted in columns",
    "confused": "Most often confused",
    "length": "By length of the span in words",
    "depth": "By depth: number of wider spans around a span",
    "sentence length": "By length of the sentence in words",
    "in training": "By occurrence in the training data",
    "text length": "By length of the text in words",
    "pos": "By part of speech",
    "answer length": "By length of the first gold answer in words",
    "risk": "Risk by coverage: the share of errors, if only the most confident answers are given",
}
"""Captions of tables by name; others are `By` and the name."""
NOTHING, ABSTAINED, BLANK = _NO_CLASS = "(nothing)", "(abstained)", "(blank text)"
"""In a confusion matrix: no span corresponds, or a text or word has no label."""


def count_categories(errors: TableRows) -> dict[str, int]:
    """Count the errors of each category, the most frequent first."""
    return dict(Counter(error["category"] for error in errors).most_common())


@dataclass(frozen=True)
class Analysis:
    """The analysis of one system's predictions; ``tables`` has the names of ``TITLES``."""

    run: Tables
    scores: dict[str, float]
    tables: dict[str, TableRows]
    bins: TableRows
    """The reliability diagram; empty where probabilities are not known."""
    errors: TableRows
    split: str = ""
    predictions: str = ""

    @property
    def calibration_error(self) -> float | None:
        """The expected calibration error; None where probabilities are not known."""
        return ECE["ece"].score(self.run) if self.bins else None


def analyze(predictions: str, source: GoldSource | None = None, *, split: str = "test") -> Analysis:
    """Analyze the predictions of a file or run folder."""
    files = find_system(predictions, split)
    if len(files) != 1:
        raise UserError(
            f"{predictions}: holds the predictions of {len(files)} runs: name one of them, "
            f"such as {files[0].parent}."
        )
    analysis = analyze_predictions(align_runs(files, source)[0])
    return replace(analysis, split=split, predictions=str(files[0]))


def analyze_predictions(run: Tables) -> Analysis:
    """Analyze aligned predictions."""
    classes, tables = run.type.classes, dict[str, TableRows]()
    if classes:
        by_class = class_scores(run).items()
        tables[classes.column] = [{classes.column: name} | row for name, row in by_class]
    if classes and classes.confusions:
        marks = np.where(run.items.abstained, ABSTAINED, BLANK)
        gold, predicted = (
            [NOTHING if v is None else name_of(v) or m for v, m in zip(side, marks, strict=True)]
            for side in (run.items.gold, run.items.answer)
        )
        tables |= confusion_tables(Counter(zip(gold, predicted, strict=True)))
    groupings = run.groupings().items()
    tables |= {name: group.table(name) for name, group in groupings if group.shown}
    if rows := risk_table(run):
        tables["risk"] = rows
    items = run.type.calibrated(run)
    bins = reliability(items.score, items.credit > 0) if run.is_rated else []
    return Analysis(run, score(run, analysis=True), tables, bins, mistakes(run))


def confusion_tables(pairs: Counter[Any]) -> dict[str, TableRows]:
    """Tabulate the confusion matrix of (gold, predicted) pairs, and the most frequent errors."""
    labels = {name for pair in pairs for name in pair}
    names = sorted(labels, key=lambda name: (name in _NO_CLASS, name))
    matrix = [
        {"gold": gold, "predicted": {name: pairs[gold, name] for name in names}}
        for gold in names
        if gold not in (ABSTAINED, BLANK)
    ]
    confused = [
        {"gold": gold, "predicted": predicted, "number": number}
        for (gold, predicted), number in pairs.most_common()
        if gold != predicted and not {gold, predicted} & {*_NO_CLASS}
    ]
    return {"confusion": matrix, "confused": confused}


def mistakes(run: Tables) -> TableRows:
    """List every wrong and every missed item in order; errors of numbers by their size.

    A row has the index of the ``example``, the ``category`` of the error, gold and prediction as
    JSON values, None for nothing, and the ``confidence`` of the prediction if it is known.
    """
    type, items = run.type, run.items
    if type.sides is None:
        return []
    wrong = np.flatnonzero(items.correct < 1)
    if items.has_sizes:
        wrong = wrong[np.argsort(-items.columns["deviation"][wrong], kind="stable")]
    has_score = ~np.isnan(items.score)
    if not type.in_words and not has_score[items.predicted != ""].all():
        has_score[:] = False  # a confidence is told where all are comparable

    rows = TableRows()
    for item in wrong.tolist():
        gold, predicted = type.sides(run, item)
        row = {"example": int(items.example[item]), "category": items.category(item)}
        confidence = float(items.score[item]) if has_score[item] else None
        rows.append({**row, "gold": gold, "predicted": predicted, "confidence": confidence})
    return rows


def analysis_dict(analysis: Analysis, num_examples: int) -> dict[str, Any]:
    """Convert the analysis to JSON values, with the first errors of each category.

    These are the most confident ones, if confidence is known.
    """
    categories = count_categories(analysis.errors)
    by_category: dict[str, list[dict[str, Any]]] = {name: [] for name in categories}
    for error in sorted(analysis.errors, key=lambda error: -(error["confidence"] or 0.0)):
        if len(rows := by_category[error["category"]]) < num_examples:
            example = analysis.run.examples[error["example"]]
            id = example.id if example.key is None else example.key
            row = {"category": error["category"], "id": id, "where": example.where}
            row |= {name: error[name] for name in ("gold", "predicted", "confidence")}
            rows.append(row | {"text": example.line()})
    return {
        "predictions": analysis.predictions,
        "gold": analysis.run.files[1] if analysis.run.files else "",
        "withheld": abstained_note(analysis.run) or None,
        "aligned_by": analysis.run.aligned_by or None,
        "kind": analysis.run.type.name.removeprefix("plain "),
        "num_examples": len(analysis.run),
        "scores": analysis.scores,
        "tables": analysis.tables,
        "calibration": {
            "expected_calibration_error": analysis.calibration_error,
            "bins": analysis.bins,
        },
        "errors": categories,
        "examples": by_category,
    }
