"""The tables of an analysis: rows of equal columns, made of scores and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from finetune.evaluation.alignment import AlignedPredictions
from finetune.evaluation.subgroups import Part, SpanPart, bucket, buckets, parts
from finetune.types import Example, Span, TextExample

TEXT_LENGTHS = (1, 11, 26, 51, 101, 201)
"""Where groups of text lengths begin, in words between spaces."""

NOTHING = "(nothing)"
"""In a confusion matrix of spans: no span there."""

TITLES = {
    "counted": "Four ways of counting (strict: extent and type; exact: extent; partial: words "
    "shared, half; type: words shared and type)",
    "type": "By type",
    "label": "By label",
    "tag": "By tag",
    "confusion": "Confusion: gold in rows, predicted in columns",
    "confused": "Most often confused",
    "length": "By length of the span in words",
    "depth": "By depth: how many wider spans lie around",
    "sentence length": "By length of the sentence in words",
    "first word": "By place of the first word in the sentence",
    "place": "By place of the word in the sentence",
    "in training": "By what training data knew",
    "text length": "By length of the text in words",
}
"""Captions of tables by name."""

Table = list[dict[str, Any]]
"""Rows of equal columns, of which the first names the row."""


def scored_table(scores: Mapping[str, Mapping[str, float]], name: str) -> Table:
    """Scores by name, a row for each."""
    return [{name: label} | dict(values) for label, values in scores.items()]


def confusion_tables(gold: Sequence[str], answers: Sequence[str]) -> dict[str, Table]:
    """The confusion matrix, and its largest entries off the diagonal."""
    counts = Counter(zip(gold, answers, strict=True))
    names = sorted({*gold, *answers})
    matrix = [{"gold": g, "predicted": {p: counts[g, p] for p in names}} for g in names]
    errors = Counter({pair: number for pair, number in counts.items() if pair[0] != pair[1]})
    return {"confusion": matrix, "confused": pairs_table(errors)}


def span_confusion_table(
    matches: Iterable[Iterable[tuple[Span | None, Span | None]]],
) -> Table:
    """Types of gold spans against those of their predicted partners; ``NOTHING`` for the spans
    that have none on the other side."""
    taken = Counter(
        tuple(NOTHING if span is None else span.label for span in match)
        for sentence in matches
        for match in sentence
    )
    names = [*sorted({name for pair in taken for name in pair} - {NOTHING}), NOTHING]
    return [
        {"gold": right, "predicted": {answer: taken[right, answer] for answer in names}}
        for right in names
    ]


def pairs_table(taken: Counter[tuple[str, str]]) -> Table:
    """What was taken for what, the commonest first."""
    return [
        {"gold": right, "predicted": answer, "number": number}
        for (right, answer), number in taken.most_common()
    ]


def length_table(run: AlignedPredictions) -> Table:
    """Accuracy of labels by length of the text."""
    right = [a == b for a, b in zip(run.gold, run.predicted, strict=True)]
    found = parts(text_lengths(run.examples), right, buckets(TEXT_LENGTHS))
    return parts_table(found, "text length", "texts")


def text_lengths(examples: Sequence[Example]) -> list[str]:
    """The group of each text by its length (that of both texts of a pair)."""
    texts = [example for example in examples if isinstance(example, TextExample)]
    sizes = [len(example.text.split()) + len((example.pair or "").split()) for example in texts]
    return [bucket(size, TEXT_LENGTHS) for size in sizes]


def parts_table(groups: Sequence[Part], name: str, what: str) -> Table:
    """Accuracy of each group."""
    return [
        {name: part.name, what: part.number, "right": part.right, "accuracy": part.accuracy}
        for part in groups
    ]


def span_parts_table(groups: Sequence[SpanPart], name: str) -> Table:
    """Scores and counts of each group of spans."""
    rows = []
    for part in groups:
        scores = {"precision": part.precision, "recall": part.recall, "f1": part.f1}
        counts = {key: value for key, value in asdict(part).items() if key != "name"}
        rows.append({name: part.name} | scores | counts)
    return rows
