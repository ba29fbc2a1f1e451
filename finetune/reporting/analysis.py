"""Show an analysis on pages and terminals: its tables, and the examples with errors.

Gold and predictions of an example stand side by side. Spans of sentences, which may nest and cross,
are highlighted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finetune import types
from finetune.evaluation.error_analysis import TITLES, Analysis
from finetune.evaluation.tables import TableRows, Tables
from finetune.reporting.rendering import PageTable, clip
from finetune.types import UNANSWERABLE, Question, Span, TokenExample

MOST_EXAMPLES = 300
"""Examples with errors that a report holds, of all its runs together."""
_MOST_CHARACTERS = 1200
"""Characters shown of a text."""
_MOST_WORDS, _AROUND = 120, 12
"""Words shown of a sentence, and of a longer one on each side of its errors."""

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
    return tables


def error_examples(
    name: str,
    analysis: Analysis,
    most: int,
    explain: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> tuple[list[dict[str, Any]], int]:
    """Collect at most ``most`` examples with errors for the page, and count all of them.

    The most confident errors come first. ``name`` is the name of the run in the report, ``explain``
    explains its predictions for examples. A text has ``texts`` (both of a pair). A
    sentence has ``sentences``, "gold" and "predicted", each with its spans highlighted. A question
    has both: its text, and its context as sentences.
    """
    run = analysis.run
    by_example = defaultdict[int, TableRows](list)
    for error in analysis.errors:
        by_example[error["example"]].append(error)
    if not by_example:
        return [], 0  # also of senses and subwords, whose errors are not listed
    order = sorted(by_example, key=lambda i: -max(e["confidence"] or 0.0 for e in by_example[i]))
    chosen = [run.examples[index] for index in order[:most]]
    explanations = explain(chosen) if explain and chosen else [()] * len(chosen)
    examples = []
    for index, example, of_labels in zip(order[:most], chosen, explanations, strict=True):
        errors = by_example[index]
        sides = [side for error in errors for side in (error["gold"], error["predicted"])]
        labels = [side["label"] if isinstance(side, Mapping) else side for side in sides]
        categories = (e["category"] for e in errors if not run.items.has_sizes)
        content = {
            "run": name,
            "where": example.where or f"example {example.id}",
            "categories": [*dict.fromkeys(categories)],
            "labels": list(dict.fromkeys(x for x in labels if x and isinstance(x, str))),
            "errors": errors,
            **dict.fromkeys(("texts", "sentences", "gold", "predicted", "probabilities"), ()),
            **dict.fromkeys(("deviation", "votes")),
        }
        if run.type.in_words:
            content["sentences"] = _highlighted(run, index, errors)
        else:
            is_question = isinstance(example, Question)
            texts = [example.text] if is_question or example.pair is None else example.texts()
            content["texts"] = [clip(text, _MOST_CHARACTERS) for text in texts[:2]]
            content["sentences"] = _in_context(example, errors[0]) if is_question else []
            content["votes"] = example.votes
            content |= _values(run, index, errors)
        examples.append(content | {"explanations": _explained_words(errors, of_labels)})
    return examples, len(by_example)


def _values(run: Tables, index: int, errors: TableRows) -> dict[str, Any]:
    error, sides = errors[0], list[list[Any]]()
    for value, shown in (
        (run.gold[index], error["gold"]),
        (run.predicted[index], error["predicted"]),
    ):
        shown = shown["text"] if isinstance(shown, Mapping) else shown
        values = dict.fromkeys(value if isinstance(value, tuple) else [shown])
        sides.append([value for value in values if value not in ("", None)])
    ranked = _ranked(run.predictions[index], run.examples[index])
    has_size = run.items.has_sizes  # then an example has one item
    return {
        "gold": sides[0],
        "predicted": sides[1],
        "probabilities": [(clip(text, _MOST_CHARACTERS), p, mark) for text, p, mark in ranked],
        "confidence": None if isinstance(run.predicted[index], tuple) else error["confidence"],
        "deviation": float(run.items.columns["deviation"][index]) if has_size else None,
    }


def _ranked(prediction: types.Prediction, example: Any) -> list[tuple[str, float, str]]:
    # the most probable answers with their probability and mark: right, wrong or none
    best: list[tuple[str, float, str]] = []
    if isinstance(prediction, types.ChoicePrediction):
        if len(prediction.scores) != len(example.choices):
            return []
        marks = {prediction.value: "wrong", example.label: "right"}
        pairs = enumerate(zip(example.choices, prediction.scores, strict=True))
        return [(text, score, marks.get(number, "")) for number, (text, score) in pairs]
    if isinstance(prediction, types.AnswerPrediction):
        best = [(answer.text, answer.score, "") for answer in prediction.best or ()]
        if prediction.no_answer_score is not None:
            best.append((UNANSWERABLE, prediction.no_answer_score, ""))
    elif isinstance(prediction, types.TextPrediction):
        best = [(label, score, "") for label, score in (prediction.scores or {}).items()]
    scored = [row for row in best if isinstance(row[1], int | float)]
    return sorted(scored, key=lambda row: -row[1])[:4]


def _explained_words(errors: TableRows, explanations: Sequence[Any]) -> list[Any]:
    wrong = [e["predicted"] for e in errors if isinstance(e["predicted"], Mapping)]
    explained = []
    for attribution in explanations:
        label, span = attribution.label.label, attribution.label.words
        if span is None or any(e["start"] <= span[0] and span[1] <= e["end"] for e in wrong):
            if span is not None:
                label += f" ({clip(' '.join(attribution.words.words[slice(*span)]))})"
            largest = max(map(abs, attribution.scores), default=0.0) or 1.0
            pairs = zip(attribution.words.words, attribution.scores, strict=True)
            parts = [(clip(word), score, score / largest) for word, score in pairs]
            if attribution.words.num_first < len(parts):
                parts.insert(attribution.words.num_first, ("‖", 0.0, 0.0))
            explained.append((label, parts[:_MOST_WORDS]))
    return explained


def _in_context(example: Question, error: Mapping[str, Any]) -> list[tuple[str, list[Part]]]:
    context, sides = example.pair or "", (error["gold"], error["predicted"])
    edges = [edge for side in sides if side for edge in (side["start"], side["end"])]
    if not edges or not all(isinstance(edge, int) for edge in edges):
        return []
    first, last = max(0, min(edges) - _MOST_CHARACTERS // 2), max(edges) + _MOST_CHARACTERS // 2
    left, right = "… " * (first > 0), " …" * (last < len(context))
    sentences = []
    for name, side, style in zip(("gold", "predicted"), sides, ("missed", "wrong"), strict=True):
        if side:
            start, end = side["start"], side["end"]
            parts: list[Part] = [("text", left + context[first:start]), ("start", style)]
            parts += [("text", context[start:end]), ("end", side["label"])]
            sentences.append((name, [*parts, ("text", context[end:last] + right)]))
    return sentences


def _highlighted(run: Tables, index: int, errors: TableRows) -> list[tuple[str, list[Part]]]:
    # all spans of gold and prediction; of plain tags and relations, only wrong ones
    example, items = run.examples[index], run.items.take(run.items.example == index)
    gold, predicted = wrong = [
        {Span(side["start"], side["end"], side["label"]) for side in sides if side}
        for sides in ([e["gold"] for e in errors], [e["predicted"] for e in errors])
    ]
    all_values = [{*side} - {None} for side in (items.gold, items.predicted)]
    if all(isinstance(value, Span) for side in all_values for value in side):
        gold, predicted = all_values
    first, last = 0, len(example.words)
    if last > _MOST_WORDS:
        first = max(0, min(span.start for side in wrong for span in side) - _AROUND)
        last = min(last, max(span.end for side in wrong for span in side) + _AROUND)
        last = min(last, first + _MOST_WORDS)
    sentences = []
    for name, spans, style in (("gold", gold, "missed"), ("predicted", predicted, "wrong")):
        styles = {s: "right" if s in gold & predicted else style for s in sorted(spans)}
        sentences.append((name, highlight(example, styles, first, last)))
    return sentences


def highlight(
    example: TokenExample, styles: Mapping[Span, str], first: int, last: int
) -> list[Part]:
    """Mark the spans in words ``first`` to ``last`` (exclusive): "right", "missed" or "wrong".

    A span that crosses the end of another is closed there with an arrow, and opened again.
    """
    clipped = {Span(max(s.start, first), min(s.end, last), s.label): styles[s] for s in styles}
    number = {span: index for index, span in enumerate(clipped) if span.start < span.end}
    parts: list[Part] = [("text", "… ")] if first else []
    open_: list[Span] = []
    for index in range(first, last + 1):
        starting = [span for span in number if span.start == index]
        while any(span.end == index for span in open_):
            span = open_.pop()
            parts.append(("end", span.label if span.end == index else "\N{RIGHTWARDS ARROW}"))
            starting += [span] if span.end > index else []
        if index == last:
            break
        if index > first:
            space = " "
            if example.text is not None and example.offsets is not None:
                space = example.text[example.offsets[index - 1][1] : example.offsets[index][0]]
            parts.append(("text", clip(space)))
        for span in sorted(starting, key=lambda span: (-span.end, number[span])):
            parts.append(("start", clipped[span]))
            open_.append(span)
        parts.append(("text", clip(example.words[index])))
    return [*parts, ("text", " …")] if last < len(example.words) else parts
