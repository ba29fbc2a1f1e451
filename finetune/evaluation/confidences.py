"""The probabilities that lines of predictions carry, of any system, where all of them do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from finetune.evaluation.answers import Answers, in_scheme_of_gold
from finetune.types import Span


def judged(run: Answers) -> list[list[tuple[float, bool]]] | None:
    """The probability of each answer, and whether it is right, for each example.

    Answers are labels; for sets of labels every label that has a probability, which is that it
    applies; the tags of words; or spans. None where not all of their probabilities are known.
    """
    found = _judged(run)
    return found if found and any(found) else None


def _judged(run: Answers) -> list[list[tuple[float, bool]]] | None:
    if run.form == "spans":
        return _judged_spans(run)
    if run.form == "label" and (known := of_labels(run)):
        sides = zip(known, run.gold, run.answers, strict=True)
        return [[(sure, right == answer)] for sure, right, answer in sides]
    if run.form == "labels" and (chances := chances_of_labels(run)):
        return [
            [(chance, name in right) for name, chance in each.items()]
            for right, each in zip(run.gold, chances, strict=True)
        ]
    if run.form == "tags" and (values := of_words(run)):
        rows = zip(values, run.gold, in_scheme_of_gold(run), strict=True)
        return [[(sure, r == a) for sure, r, a in zip(*row, strict=True)] for row in rows]
    return None


def _judged_spans(run: Answers) -> list[list[tuple[float, bool]]] | None:
    found = []
    confidences = of_spans(run, run.gold, run.answers, None)
    for right, spans, known in zip(run.gold, run.answers, confidences, strict=True):
        if any(span not in known for span in spans):
            return None
        found.append([(known[span], span in set(right)) for span in dict.fromkeys(spans)])
    return found


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
