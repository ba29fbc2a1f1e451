"""Labeled spans of words, which may nest, and what tags that spell spans share with them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.data import DataError
from finetune.data.files import DataFile
from finetune.data.spans import inner_spans
from finetune.data.tag_schemes import tags_to_spans
from finetune.data.token_records import ParsedSpans, read_spans
from finetune.data.tokens import read_gold
from finetune.evaluation.kinds.examples import (
    POSITIONS,
    SENTENCE_LENGTHS,
    OfSentences,
    bucket,
    buckets,
    check_words,
    predicted_scheme,
    spans_in_characters,
)
from finetune.evaluation.kinds.kind import (
    NOTHING,
    Answer,
    Grouping,
    Mistake,
    Scored,
    Shown,
    Table,
    Wording,
    class_scores,
    decided_in,
    expected_calibration_error,
    probability,
    rates,
)
from finetune.evaluation.metrics import (
    RATES,
    Metric,
    class_counts,
    macro_f1,
    ratio,
    total,
)
from finetune.evaluation.span_matching import (
    CRITERIA,
    KINDS,
    Match,
    count_kinds,
    credit_counts,
    match_spans,
)
from finetune.evaluation.training_vocabulary import TrainingVocabulary, surface
from finetune.types import Span, SpanPrediction, TokenExample

if TYPE_CHECKING:
    from finetune.evaluation.predictions import Gold, GoldSource, PredictionFile

SPAN_LENGTHS = (1, 2, 3, 4, 5)
DEPTHS = ("outermost", "within 1", "within 2", "within 3+")
SEEN_ENTITIES = ("seen", "seen as another type", "unseen")


def depth_counts(scored: Scored, inner: bool) -> np.ndarray:
    """Return the counts of inner or of outermost spans for ``subgroup_f1`` [N, 4].

    Inner spans lie within a wider span of the same side.
    """
    rows = []
    for gold, predicted in span_sets(scored):
        groups = [inner_spans(s) if inner else s - inner_spans(s) for s in (gold, predicted)]
        found, correct = groups[0] & predicted, groups[1] & gold
        rows.append([len(spans) for spans in (groups[0], found, groups[1], correct)])
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def subgroup_f1(sums: np.ndarray) -> np.ndarray:
    """Return the F1 of a subgroup of spans: gold, found, predicted and correct [..., 4] -> [...].

    Found and correct differ where the subgroup of a span depends on the spans around it (depth).
    """
    recall, precision = ratio(sums[..., 1], sums[..., 0]), ratio(sums[..., 3], sums[..., 2])
    return ratio(2 * precision * recall, precision + recall)


def matching_counts(scored: Scored, criterion: str) -> np.ndarray:
    """Return credit, predicted and gold spans of each sentence [N, 3] (``span_matching``)."""
    kinds = (count_kinds([match_spans(*sides)]) for sides in span_sets(scored))
    rows = [credit_counts(each, criterion) for each in kinds]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def character_counts(scored: Scored) -> np.ndarray:
    """Return the correct, predicted and gold spans, compared by their characters [N, 3]."""
    rows = [(len(gold & found), len(found), len(gold)) for gold, found in scored.characters]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def span_sets(scored: Scored) -> list[tuple[set[Span], set[Span]]]:
    """Return the gold and the predicted spans of each sentence."""
    _, predicted, gold = scored.kind.items(scored)
    sides: Any = zip(gold, predicted, strict=True)  # which are sets, of all kinds of spans
    return list(sides)


def is_nested(scored: Scored) -> bool:
    """Return whether gold spans nest."""
    return any(inner_spans(spans) for spans in scored.gold)


inner_counts = partial(depth_counts, inner=True)
SPAN_METRICS = {
    **{
        f"span_{rate}_{criterion}": Metric(counts, value, reported=False)
        for criterion in CRITERIA
        if criterion != "strict"
        for counts in (partial(matching_counts, criterion=criterion),)
        for rate, value in RATES.items()
    },
    "span_f1_macro": Metric(class_counts, macro_f1, reported=False, by_class=True),
    "ece": expected_calibration_error(),
    **{
        f"span_{rate}_characters": Metric(
            character_counts, value, lambda scored: bool(scored.characters), reported=rate == "f1"
        )
        for rate, value in RATES.items()
    },
}
"""The metrics of all kinds that have spans."""


class OfSpans(OfSentences):
    """The analysis of spans, whether they are predicted as such or spelled by tags."""

    wording = Wording("spans", "sentence", "predicted spans")
    classes = "type"
    tells_seen = True

    @abstractmethod
    def span_probabilities(self, scored: Scored) -> Sequence[Mapping[Span, float]]:
        """Return the known probabilities of the spans of each sentence."""

    def confusions(self, scored: Scored) -> Counter[tuple[str, str]]:
        """Count the types of gold and predicted spans that belong together."""
        labels = (
            tuple(NOTHING if span is None else span.label for span in match)
            for sides in span_sets(scored)
            for match in match_spans(*sides)
        )
        return Counter((gold, predicted) for gold, predicted in labels)

    def tables(self, scored: Scored, vocabulary: TrainingVocabulary | None) -> dict[str, Table]:
        """Return the tables of an analysis, first the scores under each criterion."""
        matches = [match_spans(*sides) for sides in span_sets(scored)]
        counted = scores_by_criterion(matches)
        first = [{"counted": name} | row for name, row in counted.items()]
        return {"counted": first} | super().tables(scored, vocabulary)

    def scores_of_tables(
        self, scores: Mapping[str, float], tables: Mapping[str, Table]
    ) -> dict[str, float]:
        """Return the mean F1 of the types."""
        return {"span_f1_macro": fmean([row["f1"] for row in tables["type"]] or [0.0])}

    def groupings(
        self, scored: Scored, vocabulary: TrainingVocabulary | None
    ) -> dict[str, Grouping]:
        """Divide spans by length, depth, position, and occurrence in training data."""
        if not scored.examples:
            return {}
        words = [example.words for example in scored.examples]
        types = vocabulary.entity_types if vocabulary else None
        nested = any(inner_spans(spans) for both in span_sets(scored) for spans in both)
        return {
            name: Grouping(partial(_cells, group), 4, order, _row, "span_f1", subgroup_f1)
            for name, (group, order) in span_groups(words, types).items()
            if name != "depth" or nested
        }

    def mistakes(self, scored: Scored) -> Iterator[tuple[int, Mistake]]:
        """Yield every missed gold span and wrong predicted span, in the order of the data.

        The confidence of a missed gold span is the probability of predicting nothing there.
        """
        known = self.span_probabilities(scored)
        for index, sides in enumerate(span_sets(scored)):
            for mistake in span_mistakes(scored.examples[index].words, *sides, known[index]):
                yield index, mistake

    def shown(self, scored: Scored, index: int, mistakes: Sequence[Any]) -> Shown:
        """Return the spans of both sides."""
        one = replace(scored, gold=[scored.gold[index]], predicted=[scored.predicted[index]])
        return Shown(spans=span_sets(one)[0])


def span_mistakes(
    words: Sequence[str],
    gold: Collection[Span],
    predicted: Collection[Span],
    known: Mapping[Span, float],
) -> Iterator[Mistake]:
    """Yield every missed gold span and wrong predicted span of a sentence, in order."""
    for match in match_spans(gold, predicted):
        if match.kind != "correct":
            yield span_mistake(match.kind, words, match, known)


def span_mistake(
    category: str, words: Sequence[str], match: Match, known: Mapping[Span, float]
) -> Mistake:
    """Return the mistake of a pair of spans, of which one may be missing."""
    gold, predicted = (span and {**span._asdict(), "text": surface(words, span)} for span in match)
    span = match.predicted or match.gold
    assert span is not None
    return Mistake(category, gold, predicted, known.get(span), span[:2])


class Spans(OfSpans):
    """Spans that may nest; a span is correct if start, end and label are.

    ``span_f1_strict`` is a micro average (on flat data, seqeval's strict mode), and
    ``span_f1_strict:TYPE`` the F1 of a type. Nested gold also has ``span_f1_outermost``,
    ``span_f1_inner`` and counts of inner spans. A repeated span counts once. With characters there
    is also ``span_f1_characters``, in which gold that words cannot represent is missed.
    """

    name = key = "spans"
    metrics: ClassVar = {
        **rates("span_{}_strict"),
        "span_f1_outermost": Metric(partial(depth_counts, inner=False), subgroup_f1, is_nested),
        "span_f1_inner": Metric(inner_counts, subgroup_f1, is_nested),
        **SPAN_METRICS,
    }
    default = "span_f1_strict"
    named = (("span_{}_strict", False),)
    without_gold = (
        "no spans to score against: give spans, or tags that spell spans (B-TYPE, I-TYPE, O)."
    )

    def gold(self, example: TokenExample) -> tuple[Span, ...] | None:
        """Return the gold spans."""
        return example.spans

    def value(self, prediction: SpanPrediction) -> tuple[Span, ...]:
        """Return the predicted spans."""
        return prediction.spans

    def uncertainty(self, prediction: SpanPrediction) -> float | None:
        """Return the entropy in bits of each candidate, span or not, summed, for each word."""
        p = np.array([score for _, score in prediction.candidates], dtype=float)
        p = np.clip(p, 1e-12, 1 - 1e-12)
        entropy = float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)).sum())
        return entropy / max(len(prediction.words), 1)

    def read_gold(self, file: str | DataFile, source: GoldSource) -> list[TokenExample]:
        """Return the sentences of a file with their spans."""
        return read_gold(file, **source.reading)

    def parse(self, row: Mapping[str, Any], where: str, example: TokenExample) -> SpanPrediction:
        """Return predicted spans in words of the gold example."""
        found = _parsed_spans(row, where, example)
        known = _row_probabilities(row)
        scores = tuple(known.get(span, math.nan) for span in found.spans)
        return SpanPrediction(
            example.id,
            example.words,
            found.spans,
            scores,
            unreachable=found.unreachable,
            decided=decided_in(row),
        )

    def align(self, file: PredictionFile, gold: Gold) -> Scored:
        """Return spans with gold; lines that have only tags have the spans that these spell."""
        rows = list(file.rows)
        if only_tags := [row["tags"] for _, row in rows if "spans" not in row]:
            scheme = predicted_scheme(only_tags, None)
            if scheme is None:
                raise DataError(
                    f"{file}: its tags do not spell spans (B-TYPE, I-TYPE, O), so they cannot be "
                    "compared with spans."
                )
            spelled = iter(tags_to_spans(tags, str(scheme)) for tags in only_tags)
            rows = [
                (where, row if "spans" in row else row | {"spans": next(spelled)})
                for where, row in rows
            ]
        return super().align(replace(file, rows=rows), gold)

    def scored(
        self, examples: Sequence[Any], predictions: Sequence[SpanPrediction], **facts: Any
    ) -> Scored:
        """Return gold and predictions, also in characters where gold is given so."""
        spans, others = ([p.spans for p in predictions], [p.unreachable for p in predictions])
        characters = spans_in_characters(examples, spans, others)
        return super().scored(examples, predictions, characters=characters, **facts)

    def rated(self, scored: Scored) -> list[list[Answer]]:
        """Return the predicted spans of each sentence."""
        known = self.span_probabilities(scored)
        rows = zip(map(set, scored.gold), scored.predicted, known, strict=True)
        return [
            [Answer(own.get(s, math.nan), s in gold, s.label) for s in dict.fromkeys(predicted)]
            for gold, predicted, own in rows
        ]

    def span_probabilities(self, scored: Scored) -> Sequence[Mapping[Span, float]]:
        """Return the known probabilities of the predicted spans of each sentence."""
        return [
            {s: score for s, score in zip(p.spans, p.scores, strict=True) if not math.isnan(score)}
            for p in scored.predictions
        ] or [{} for _ in scored.gold]

    def further_scores(self, scored: Scored) -> dict[str, float]:
        """Return counts of inner spans, if gold nests, and the F1 of each type."""
        found = {}
        if is_nested(scored):
            of_gold, of_found, of_predicted, _ = map(float, total(inner_counts, scored))
            found = {
                "inner_gold": of_gold,
                "inner_predicted": of_predicted,
                "inner_found": of_found,
            }
        by_type = class_scores(scored).items()
        return found | {f"span_f1_strict:{name}": row["f1"] for name, row in by_type}

    def repeatable(self, prediction: SpanPrediction) -> Collection[Any] | None:
        """Return nothing: spans of all examples are never the same."""
        return None if prediction.spans else ()


def _parsed_spans(row: Mapping[str, Any], where: str, example: TokenExample) -> ParsedSpans:
    words, text = row.get("words", row.get("tokens")), row.get("text")
    if words is not None:
        check_words(where, words, example)
    spans = row["spans"]
    in_characters = (words is None and text is not None) or any(
        isinstance(span, dict) and "start" not in span and "start_char" in span
        for span in (spans if isinstance(spans, list) else ())
    )
    if not in_characters:
        return read_spans(spans, where, len(example.words))
    if example.text is None:
        raise DataError(
            f"{where}: the spans are in characters, but {example.where} has words and no text: "
            'give spans in words, {"start": 0, "end": 2, "label": "PER"}, end exclusive.'
        )
    if text not in (None, example.text):
        raise DataError(
            f"{where}: the text differs from {example.where}: the files do not belong together."
        )
    return read_spans(spans, where, len(example.words), example.text, example.offsets)


def _row_probabilities(row: Mapping[str, Any]) -> dict[Span, float]:
    if row.get("words", row.get("tokens")) is None and "text" in row:
        return {}
    found = {}
    for span in row["spans"]:
        score = probability(span.get("score")) if isinstance(span, dict) else None
        if score is not None:
            start, end = span.get("start"), span.get("end")
            if isinstance(start, int) and isinstance(end, int):
                found[Span(start, end, str(span.get("label")))] = score
    return found


# --- Subgroups ------------------------------------------------------------------------------------

SpanGroups = Callable[[int, Collection[Span]], Mapping[Span, str]]
"""Maps the index of a sentence and its gold or its predicted spans to their subgroups."""


def span_groups(
    words: Sequence[Sequence[str]], entity_types: Mapping[str, Collection[str]] | None = None
) -> dict[str, tuple[SpanGroups, Sequence[str]]]:
    """Return the divisions of spans by name, each with its subgroups in order."""

    def by(name: Callable[[int, Span], str]) -> SpanGroups:
        return lambda index, spans: {span: name(index, span) for span in spans}

    def by_bucket(value: Callable[[int, Span], int], starts: Sequence[int]) -> Any:
        return by(lambda index, span: bucket(value(index, span), starts)), buckets(starts)

    groups: dict[str, tuple[SpanGroups, Sequence[str]]] = {
        "length": by_bucket(lambda _, span: span.end - span.start, SPAN_LENGTHS),
        "depth": (
            lambda _, spans: {each: DEPTHS[min(n, 3)] for each, n in depths(spans).items()},
            DEPTHS,
        ),
        "sentence length": by_bucket(lambda index, _: len(words[index]), SENTENCE_LENGTHS),
        "first word": by_bucket(lambda _, span: span.start + 1, POSITIONS),
    }
    if entity_types is not None:

        def occurrence(index: int, span: Span) -> str:
            types = entity_types.get(surface(words[index], span), ())
            return SEEN_ENTITIES[0 if span.label in types else 1 if types else 2]

        groups["in training"] = (by(occurrence), SEEN_ENTITIES)
    return groups


def _cells(groups: SpanGroups, scored: Scored) -> Iterator[tuple[int, str, list[int]]]:
    """Yield the gold, found, predicted and correct spans of each subgroup of each sentence.

    Found are gold spans that were predicted, correct are predicted spans that are in gold. They
    differ if the subgroup of a span depends on the spans around it (depth).
    """
    for index, sides in enumerate(span_sets(scored)):
        counts: dict[str, list[int]] = {}
        for first, (side, other) in ((0, sides), (2, sides[::-1])):
            for span, name in groups(index, side).items():
                own = counts.setdefault(name, [0, 0, 0, 0])
                own[first] += 1
                own[first + 1] += span in other
        yield from ((index, *each) for each in counts.items())


def _row(sums: np.ndarray) -> dict[str, float]:
    gold, found, predicted, correct = sums.tolist()
    return {
        "precision": correct / max(1, predicted),
        "recall": found / max(1, gold),
        "f1": float(subgroup_f1(sums)),
        "gold": gold,
        "found": found,
        "predicted": predicted,
        "correct": correct,
    }


def depths(spans: Iterable[Span]) -> dict[Span, int]:
    """Return the number of spans around each span, each within the next wider one; 0: outermost.

    Spans with the same start and end count once.
    """
    found: dict[Span, int] = {}
    open_spans: list[Span] = []
    for span in sorted(set(spans), key=lambda span: (span.start, -span.end)):
        open_spans = [outer for outer in open_spans if outer.end > span.start]
        around = [
            found[outer] for outer in open_spans if outer.end >= span.end and outer[:2] != span[:2]
        ]
        found[span] = max(around, default=-1) + 1
        open_spans.append(span)
    return found


def scores_by_criterion(matches: Iterable[Iterable[Match]]) -> dict[str, dict[str, float]]:
    """Return the scores of matched spans under each of the ``CRITERIA``, with counts of pairs."""
    kinds = count_kinds(matches)
    paired = sum(kinds[kind] for kind in KINDS[:4])
    found = {}
    for criterion, (full, half) in CRITERIA.items():
        correct, partly = (sum(kinds[kind] for kind in some) for some in (full, half))
        sums = np.array(credit_counts(kinds, criterion))
        found[criterion] = {rate: float(value(sums)) for rate, value in RATES.items()} | {
            "correct": correct,
            "incorrect": paired - correct - partly,
            "partial": partly,
            "missed": kinds["miss"],
            "spurious": kinds["false positive"],
        }
    return found


SPANS = Spans()
