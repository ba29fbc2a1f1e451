"""The examples with errors that a report shows, with gold and predictions side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from finetune.evaluation.error_analysis import Analysis
from finetune.evaluation.errors import AROUND, ErrorCase, example_text, most_confident
from finetune.evaluation.kinds.kind import Shown
from finetune.reporting.highlight import Part, clip, highlight
from finetune.types import Span, TextExample, TokenExample

MOST_EXAMPLES = 300
"""Examples with errors that a report holds, of all its runs together."""
MOST_CONFIDENT = 20
"""Errors that count as the most confident ones."""
MOST_CHARACTERS = 1200
"""Characters shown of a text."""
MOST_WORDS = 120
"""Words shown of a sentence."""


@dataclass(frozen=True)
class ErrorExample:
    """One example with its errors; ``views`` are the special lists that include it.

    A text has ``texts`` (both of a pair) and the fields after it. A sentence has ``sentences``,
    "gold" and "predicted", each with its spans highlighted. A question has both: its text, and its
    context as sentences.
    """

    run: str
    where: str
    kinds: Sequence[str]
    labels: Sequence[str]
    """Labels of gold and prediction that differ."""
    views: Sequence[str]
    errors: Sequence[ErrorCase]
    label_error: ErrorCase | None
    """The confident prediction that contradicts gold."""
    texts: Sequence[str] = ()
    gold: Sequence[Any] = ()
    predicted: Sequence[Any] = ()
    probabilities: Sequence[tuple[str, float, str]] = ()
    """Label or choice, its probability, and its mark: ``right``, ``wrong`` (predicted) or none."""
    confidence: float | None = None
    deviation: float | None = None
    """Distance of a predicted number from gold."""
    sentences: Sequence[tuple[str, Sequence[Part]]] = ()
    explanations: Sequence[tuple[str, Sequence[tuple[str, float, float]]]] = ()
    """A predicted label, and each word with its score, also in units of the largest one."""
    neighbors: Sequence[tuple[float, Sequence[tuple[str, str]], str, str]] = ()
    """Nearest training examples: similarity, labels with their marks, text, and place."""


def error_examples(
    name: str,
    analysis: Analysis,
    most: int,
    reasons: Callable[[Sequence[Any]], Mapping[str, Sequence[Any]]] | None = None,
) -> tuple[list[ErrorExample], int]:
    """Return at most ``most`` examples with errors, and the number of all of them.

    The most confident errors come first. ``name`` is the name of the run in the report, ``reasons``
    returns the reasons of its predictions for examples.
    """
    run = analysis.scored
    by_id: defaultdict[int, list[ErrorCase]] = defaultdict(list)
    for error in analysis.errors:
        by_id[error.id].append(error)
    label_errors = {error.id: error for error in analysis.contradictions}
    for id, error in label_errors.items():
        by_id.setdefault(id, [error])
    if not by_id:
        return [], 0  # also of senses and subwords, whose errors are not listed
    views = {
        "most confident errors": {e.id for e in most_confident(analysis.errors, MOST_CONFIDENT)},
        "possible label errors": {*label_errors},
    }
    order = sorted(by_id, key=lambda id: -max(each.confidence or 0.0 for each in by_id[id]))
    indices = {example.id: index for index, example in enumerate(run.examples)}
    chosen = [run.examples[indices[id]] for id in order[:most]]
    why = reasons(chosen) if reasons and chosen else {}
    found = []
    for place, id in enumerate(order[:most]):
        index, errors = indices[id], by_id[id]
        example = run.examples[index]
        sides = [side for each in errors for side in (each.gold, each.predicted)]
        labels = [side["label"] if isinstance(side, Mapping) else side for side in sides]
        shown = run.kind.shown(run, index, errors)
        if isinstance(example, TextExample):
            content = _text_content(example, shown, errors)
        else:
            content = _sentence_content(example, shown.spans, errors)
        found.append(
            ErrorExample(
                run=name,
                where=example.where or f"example {id}",
                kinds=list(dict.fromkeys(e.category for e in errors if run.kind.has_categories)),
                labels=list(dict.fromkeys(x for x in labels if x and isinstance(x, str))),
                views=[view for view, ids in views.items() if id in ids],
                errors=errors,
                label_error=label_errors.get(id),
                **content,
                **_reasons(example, errors, **{name: own[place] for name, own in why.items()}),
            )
        )
    return found, len(by_id)


def _text_content(
    example: TextExample, shown: Shown, errors: Sequence[ErrorCase]
) -> dict[str, Any]:
    """Return the texts, gold and prediction; an answer is highlighted in its context."""
    context = shown.context
    texts = [example.text, None if context is not None else example.pair]
    return {
        "texts": [clip(text, MOST_CHARACTERS) for text in texts if text is not None],
        "gold": shown.gold,
        "predicted": shown.predicted,
        "probabilities": [
            (clip(name, MOST_CHARACTERS), *others) for name, *others in shown.probabilities
        ],
        "confidence": shown.confidence,
        "deviation": shown.deviation,
        **({} if context is None else _in_context(example.id, context, errors[0])),
    }


def _reasons(
    example: Any,
    errors: Sequence[ErrorCase],
    explanation: Sequence[Any] = (),
    nearest: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return the words of each wrong label with their scores, and the nearest training examples."""
    wrong = [e.predicted for e in errors if isinstance(e.predicted, Mapping)]
    gold = example.gold_labels() or ()
    neighbors = []
    for near in nearest:
        labels = dict.fromkeys(near.example.gold_labels() or ())
        marks = [(label, "right" if label in gold else "wrong") for label in labels]
        text = clip(example_text(near.example), MOST_CHARACTERS // 4)
        neighbors.append((near.similarity, marks, text, near.example.where))
    explanations = []
    for each in explanation:
        words = each.decision.words
        if words is None or any(e["start"] <= words[0] and words[1] <= e["end"] for e in wrong):
            largest = max(map(abs, each.scores), default=0.0) or 1.0
            pairs = zip(each.words.words, each.scores, strict=True)
            parts = [(clip(word), score, score / largest) for word, score in pairs]
            if each.words.num_first < len(parts):
                parts.insert(each.words.num_first, ("‖", 0.0, 0.0))
            explanations.append((each.decision.label, parts[:MOST_WORDS]))
    return {"neighbors": neighbors, "explanations": explanations}


def _in_context(id: int, context: str, error: ErrorCase) -> dict[str, Any]:
    """Highlight the nearest gold answer and the predicted one in the context of a question."""
    sides = [side for side in (error.gold, error.predicted) if side]
    places = [(side["start"], side["end"]) for side in sides]
    if not all(isinstance(each, int) for place in places for each in place):
        return {}
    edges = {edge for place in places for edge in place}
    words = [
        offset
        for match in re.finditer(r"\S+", context)
        for offset in pairwise(sorted({*match.span(), *_inside(edges, match.span())}))
    ]
    parts = tuple(context[start:end] for start, end in words)
    sentence = TokenExample(id, parts, text=context, offsets=tuple(words))
    gold, predicted = (
        None if side is None else _in_words(words, side)._asdict()
        for side in (error.gold, error.predicted)
    )
    wrong = replace(error, gold=gold, predicted=predicted)
    return _sentence_content(sentence, None, [wrong])


def _inside(edges: Collection[int], span: tuple[int, int]) -> list[int]:
    """Return the edges that divide a word."""
    return [edge for edge in edges if span[0] < edge < span[1]]


def _in_words(words: Sequence[tuple[int, int]], side: Mapping[str, Any]) -> Span:
    """Return the words of an answer that is given in characters."""
    inside = [
        i for i, (start, end) in enumerate(words) if start < side["end"] and end > side["start"]
    ]
    return Span(min(inside, default=0), max(inside, default=-1) + 1, side["label"])


def _sentence_content(
    example: TokenExample, both: tuple[set[Span], set[Span]] | None, errors: Sequence[ErrorCase]
) -> dict[str, Any]:
    """Highlight all spans of gold and prediction; of plain tags, only wrong words.

    A long sentence is cut to the words around the errors.
    """
    wrong = [
        [Span(side["start"], side["end"], side["label"]) for side in sides if side]
        for sides in ([e.gold for e in errors], [e.predicted for e in errors])
    ]
    gold, predicted = both or map(set, wrong)
    correct = gold & predicted
    first, last = 0, len(example.words)
    if last > MOST_WORDS:
        first = max(0, min(span.start for side in wrong for span in side) - AROUND)
        last = min(last, max(span.end for side in wrong for span in side) + AROUND)
        last = min(last, first + MOST_WORDS)
    return {
        "sentences": [
            (
                side,
                highlight(
                    example,
                    {span: "right" if span in correct else style for span in sorted(spans)},
                    first,
                    last,
                ),
            )
            for side, spans, style in (("gold", gold, "missed"), ("predicted", predicted, "wrong"))
        ]
    }
