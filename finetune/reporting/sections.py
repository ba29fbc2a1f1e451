"""The sections between the score and the mistakes: training, parts, calibration, lengths."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from finetune.evaluation.analysis_tables import TITLES
from finetune.evaluation.calibration import error_of
from finetune.evaluation.error_analysis import Analysis
from finetune.evaluation.errors import count_categories
from finetune.evaluation.subgroups import SENTENCE_LENGTHS, bucket, buckets
from finetune.reporting.charts import bar_chart, line_chart, reliability_chart, scatter_chart
from finetune.reporting.html import EMPTY, Html, details, element, figure, joined
from finetune.reporting.runs import Evaluated, Run
from finetune.reporting.tables import MOST_LABELS, confusion_matrix, record_table, table
from finetune.types import TextExample

MOST_CONFUSED = 15
"""Pairs of confused labels that are listed."""
MOST_POINTS = 1500
"""Points of a scatter of numbers."""
_CLASSES = ("type", "label", "tag", "counted")
_CONFUSIONS = ("confusion", "confused")

Named = Sequence[tuple[str, Run]]


def curves(runs: Named) -> Html:
    """Loss, validation score, learning rate and speed over steps, a line for each run."""
    drawn = []
    for key, caption in (
        ("loss", "Training loss"),
        ("lr", "Learning rate"),
        ("gradient_norm", "Gradient norm"),
        ("examples_per_second", "Training speed, examples per second"),
    ):
        series = [(name, [(line["step"], line[key]) for line in run.training if key in line])
                  for name, run in runs]  # fmt: skip
        drawn.append(_curve(caption, series))
    drawn[1:1] = _evaluation_curves(runs)
    return element("div", *drawn, class_="charts")


def _curve(caption: str, series: Sequence[tuple[str, list[tuple[float, float]]]]) -> Html:
    known = [(name, [p for p in points if math.isfinite(p[1])]) for name, points in series]
    series = [(name, points) for name, points in known if points]
    if not series:
        return EMPTY
    ends = "; ".join(f"{name}: {points[0][1]:.4g} at step {points[0][0]} to {points[-1][1]:.4g} "
                     f"at step {points[-1][0]}" for name, points in series)  # fmt: skip
    few = max(len(points) for _, points in series) <= 30
    return figure(caption, line_chart(f"{caption}. {ends}", series, dots=few))


def _evaluation_curves(runs: Named) -> list[Html]:
    """The scores of each evaluation: all of one run in one drawing, or the first one of many."""
    lines = [(name, line) for name, run in runs for line in run.evaluations]
    if not lines:
        return []
    metrics = [
        name for name, value in lines[0][1].items()
        if isinstance(value, int | float) and name not in ("step", "mse") and ":" not in name
    ]  # fmt: skip
    chosen = runs[0][1].config.get("metric") or (metrics[0] if metrics else "")
    split = lines[0][1]["split"]
    if len(runs) > 1:
        series = [(name, [(line["step"], line[chosen]) for line in run.evaluations
                          if chosen in line]) for name, run in runs]  # fmt: skip
        return [_curve(f"{chosen} on {split}", series)]
    series = [(metric, [(line["step"], line[metric]) for _, line in lines if metric in line])
              for metric in metrics[:6]]  # fmt: skip
    return [_curve(f"Scores on {split}", series)]


def classes(runs: Named) -> Html:
    """Scores of each class or type: all of one run, F1 of several side by side."""
    known = [(name, run.evaluated.analysis) for name, run in runs if run.evaluated]
    if len(known) == 1:
        tables = _tables(known[0][1], _CLASSES)
        return element("div", *tables, class_="tables") if tables else EMPTY
    found = []
    for key in _CLASSES[:3]:
        sides = [(name, {row[key]: row for row in analysis.tables.get(key, ())})
                 for name, analysis in known]  # fmt: skip
        names = dict.fromkeys(row for _, side in sides for row in side)
        if names:
            rows = [[name, *(side.get(name, {}).get("f1") for _, side in sides),
                     max(side.get(name, {}).get("support", 0) for _, side in sides)]
                    for name in names]  # fmt: skip
            columns = [key, *(name for name, _ in sides), "support"]
            bars = range(1, len(sides) + 1)
            found.append(table(f"F1 {TITLES[key].lower()}", columns, rows, bars))
    return joined(found)


def confusions(runs: Named) -> Html:
    """The confusion matrix, what is taken for what, and how many mistakes of each kind."""
    return _each(runs, _confusions)


def _confusions(evaluated: Evaluated) -> Html:
    analysis, parts = evaluated.analysis, []
    if analysis.kind == "number":
        return element("div", _scatter(evaluated), class_="charts")
    matrix = analysis.tables.get("confusion", [])
    if 0 < len(matrix) <= MOST_LABELS:
        parts.append(confusion_matrix(matrix))
    elif matrix:
        parts.append(element("p", f"The matrix of {len(matrix)} labels is too wide for a page: "
                             "finetune analyse --json has it.", class_="note"))  # fmt: skip
    pairs = analysis.tables.get("confused", [])[:MOST_CONFUSED]
    parts.append(record_table(TITLES["confused"], pairs))
    counts = count_categories(analysis.errors)
    if counts and not matrix:
        parts.append(table("Mistakes by kind", ["kind", "number"], [[*c] for c in counts.items()]))
    return element("div", *parts, class_="tables") if any(parts) else EMPTY


def _scatter(evaluated: Evaluated) -> Html:
    run = evaluated.answers
    number = len(run.gold)
    every = math.ceil(number / MOST_POINTS)  # not the first ones: data may be sorted
    points = list(zip(run.gold, run.predicted, strict=True))[::every]
    of_all = f" of {number:,}" if every > 1 else ""
    caption = f"Predicted over gold, {len(points):,}{of_all} texts"
    return figure(caption, scatter_chart(f"{caption}; the line is where both are equal", points))


def calibration(runs: Named) -> Html:
    """The reliability diagram with its error."""
    return _each(runs, _calibration)


def _calibration(evaluated: Evaluated) -> Html:
    bins = evaluated.analysis.bins
    if evaluated.analysis.kind == "number":
        return EMPTY
    if not bins:
        return element("p", "No probabilities in the predictions: nothing on calibration.",
                       class_="note")  # fmt: skip
    what = {"label": "labels", "labels": "labels that may apply", "tags": "words"}
    named = what.get(evaluated.analysis.kind, "predicted spans")
    error = error_of(bins)
    said = (
        f"Expected calibration error {error:.4f}: on average, confidence and share of right "
        "answers are that far apart."
    )
    caption = f"Share of right answers by confidence ({named})"
    rows = [[f"{each.low:.2f} to {each.high:.2f}", *each[2:]] for each in bins if each.number]
    drawn = reliability_chart(f"{caption}. {said}", bins)
    explained = (
        "Bars: share right. Ticks: mean confidence in the bar. Dashes: perfect calibration. The "
        "strip below the axis is darker where there are more answers (by logarithm)."
    )
    return joined(
        [
            element("p", element("b", f"ECE {error:.4f}"), f". {said}"),
            element("div", figure(caption, drawn), class_="charts"),
            element("p", explained, class_="note"),
            details("The numbers", table(
                caption, ["confidence", "answers", "mean confidence", "accuracy"], rows, [3])),
        ]
    )  # fmt: skip


def parts(runs: Named) -> Html:
    """Scores by length, depth, place and what training data knew; lengths of the texts."""
    return _each(runs, _parts)


def _parts(evaluated: Evaluated) -> Html:
    left_out = {*_CLASSES, *_CONFUSIONS}
    analysis = evaluated.analysis
    names = [name for name in analysis.tables if name not in left_out]
    return joined([_lengths(evaluated), element("div", *_tables(analysis, names), class_="tables")])


def _lengths(evaluated: Evaluated) -> Html:
    sizes = [_size(example) for example in evaluated.answers.examples]
    counts = dict.fromkeys(buckets(SENTENCE_LENGTHS), 0)
    for size in sizes:
        counts[bucket(size, SENTENCE_LENGTHS)] += 1
    caption = f"Examples of the split {evaluated.split} by length in words"
    said = (
        f"mean {statistics.fmean(sizes):.1f}, median {statistics.median(sizes):g}, longest "
        f"{max(sizes):,}"
    )
    listed = ", ".join(f"{name}: {number:,}" for name, number in counts.items())
    drawn = bar_chart(f"{caption}: {listed}; {said}", list(counts.items()), "words")
    return element("div", figure(f"{caption}: {said}", drawn), class_="charts")


def _size(example: Any) -> int:
    if isinstance(example, TextExample):
        return len(example.text.split()) + len((example.pair or "").split())
    return len(example.words)


def _tables(analysis: Analysis, names: Sequence[str]) -> list[Html]:
    return [
        record_table(TITLES.get(name, name), analysis.tables[name])
        for name in names
        if analysis.tables.get(name)
    ]


def _each(runs: Named, section: Any) -> Html:
    """A section of one run as it is; of several to unfold, run by run."""
    known = [(name, run.evaluated) for name, run in runs if run.evaluated]
    made = [(name, section(evaluated)) for name, evaluated in known]
    if len(runs) == 1:
        return joined(content for _, content in made)
    return joined(details(name, content) for name, content in made if content)
