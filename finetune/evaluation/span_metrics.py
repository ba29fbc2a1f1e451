"""Scores of labelled spans that may nest, sentence by sentence, as plain Python floats."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from finetune.data.spans import inner_spans
from finetune.evaluation.metrics import span_scores, span_scores_by_type
from finetune.types import Span

Spans = Sequence[Collection[Span]]
"""The spans of each sentence."""


def span_ner_scores(gold: Spans, predicted: Spans) -> dict[str, float]:
    """Scores over the spans of all sentences; a span is right if start, end and label all are.

    ``span_precision_strict``, ``span_recall_strict``, ``span_f1_strict``: micro, nested spans like
    any other; on flat data the numbers of seqeval's strict mode. ``span_f1_strict:TYPE``: F1 of
    each type in gold or predicted. Where gold has spans within wider ones also
    ``span_f1_outermost`` and ``span_f1_inner``, F1 by depth: precision is the share of predicted
    inner spans (those within a wider predicted one) that are gold, recall the share of gold inner
    spans (within a wider gold one) that were predicted; and the counts ``inner_gold``,
    ``inner_predicted`` and ``inner_found``, the gold inner spans that were predicted. Raises
    ValueError if the numbers of sentences differ.
    """
    scores = {f"span_{name}_strict": value for name, value in span_scores(gold, predicted).items()}
    inner = [[inner_spans(spans) for spans in side] for side in (gold, predicted)]
    if any(inner[0]):
        outermost = [
            [set(spans) - within for spans, within in zip(side, inside, strict=True)]
            for side, inside in zip((gold, predicted), inner, strict=True)
        ]
        scores["span_f1_outermost"] = _f1_of_part(gold, predicted, *outermost)
        scores["span_f1_inner"] = _f1_of_part(gold, predicted, *inner)
        scores["inner_gold"], scores["inner_predicted"] = (
            float(sum(map(len, side))) for side in inner
        )
        scores["inner_found"] = float(_shared(inner[0], predicted))
    by_type = span_scores_by_type(gold, predicted)
    return scores | {f"span_f1_strict:{name}": each["f1"] for name, each in by_type.items()}


def _f1_of_part(gold: Spans, predicted: Spans, gold_part: Spans, predicted_part: Spans) -> float:
    """F1 of precision over a part of the predicted spans and recall over a part of the gold."""
    right, found = _shared(predicted_part, gold), _shared(gold_part, predicted)
    if not right or not found:
        return 0.0
    precision, recall = right / sum(map(len, predicted_part)), found / sum(map(len, gold_part))
    return 2 * precision * recall / (precision + recall)


def _shared(part: Spans, whole: Spans) -> int:
    return sum(len(set(one) & set(other)) for one, other in zip(part, whole, strict=True))
