"""Labeled spans of words, which may nest, and functions shared with tags that spell spans.

A span is correct if start, end and label are. ``span_f1_strict`` is a micro average (on flat data,
seqeval's strict mode), and ``span_f1_strict:TYPE`` the F1 of a type. A repeated span counts once.
With characters there is also ``span_f1_characters``, in which gold that words cannot represent is
missed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from finetune.config.values import conforms
from finetune.data import DataError
from finetune.data.spans import words_to_chars
from finetune.data.tag_schemes import detect_scheme
from finetune.data.token_rows import TokenRow, read_relations, read_spans
from finetune.data.tokens import read_gold
from finetune.evaluation import metrics
from finetune.evaluation.metrics import ECE, RATES, Items, Metric
from finetune.evaluation.tables import (
    Classes,
    Grouping,
    PredictionType,
    Tables,
    Wording,
    buckets,
    count,
    wrong_value,
)
from finetune.evaluation.training_vocabulary import surface
from finetune.types import Relation, Span, SpanPrediction, TokenExample, quantity

_SPAN_LENGTHS = (1, 2, 3, 4, 5)
DEPTHS = ("outermost", "within 1", "within 2", "within 3+")
SEEN_ENTITIES = ("seen", "seen as another type", "unseen")


# --- Sentences of all types ----------------------------------------------------------------------

ONE_TAG_EACH = "a list with one string for each word"
# The first value of each subgroup of lengths in words.
SENTENCE_LENGTHS = (1, 11, 21, 41, 81, 161)


def sentence_of_row(
    index: int, where: str, row: Mapping[str, Any], *, of_tags: bool = False
) -> TokenExample:
    """Read the sentence of a row with its gold.

    ``of_tags`` leaves out spans next to tags, unless there are offsets: tags spell them.
    """
    gold: Any = row["gold"] or {}
    words: Any = row.get("words")
    if not isinstance(gold, Mapping) or not are_names(words):
        raise DataError(
            f'{where}: next to `words`, `gold` must be an object such as {{"tags": ["B-PER", "O"]}}'
            f' or {{"spans": [[0, 2, "PER"]]}}, not {gold!r:.60}; or name a file with --gold FILE.'
        )
    tags, spans, relations = map(gold.get, ("tags", "spans", "relations"))
    if tags is not None and not are_names(tags):
        raise wrong_value(where, "gold", ONE_TAG_EACH, tags)
    offsets = row.get("offsets")
    for noun, values in (("gold tag", tags), ("offset", offsets)):
        if values is not None and len(values) != len(words):
            raise DataError(
                f"{where}: {quantity(len(values), noun)} for {quantity(len(words), 'word')}."
            )
    if of_tags and tags is not None and offsets is None:
        spans = relations = None
    misaligned = gold.get("unreachable") or []
    for name, values, size in (("offsets", offsets or [], 2), ("unreachable", misaligned, 3)):
        if not conforms(values, list[list[Any]]) or {*map(len, values)} - {size}:
            raise wrong_value(where, name, f"lists of {size} values", values)
    if relations is not None:
        sentence = TokenRow(tuple(words), where)
        relations = read_relations(relations, where, spans or (), sentence)
    return TokenExample(
        index,
        tuple(words),
        spans if spans is None else read_spans(spans, where, len(words)).spans,
        tags if tags is None else tuple(tags),
        row.get("document"),
        row.get("text"),
        offsets if offsets is None else tuple((start, end) for start, end in offsets),
        row.get("where", where),
        misaligned=tuple(Span(*span) for span in misaligned),
        key=row.get("id"),
        relations=relations,
    )


def are_names(values: Any, type: Any = str) -> bool:
    """Whether a value of a row is a list of names; of another ``type``, some may be None."""
    return isinstance(values, list) and all(isinstance(value, type) for value in values)


def check_words(where: str, words: Any, example: TokenExample) -> None:
    """Raise DataError if a prediction has other words than the gold example."""
    if not isinstance(words, list) or len(words) != len(example.words):
        number = quantity(len(words), "word") if isinstance(words, list) else f"{words!r:.60}"
        raise DataError(
            f"{where}: {number} for the {quantity(len(example.words), 'word')} of {example.where}: "
            "the files do not belong together."
        )
    for index, (word, gold) in enumerate(zip(words, example.words, strict=True)):
        if word != gold:
            raise DataError(
                f"{where}: word {index} is {word!r:.40}, but {gold!r:.40} in {example.where}: "
                "the files do not belong together."
            )


# --- Items of spans, whether they are predicted as such or spelled by tags ------------------------

MATCHES = ("correct", "type", "boundary", "boundary and type", "false positive", "miss")
"""Kinds of pairs, which are correct or wrong in type, in boundaries, or in both."""
_SAME_PLACE = {"correct": 1.0, "type": 1.0}
CRITERIA: Mapping[str, Mapping[str, float]] = {
    "strict": {"correct": 1.0},
    "exact": _SAME_PLACE,
    "partial": _SAME_PLACE | {"boundary": 0.5, "boundary and type": 0.5},
    "type": {"correct": 1.0, "boundary": 1.0},
}
"""By criterion of SemEval-2013 task 9.1 (Segura-Bedmar, Martínez & Herrero-Zazo 2013): the credit
of each kind of pair, 0 for all others."""

_Pair = tuple[Span | None, Span | None]


def match_kind(gold: Span | None, predicted: Span | None) -> str:
    """Name the kind of a pair, one of ``MATCHES``."""
    if gold is None or predicted is None:
        return "miss" if predicted is None else "false positive"
    if gold.label == predicted.label:
        return "correct" if gold == predicted else "boundary"
    return "type" if gold[:2] == predicted[:2] else "boundary and type"


def match_spans(gold: Collection[Span], predicted: Collection[Span]) -> list[_Pair]:
    """Pair gold and predicted spans of a sentence; every span is in one pair, in order.

    Equal spans are paired first, then spans with equal boundaries, then spans of one type that
    share words, then others that share words, the closest first. Each span has at most one partner:
    nervaluate counts a gold span that several predicted spans cover several times.
    """
    equal = set(gold) & set(predicted)
    free_gold, free_predicted = set(gold) - equal, set(predicted) - equal
    pairs: list[_Pair] = [(span, span) for span in equal]
    by_start = sorted(free_predicted)
    starts = [span.start for span in by_start]
    longest = max((span.end - span.start for span in by_start), default=0)
    overlapping = [
        (one, other)
        for one in free_gold
        for other in by_start[
            bisect_left(starts, one.start - longest) : bisect_left(starts, one.end)
        ]
        if one.start < other.end
    ]
    for one, other in sorted(overlapping, key=_closest_first):
        if one in free_gold and other in free_predicted:
            free_gold.remove(one)
            free_predicted.remove(other)
            pairs.append((one, other))
    pairs += [(span, None) for span in free_gold]
    pairs += [(None, span) for span in free_predicted]
    return sorted(pairs, key=lambda pair: (pair[0] or pair[1], pair[0] is None))


def _closest_first(pair: tuple[Span, Span]) -> tuple[int, int, int, tuple[Span, Span]]:
    gold, predicted = pair
    shared = min(gold.end, predicted.end) - max(gold.start, predicted.start)
    unshared = max(gold.end, predicted.end) - min(gold.start, predicted.start) - shared
    return MATCHES.index(match_kind(gold, predicted)), -shared, unshared, pair


def matched_items(
    gold: Iterable[Collection[Span]],
    predicted: Iterable[Collection[Span]],
    scores: Sequence[Mapping[Span, float]] = (),
) -> Items:
    """Make an item for each pair of ``match_spans``, with the scores of their example.

    The ``category`` says how both spans correspond.
    """
    items = metrics.set_items(gold, predicted, scores, match_spans)
    kinds = np.fromiter(map(match_kind, items.gold, items.predicted), object)
    return replace(items, columns={"category": kinds})


def _matching_counts(tables: Tables, criterion: str) -> np.ndarray:
    matches = tables.items.columns["category"]
    credits = np.array([CRITERIA[criterion].get(category, 0.0) for category in matches])
    counts = metrics.item_counts(tables).astype(np.float64)
    counts[:, 0] = np.bincount(tables.items.example, credits, len(tables))
    return counts


def _subgroup_f1(sums: np.ndarray) -> np.ndarray:
    # from gold, found, predicted and correct spans; found and correct differ where the subgroup of
    # a span depends on the spans around it (depth)
    recall, precision = (metrics.ratio(sums[..., n + 1], sums[..., n]) for n in (0, 2))
    return metrics.ratio(2 * precision * recall, precision + recall)


def _has_characters(tables: Tables) -> bool:
    has_offsets = [e.offsets is not None and e.spans is not None for e in tables.examples]
    return bool(has_offsets) and all(has_offsets)


def _character_counts(tables: Tables) -> np.ndarray:
    # of the spans of each text in characters; words cannot represent those that are misaligned
    in_words: list[list[Span]] = [[] for _ in range(len(tables))]
    for index, span in zip(tables.items.example.tolist(), tables.items.predicted, strict=True):
        in_words[index] += [] if span is None else [span]
    gold, answers = [], []
    rows = zip(tables.examples, tables.predictions, in_words, strict=True)
    for example, prediction, spans in rows:
        gold.append({*words_to_chars(example.offsets, example.spans), *example.misaligned})
        answers.append({*words_to_chars(example.offsets, spans), *prediction.misaligned})
    return metrics.set_counts(gold, answers)


SPAN_METRICS = {
    **{
        f"span_{rate}_{criterion}": Metric(counts, value, reported=False, analyzed=rate == "f1")
        for criterion in CRITERIA
        if criterion != "strict"
        for counts in (partial(_matching_counts, criterion=criterion),)
        for rate, value in RATES.items()
    },
    "span_f1_macro": Metric(metrics.class_counts, metrics.macro_f1, reported=False, analyzed=True),
    **ECE,
    **{
        f"span_{rate}_characters": Metric(
            _character_counts, value, _has_characters, reported=rate == "f1"
        )
        for rate, value in RATES.items()
    },
}
"""The metrics of all types that have spans."""


def sides_in_words(tables: Tables, item: int) -> tuple[Any, Any]:
    """Convert gold and prediction of an item, with their words, to JSON values."""
    items = tables.items
    words = tables.examples[items.example[item]].words
    word = int(items.columns["word"][item]) if "word" in items.columns else 0
    return _in_words(words, items.gold[item], word), _in_words(words, items.answer[item], word)


def _in_words(words: Sequence[str], value: Any, word: int) -> dict[str, Any] | None:
    if not value:  # None, or "" where the model abstained
        return None
    if isinstance(value, Relation):
        spans = value[:2]
        text = " → ".join(f"{surface(words, span)} ({span.label})" for span in spans)
        start, end = min(span.start for span in spans), max(span.end for span in spans)
        return Span(start, end, value.label)._asdict() | {"text": text}
    span = value if isinstance(value, Span) else Span(word, word + 1, value)
    return span._asdict() | {"text": surface(words, span)}


# --- Subgroups ------------------------------------------------------------------------------------


def span_groupings(tables: Tables) -> dict[str, Grouping]:
    """Divide spans by length, depth, position, and occurrence in training data."""
    items = tables.items
    words = [example.words for example in tables.examples]
    example, sides = items.example.tolist(), (items.gold, items.predicted)
    spans = [pair for side in sides for pair in zip(example, side, strict=True)]
    lengths = (None if span is None else span.end - span.start for _, span in spans)
    groups: dict[str, tuple[Any, Sequence[str]]] = {"length": buckets(lengths, _SPAN_LENGTHS)}
    if tables.schemes[0] is None:  # tags spell no span within another
        depth_of = [list(map(depths, side)) for side in (tables.gold, tables.predicted)]
        numbers = [
            -1 if span is None else depth_of[index >= len(example)][i][span]
            for index, (i, span) in enumerate(spans)
        ]
        groups["depth"] = ["" if n < 0 else DEPTHS[min(n, 3)] for n in numbers], DEPTHS
    lengths = (None if span is None else len(words[index]) for index, span in spans)
    groups["sentence length"] = buckets(lengths, SENTENCE_LENGTHS)
    if tables.vocabulary is not None:
        types_of, names = tables.vocabulary.entity_types, []
        for index, span in spans:
            types = () if span is None else types_of.get(surface(words[index], span), ())
            seen = 0 if span is not None and span.label in types else 1 if types else 2
            names.append("" if span is None else SEEN_ENTITIES[seen])
        groups["in training"] = names, SEEN_ENTITIES
    counts = np.zeros((2, len(items), 4))  # gold, found, predicted and correct
    counts[0, :, 0] = counts[1, :, 2] = 1
    counts[0, :, 1] = counts[1, :, 3] = items.credit
    return {
        name: Grouping(
            example=np.tile(items.example, 2),
            names=names,  # the subgroups of gold spans, then those of predicted ones
            counts=counts.reshape(-1, 4),
            order=order,
            cells={
                "precision": lambda sums: metrics.ratio(sums[..., 3], sums[..., 2]),
                "recall": lambda sums: metrics.ratio(sums[..., 1], sums[..., 0]),
                "f1": _subgroup_f1,
                **{"gold": count(0), "found": count(1), "predicted": count(2), "correct": count(3)},
            },
            rate="f1",
            prefix="span_",
            shown=order is not DEPTHS or not {*names} <= {"", DEPTHS[0]},
        )
        for name, (names, order) in groups.items()
    }


def depths(spans: Iterable[Span]) -> dict[Span, int]:
    """Count the spans around each span, each within the next wider one; 0: outermost.

    Spans with the same start and end count once.
    """
    depth: dict[Span, int] = {}
    open_spans: list[Span] = []
    for span in sorted(set(spans), key=lambda span: (span.start, -span.end)):
        open_spans = [outer for outer in open_spans if outer.end > span.start]
        around = [
            depth[outer] for outer in open_spans if outer.end >= span.end and outer[:2] != span[:2]
        ]
        depth[span] = max(around, default=-1) + 1
        open_spans.append(span)
    return depth


# --- The type -------------------------------------------------------------------------------------


def _with_items(tables: Tables) -> Tables:
    scores_by_span = [dict(zip(p.spans, p.scores, strict=True)) for p in tables.predictions]
    items = matched_items(tables.gold, tables.predicted, scores_by_span)
    return replace(tables, items=items, names=metrics.item_names(items, tables.labels))


def _parse(row: Mapping[str, Any], where: str, example: TokenExample) -> SpanPrediction:
    words, text, spans = row.get("words", row.get("tokens")), row.get("text"), row["spans"]
    if words not in (None, [*example.words]):
        check_words(where, words, example)
    listed = spans if isinstance(spans, list) else []
    values = [span for span in listed if isinstance(span, dict)]
    in_words = words is not None or text is None
    if in_words and not any("start" not in s and "start_char" in s for s in values):
        read = read_spans(spans, where, len(example.words))
    elif example.text is None:
        raise DataError(
            f"{where}: the spans are in characters, but {example.where} has words and no text: "
            'give spans in words, {"start": 0, "end": 2, "label": "PER"}, end exclusive.'
        )
    elif text not in (None, example.text):
        raise DataError(
            f"{where}: the text differs from {example.where}: the files do not belong together."
        )
    else:
        read = read_spans(spans, where, len(example.words), example.text, example.offsets)
    score_of = {
        (span.get("start"), span.get("end"), str(span.get("label"))): span.get("score")
        for span in (values if in_words else ())
    }
    return SpanPrediction(
        example.id,
        example.words,
        read.spans,
        tuple(metrics.probability(score_of.get(span)) for span in read.spans),
        misaligned=read.misaligned,
    )


def predicted_scheme(predicted: Sequence[Sequence[str]], scheme: str | None) -> str | None:
    """Find the scheme of predicted tags, next to gold of a ``scheme``."""
    detected = detect_scheme(predicted)
    if detected == "IOB1" and scheme not in ("IO", "IOB1"):
        detected = "BIO"  # a few ill-formed tags beside others do not make another scheme
    return detected


SPANS = PredictionType(
    name="spans",
    wording=Wording(
        "spans",
        "sentence",
        "predicted spans",
        "no spans to score against: give spans, or tags that spell spans (B-TYPE, I-TYPE, O).",
    ),
    metrics={**metrics.rates("span_{}_strict"), **SPAN_METRICS},
    default="span_f1_strict",
    gold=attrgetter("spans"),
    answer=attrgetter("spans"),
    parse=_parse,
    tables=_with_items,
    read_gold=read_gold,
    gold_of_row=sentence_of_row,
    groupings=span_groupings,
    sides=sides_in_words,
    classes=Classes("type", {"span_{}_strict": metrics.item_counts}, confusions=True, scored=True),
    in_words=True,
)
