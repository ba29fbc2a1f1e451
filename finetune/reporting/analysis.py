"""Show an analysis on pages and terminals: its tables, and the examples with errors.

Gold and predictions of an example stand side by side. Spans of sentences, which may nest and cross,
are highlighted.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from finetune.evaluation.error_analysis import AROUND, TITLES, Analysis, ErrorCase, most_confident
from finetune.evaluation.items import Tables
from finetune.reporting.rendering import PageTable, clip
from finetune.types import Question, Span, TokenExample

MOST_EXAMPLES = 300
"""Examples with errors that a report holds, of all its runs together."""
MOST_CONFIDENT = 20
"""Errors that count as the most confident ones."""
_MOST_CHARACTERS = 1200
"""Characters shown of a text."""
_MOST_WORDS = 120
"""Words shown of a sentence."""

Part = tuple[str, str]
"""A "text", or the "start" or the "end" of a highlight, with the text, the style or the label."""
_FRACTIONS = frozenset({"precision", "recall", "f1", "accuracy"})
"""Columns that a page also draws as bars."""


def analysis_tables(analysis: Analysis) -> dict[str, PageTable]:
    """Make the tables of an analysis that have rows, by name."""
    tables = {"scores": PageTable("Scores", ["metric", "value"], [*analysis.scores.items()])}
    for name, rows in analysis.tables.items():
        if rows and name == "confusion":
            columns = ["gold", *rows[0]["predicted"]]
            cells = [[row["gold"], *row["predicted"].values()] for row in rows]
            tables[name] = PageTable(TITLES[name], columns, cells)
        elif rows:
            bars = [index for index, column in enumerate(rows[0]) if column in _FRACTIONS]
            cells = [[*row.values()] for row in rows]
            tables[name] = PageTable(TITLES.get(name, f"By {name}"), [*rows[0]], cells, bars)
    if analysis.bins:
        columns = ["confidence", "predictions", "mean confidence", "accuracy"]
        bins = [bin for bin in analysis.bins if bin.number]
        cells = [[f"{bin.low:.2f} to {bin.high:.2f}", *bin[2:]] for bin in bins]
        tables["calibration"] = PageTable("Predictions by confidence", columns, cells, [3])
    return tables


def error_examples(
    name: str,
    analysis: Analysis,
    most: int,
    reasons: Callable[[Sequence[Any]], Mapping[str, Sequence[Any]]] | None = None,
) -> tuple[list[dict[str, Any]], int]:
    """Collect at most ``most`` examples with errors for the page, and count all of them.

    The most confident errors come first. ``name`` is the name of the run in the report, ``reasons``
    returns the reasons of its predictions for examples. A text has ``texts`` (both of a pair). A
    sentence has ``sentences``, "gold" and "predicted", each with its spans highlighted. A question
    has both: its text, and its context as sentences.
    """
    run = analysis.run
    by_id: defaultdict[int, list[ErrorCase]] = defaultdict(list)
    for error in analysis.errors:
        by_id[error.example.id].append(error)
    if not by_id:
        return [], 0  # also of senses and subwords, whose errors are not listed
    confident = {e.example.id for e in most_confident(analysis.errors, MOST_CONFIDENT)}
    order = sorted(by_id, key=lambda id: -max(error.confidence or 0.0 for error in by_id[id]))
    indices = {example.id: index for index, example in enumerate(run.examples)}
    chosen = [run.examples[indices[id]] for id in order[:most]]
    why = reasons(chosen) if reasons and chosen else {}
    examples = []
    for position, example in enumerate(chosen):
        errors, index = by_id[example.id], indices[example.id]
        sides = [side for error in errors for side in (error.gold, error.predicted)]
        labels = [side["label"] if isinstance(side, Mapping) else side for side in sides]
        content = {
            "run": name,
            "where": example.where or f"example {example.id}",
            "categories": [*dict.fromkeys(e.category for e in errors if not run.items.has_sizes)],
            "labels": list(dict.fromkeys(x for x in labels if x and isinstance(x, str))),
            "views": ["most confident errors"] if example.id in confident else [],
            "errors": errors,
            **dict.fromkeys(("texts", "sentences", "gold", "predicted", "probabilities"), ()),
            "deviation": None,
        }
        if run.type.in_words:
            content["sentences"] = _highlighted(example, _span_sets(run, index), errors)
        else:
            is_question = isinstance(example, Question)
            texts = [example.text] if is_question or example.pair is None else example.texts()
            content["texts"] = [clip(text, _MOST_CHARACTERS) for text in texts[:2]]
            content["sentences"] = _in_context(example, errors[0]) if is_question else []
            content |= _values(run, index, errors)
        listed = {name: of_examples[position] for name, of_examples in why.items()}
        examples.append(content | _reasons(example, errors, **listed))
    return examples, len(by_id)


def _values(run: Tables, index: int, errors: Sequence[ErrorCase]) -> dict[str, Any]:
    rows = np.flatnonzero(run.items.example == index)
    items, sides = run.items.take(rows), list[list[Any]]()
    is_single = len(rows) == 1 and not isinstance(run.predicted[index], tuple)
    of_item = run.type.sides(run, int(rows[0])) if run.type.sides and len(rows) == 1 else [None] * 2
    for value, shown in zip((run.gold[index], run.predicted[index]), of_item, strict=True):
        shown = shown["text"] if isinstance(shown, Mapping) else shown
        values = dict.fromkeys(value if isinstance(value, tuple) else [shown])
        sides.append([value for value in values if value not in ("", None)])
    deviation = items.columns.get("deviation")
    ranked = run.predictions[index].ranked(run.examples[index])
    return {
        "gold": sides[0],
        "predicted": sides[1],
        "probabilities": [(clip(text, _MOST_CHARACTERS), p, mark) for text, p, mark in ranked],
        "confidence": errors[0].confidence if is_single and items.correct < 1 else None,
        "deviation": None if deviation is None else float(deviation[0]),
    }


def _span_sets(run: Tables, index: int) -> tuple[set[Span], set[Span]] | None:
    items = run.items.take(run.items.example == index)
    gold, predicted = ({*side} - {None} for side in (items.gold, items.predicted))
    return (gold, predicted) if all(isinstance(v, Span) for v in gold | predicted) else None


def _reasons(
    example: Any,
    errors: Sequence[ErrorCase],
    explanation: Sequence[Any] = (),
    nearest: Sequence[Any] = (),
) -> dict[str, Any]:
    wrong = [e.predicted for e in errors if isinstance(e.predicted, Mapping)]
    gold = example.gold_labels() or ()
    neighbors = []
    for near in nearest:
        labels = dict.fromkeys(near.example.gold_labels() or ())
        marks = [(label, "right" if label in gold else "wrong") for label in labels]
        text = clip(near.example.line(), _MOST_CHARACTERS // 4)
        neighbors.append((near.similarity, marks, text, near.example.where))
    explanations = []
    for attribution in explanation:
        words = attribution.label.words
        if words is None or any(e["start"] <= words[0] and words[1] <= e["end"] for e in wrong):
            largest = max(map(abs, attribution.scores), default=0.0) or 1.0
            pairs = zip(attribution.words.words, attribution.scores, strict=True)
            parts = [(clip(word), score, score / largest) for word, score in pairs]
            if attribution.words.num_first < len(parts):
                parts.insert(attribution.words.num_first, ("‖", 0.0, 0.0))
            explanations.append((attribution.label.label, parts[:_MOST_WORDS]))
    return {"neighbors": neighbors, "explanations": explanations}


def _in_context(example: Question, error: ErrorCase) -> list[tuple[str, list[Part]]]:
    context = example.pair or ""
    sides = [side for side in (error.gold, error.predicted) if side]
    positions = [(side["start"], side["end"]) for side in sides]
    if not all(isinstance(edge, int) for position in positions for edge in position):
        return []
    edges = {edge for position in positions for edge in position}
    words = list[tuple[int, int]]()
    for start, end in (match.span() for match in re.finditer(r"\S+", context)):
        inside = {edge for edge in edges if start < edge < end}
        words += pairwise(sorted({start, end, *inside}))
    parts = tuple(context[start:end] for start, end in words)
    sentence = TokenExample(example.id, parts, text=context, offsets=tuple(words))
    gold, predicted = (
        None if side is None else _in_words(words, side)._asdict()
        for side in (error.gold, error.predicted)
    )
    wrong = replace(error, gold=gold, predicted=predicted)
    return _highlighted(sentence, None, [wrong])


def _in_words(words: Sequence[tuple[int, int]], side: Mapping[str, Any]) -> Span:
    inside = [
        i for i, (start, end) in enumerate(words) if start < side["end"] and end > side["start"]
    ]
    return Span(min(inside, default=0), max(inside, default=-1) + 1, side["label"])


def _highlighted(
    example: TokenExample, both: tuple[set[Span], set[Span]] | None, errors: Sequence[ErrorCase]
) -> list[tuple[str, list[Part]]]:
    # all spans of gold and prediction; of plain tags, only wrong words
    wrong = [
        [Span(side["start"], side["end"], side["label"]) for side in sides if side]
        for sides in ([e.gold for e in errors], [e.predicted for e in errors])
    ]
    gold, predicted = both or map(set, wrong)
    correct = gold & predicted
    first, last = 0, len(example.words)
    if last > _MOST_WORDS:
        first = max(0, min(span.start for side in wrong for span in side) - AROUND)
        last = min(last, max(span.end for side in wrong for span in side) + AROUND)
        last = min(last, first + _MOST_WORDS)
    found = []
    for side, spans, style in (("gold", gold, "missed"), ("predicted", predicted, "wrong")):
        styles = {span: "right" if span in correct else style for span in sorted(spans)}
        found.append((side, highlight(example, styles, first, last)))
    return found


class Fragment(NamedTuple):
    """A part of a span that crosses no other fragment; ``last`` is True for its last part."""

    start: int
    end: int
    span: Span
    last: bool


def fragments(spans: Sequence[Span]) -> list[Fragment]:
    """Cut spans where they cross, so that any two fragments nest or share no word.

    Outer fragments come first.

    >>> [f[:2] for f in fragments([Span(0, 3, "A"), Span(2, 5, "B")])]
    [(0, 3), (2, 3), (3, 5)]
    """
    waiting = [(span.start, -span.end, number, span) for number, span in enumerate(spans)]
    heapq.heapify(waiting)
    found: list[Fragment] = []
    ends: list[int] = []
    while waiting:
        start, end, number, span = heapq.heappop(waiting)
        end = -end
        while ends and ends[-1] <= start:
            ends.pop()
        cut = min([end, *ends[-1:]])
        if cut < end:
            heapq.heappush(waiting, (cut, -end, number, span))
        found.append(Fragment(start, cut, span, cut == end))
        ends.append(cut)
    return found


def highlight(
    example: TokenExample, styles: Mapping[Span, str], first: int, last: int
) -> list[Part]:
    """Mark the spans in words ``first`` to ``last`` (exclusive): "right", "missed" or "wrong"."""
    clipped = {Span(max(s.start, first), min(s.end, last), s.label): styles[s] for s in styles}
    starting = defaultdict(list)
    for fragment in fragments([span for span in clipped if span.start < span.end]):
        starting[fragment.start].append(fragment)
    parts: list[Part] = [("text", "… ")] if first else []
    open_: list[Fragment] = []
    for index in range(first, last + 1):
        while open_ and open_[-1].end <= index:
            ended = open_.pop()
            parts.append(("end", ended.span.label if ended.last else "\N{RIGHTWARDS ARROW}"))
        if index == last:
            break
        if index > first:
            space = " "
            if example.text is not None and example.offsets is not None:
                space = example.text[example.offsets[index - 1][1] : example.offsets[index][0]]
            parts.append(("text", clip(space)))
        for fragment in starting[index]:
            parts.append(("start", clipped[fragment.span]))
            open_.append(fragment)
        parts.append(("text", clip(example.words[index])))
    return [*parts, ("text", " …")] if last < len(example.words) else parts
