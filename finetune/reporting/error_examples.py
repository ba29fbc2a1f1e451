"""The examples with errors that a report shows, with gold and predictions side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finetune.data.tag_schemes import tags_to_spans
from finetune.evaluation.alignment import AlignedPredictions
from finetune.evaluation.errors import AROUND, ErrorCase, most_confident
from finetune.reporting.highlight import Part, clip, highlight
from finetune.reporting.rendering import format_value
from finetune.reporting.runs import Evaluated
from finetune.types import Span, TextExample, TokenExample

MOST_EXAMPLES = 300
"""Examples with errors that a report holds, of all its runs together."""
MOST_CONFIDENT = 20
"""Errors that count as the most confident ones."""
MOST_LETTERS = 1200
"""Characters shown of a text."""
MOST_WORDS = 120
"""Words shown of a sentence."""
CONFIDENT_VIEW, LABEL_ERROR_VIEW = "most confident errors", "possible label errors"


@dataclass(frozen=True)
class ErrorExample:
    """One example with its errors."""

    run: str
    where: str
    """Its file and line."""
    kinds: Sequence[str]
    labels: Sequence[str]
    """Labels of gold and prediction that differ."""
    views: Sequence[str]
    """Special lists that the example belongs to."""
    texts: Sequence[str] = ()
    """Its text, or both texts of a pair."""
    label_rows: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    """Of a text: "gold" and "predicted", each with its labels and their styles."""
    probabilities: Sequence[tuple[str, float]] = ()
    """The most probable labels of a text."""
    confidence: float | None = None
    """Probability of the predicted label of a text."""
    deviation: float | None = None
    """Distance of a predicted number from gold."""
    label_error: ErrorCase | None = None
    """The confident prediction that contradicts gold."""
    sentences: Sequence[tuple[str, Sequence[Part]]] = ()
    """Of a sentence: "gold" and "predicted", each with its spans highlighted."""
    errors: Sequence[ErrorCase] = field(default=())
    """Of a sentence: its errors one by one."""


def error_examples(name: str, evaluated: Evaluated, most: int) -> tuple[list[ErrorExample], int]:
    """Return the examples with errors, the most confident errors first.

    Args:
        name: Name of the run in the report.
        evaluated: Predictions of the run with their analysis.
        most: Most examples to return.

    Returns:
        The examples, and the number of all examples with errors.
    """
    analysis, run = evaluated.analysis, evaluated.predictions
    by_id: defaultdict[int, list[ErrorCase]] = defaultdict(list)
    for error in analysis.errors:
        by_id[error.id].append(error)
    label_errors = {error.id: error for error in analysis.contradictions}
    for id, error in label_errors.items():
        by_id.setdefault(id, [error])
    confident = {each.id for each in most_confident(analysis.errors, MOST_CONFIDENT)}
    order = sorted(by_id, key=lambda id: -max(each.confidence or 0.0 for each in by_id[id]))
    indices = {example.id: index for index, example in enumerate(run.examples)}
    spans = _both_spans(run)
    made = []
    for id in order[:most]:
        index, errors = indices[id], by_id[id]
        example = run.examples[index]
        views = ((CONFIDENT_VIEW, confident), (LABEL_ERROR_VIEW, label_errors))
        labels = (_label(side) for each in errors for side in (each.gold, each.predicted))
        if isinstance(example, TextExample):
            content = _text_content(run, index, example, errors, label_errors.get(id))
        else:
            sides = spans and [side[index] for side in spans]
            content = _sentence_content(example, sides, errors)
        made.append(
            ErrorExample(
                run=name,
                where=example.where or f"example {id}",
                kinds=list(dict.fromkeys(e.category for e in errors if run.kind != "number")),
                labels=list(dict.fromkeys(filter(None, labels))),
                views=[view for view, ids in views if id in ids],
                **content,
            )
        )
    return made, len(by_id)


def value_counts(values: Iterable[Sequence[str]]) -> list[tuple[str, int]]:
    """Return the number of examples with each value, the most frequent first."""
    counts = Counter(value for each in values for value in each)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _both_spans(run: AlignedPredictions) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Return gold and predicted spans of each sentence; None for texts and for plain tags."""
    if run.kind == "spans":
        return run.gold, run.predicted
    if run.kind == "tags" and run.schemes[0] is not None:
        gold, predicted = map(str, run.schemes)
        return ([tags_to_spans(tags, gold) for tags in run.gold],
                [tags_to_spans(tags, predicted) for tags in run.predicted])  # fmt: skip
    return None


def _label(side: Any) -> str:
    if isinstance(side, Mapping):
        return str(side["label"])
    return side if isinstance(side, str) else ""


def _text_content(
    run: AlignedPredictions,
    index: int,
    example: TextExample,
    errors: Sequence[ErrorCase],
    label_error: ErrorCase | None,
) -> dict[str, Any]:
    gold, predicted = run.gold[index], run.predicted[index]
    if run.kind == "labels":
        rows = [
            ("gold", [(name, "right" if name in predicted else "missed") for name in gold]),
            ("predicted", [(name, "right" if name in gold else "wrong") for name in predicted]),
        ]
    else:
        styles = ("right", "right") if gold == predicted else ("missed", "wrong")
        rows = [("gold", [(format_value(gold), styles[0])]),
                ("predicted", [(format_value(predicted), styles[1])])]  # fmt: skip
    single = run.kind == "label" and gold != predicted
    return {
        "texts": [
            clip(text, MOST_LETTERS) for text in (example.text, example.pair) if text is not None
        ],
        "label_rows": rows,
        "probabilities": _most_probable(run.rows[index].get("scores")),
        "confidence": errors[0].confidence if single else None,
        "deviation": abs(gold - predicted) if run.kind == "number" else None,
        "label_error": label_error,
    }


def _most_probable(scores: Any, most: int = 4) -> list[tuple[str, float]]:
    if not isinstance(scores, Mapping):
        return []
    known = [(name, value) for name, value in scores.items() if isinstance(value, int | float)]
    return sorted(known, key=lambda item: -item[1])[:most]


def _sentence_content(
    example: TokenExample, sides: Sequence[Sequence[Span]] | None, errors: Sequence[ErrorCase]
) -> dict[str, Any]:
    """Highlight all spans of gold and prediction, or of plain tags those of the wrong words."""
    if sides is None:
        sides = [
            [Span(each["start"], each["end"], each["label"]) for each in side]
            for side in ([e.gold for e in errors], [e.predicted for e in errors])
        ]
    gold, predicted = sides
    correct = {*gold} & {*predicted}
    first, last = _words_to_show(len(example.words), errors)
    return {
        "sentences": [
            (side, highlight(example, {span: "right" if span in correct else wrong
                                       for span in spans}, first, last))
            for side, spans, wrong in (("gold", gold, "missed"), ("predicted", predicted, "wrong"))
        ],
        "errors": errors,
    }  # fmt: skip


def _words_to_show(number: int, errors: Sequence[ErrorCase]) -> tuple[int, int]:
    """Return the range of words to show: all, or those around the errors of a long sentence."""
    if number <= MOST_WORDS:
        return 0, number
    spans = [side for each in errors for side in (each.gold, each.predicted) if side]
    first = max(0, min(span["start"] for span in spans) - AROUND)
    last = min(number, max(span["end"] for span in spans) + AROUND)
    return first, min(last, first + MOST_WORDS)
