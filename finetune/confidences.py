"""The probabilities that lines of predictions carry, of any system, where all of them do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from finetune.answers import Answers
from finetune.types import Span


def of_labels(run: Answers) -> list[float] | None:
    """The probability of each answered label: ``score``, or its entry in ``scores``."""
    found = []
    for row in run.rows:
        value = row.get("score")
        if value is None and isinstance(scores := row.get("scores"), dict):
            value = scores.get(str(row.get("label")))
        if not _is_probability(value):
            return None
        found.append(float(value))
    return found or None


def chances_of_labels(run: Answers) -> list[dict[str, float]] | None:
    """The probability of every label for each text, from ``scores``."""
    found = []
    for row in run.rows:
        scores = row.get("scores")
        if not isinstance(scores, dict) or not all(map(_is_probability, scores.values())):
            return None
        found.append({name: float(value) for name, value in scores.items()})
    return found or None


def of_words(run: Answers) -> list[list[float]] | None:
    """The probability of each word's tag, from ``scores``."""
    found = []
    for row, tags in zip(run.rows, run.answers, strict=True):
        scores = row.get("scores")
        if not isinstance(scores, list) or len(scores) != len(tags):
            return None
        if not all(map(_is_probability, scores)):
            return None
        found.append([float(value) for value in scores])
    return found or None


def of_spans(
    run: Answers,
    gold: Sequence[Collection[Span]],
    answers: Sequence[Collection[Span]],
    words: Sequence[Sequence[float]] | None,
) -> list[dict[Span, float]]:
    """The probability of each span, as far as it is known, for each sentence.

    With probabilities of words that of a span is the mean over its words, of a missed gold span
    too: how sure the system was of what it answered there.
    """
    if words is None:
        return [_of_row(row) for row in run.rows] or [{} for _ in gold]
    return [
        {span: sum(known[span.start : span.end]) / (span.end - span.start) for span in both}
        for known, both in (
            (values, {*right, *spans})
            for values, right, spans in zip(words, gold, answers, strict=True)
        )
    ]


def _of_row(row: Mapping[str, Any]) -> dict[Span, float]:
    if row.get("words", row.get("tokens")) is None and "text" in row:
        return {}  # its spans are in characters
    found = {}
    spans = row.get("spans")
    for span in spans if isinstance(spans, list | tuple) else ():
        if isinstance(span, dict) and _is_probability(score := span.get("score")):
            start, end, label = (span.get(name) for name in ("start", "end", "label"))
            if isinstance(start, int) and isinstance(end, int):
                found[Span(start, end, str(label))] = float(score)
    return found


def _is_probability(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value <= 1 + 1e-6
