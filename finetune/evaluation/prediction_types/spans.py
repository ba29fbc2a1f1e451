"""Labeled spans of words, which may nest, and what tags that spell spans share with them.

A span is correct if start, end and label are. ``span_f1_strict`` is a micro average (on flat data,
seqeval's strict mode), and ``span_f1_strict:TYPE`` the F1 of a type. Nested gold also has
``span_f1_outermost``, ``span_f1_inner`` and counts of inner spans. A repeated span counts once.
With characters there is also ``span_f1_characters``, in which gold that words cannot represent is
missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data import DataError
from finetune.data.spans import inner_spans, words_to_chars
from finetune.data.tag_schemes import detect_scheme, tags_to_spans
from finetune.data.token_records import TokenRecord, read_relations, read_spans
from finetune.data.tokens import read_gold
from finetune.evaluation.items import (
    Grouping,
    Items,
    PredictionType,
    TableRows,
    Tables,
    Wording,
    check_names,
    known_or_nan,
    pair_items,
    set_items,
    withheld_in,
)
from finetune.evaluation.metrics import (
    RATES,
    Metric,
    by_example,
    class_counts,
    class_scores,
    expected_calibration_error,
    item_counts,
    macro_f1,
    rates,
    ratio,
    total,
)
from finetune.evaluation.prediction_types.texts import bucket, buckets
from finetune.evaluation.span_matching import CRITERIA, MATCHES, Match, match_spans
from finetune.evaluation.training_vocabulary import TrainingVocabulary, surface
from finetune.types import Span, SpanPrediction, TokenExample, quantity

if TYPE_CHECKING:
    from finetune.evaluation.predictions import PredictionFile

_SPAN_LENGTHS = (1, 2, 3, 4, 5)
DEPTHS = ("outermost", "within 1", "within 2", "within 3+")
SEEN_ENTITIES = ("seen", "seen as another type", "unseen")


# --- Sentences, whatever is predicted for them ----------------------------------------------------

# The first value of each subgroup: lengths are in words, the first word of a sentence is at 1.
SENTENCE_LENGTHS = (1, 11, 21, 41, 81, 161)
POSITIONS = (1, 2, 11, 51, 101, 201)


def sentence_of_row(index: int, where: str, row: Mapping[str, Any]) -> TokenExample:
    """Return the sentence of a row with its gold."""
    gold, words = row["gold"] or {}, row.get("words")
    if not isinstance(gold, Mapping) or not isinstance(words, list):
        raise DataError(
            f'{where}: next to `words`, `gold` must be an object such as {{"tags": ["B-PER", "O"]}}'
            f' or {{"spans": [[0, 2, "PER"]]}}, not {gold!r:.60}; or name a file with --gold FILE.'
        )
    tags, spans = gold.get("tags"), gold.get("spans")
    if tags is not None:
        check_names(where, "gold", tags, tags=True)
        if len(tags) != len(words):
            raise DataError(
                f"{where}: {quantity(len(tags), 'gold tag')} for {quantity(len(words), 'word')}."
            )
    offsets, relations = row.get("offsets"), gold.get("relations")
    if relations is not None:
        record = TokenRecord(tuple(words), where)
        relations = read_relations(relations, where, spans or (), record)
    return TokenExample(
        index,
        tuple(words),
        spans if spans is None else read_spans(spans, where, len(words)).spans,
        tags if tags is None else tuple(tags),
        row.get("document"),
        row.get("text"),
        offsets if offsets is None else tuple((start, end) for start, end in offsets),
        row.get("where", where),
        unreachable=tuple(Span(*span) for span in gold.get("unreachable", ())),
        key=row.get("id"),
        relations=relations,
    )


def check_words(where: str, words: Any, example: TokenExample) -> None:
    """Raise DataError if a prediction has other words than the gold example."""
    if not isinstance(words, list) or len(words) != len(example.words):
        found = quantity(len(words), "word") if isinstance(words, list) else f"{words!r:.60}"
        raise DataError(
            f"{where}: {found} for the {quantity(len(example.words), 'word')} of {example.where}: "
            "the files do not belong together."
        )
    for index, (word, gold) in enumerate(zip(words, example.words, strict=True)):
        if word != gold:
            raise DataError(
                f"{where}: word {index} is {word!r:.40}, but {gold!r:.40} in {example.where}: "
                "the files do not belong together."
            )


OF_WORDS: dict[str, Any] = {
    "gold_of_row": sentence_of_row,
    "asked": lambda example: example.words,
    "document": lambda example: example.document,
    "in_words": True,
}
"""What the types of predictions of words share."""


# --- Items of spans, whether they are predicted as such or spelled by tags ------------------------


def matched_items(
    gold: Iterable[Collection[Span]],
    predicted: Iterable[Collection[Span]],
    known: Sequence[Mapping[Span, float]] = (),
) -> Items:
    """Make an item for each pair of ``match_spans``, with the ``known`` probabilities."""
    sides = enumerate(zip(gold, predicted, strict=True))
    return pair_items(((i, *match) for i, both in sides for match in match_spans(*both)), known)


def match_kinds(tables: Tables) -> list[str]:
    """Return how both spans of each item correspond, one of ``span_matching.MATCHES``."""
    items = tables.items
    return [Match(*pair).kind for pair in zip(items.gold, items.predicted, strict=True)]


def side_sets(tables: Tables, side: np.ndarray) -> list[set[Span]]:
    """Return the gold or the predicted spans of each sentence."""
    sets: list[set[Span]] = [set() for _ in range(len(tables))]
    for index, span in zip(tables.items.example.tolist(), side, strict=True):
        if span is not None:
            sets[index].add(span)
    return sets


def _matching_counts(tables: Tables, criterion: str) -> np.ndarray:
    credits = np.array([CRITERIA[criterion].get(kind, 0.0) for kind in match_kinds(tables)])
    counts = item_counts(tables).astype(np.float64)
    counts[:, 0] = by_example(credits, tables.items, tables)
    return counts


def depth_counts(tables: Tables, inner: bool) -> np.ndarray:
    """Return the counts of inner or of outermost spans for ``subgroup_f1`` [N, 4].

    Inner spans lie within a wider span of the same side.
    """
    items, columns = tables.items, []
    for side in (items.gold, items.predicted):
        within = list(map(inner_spans, side_sets(tables, side)))
        pairs = zip(items.example.tolist(), side, strict=True)
        chosen = np.array([s is not None and (s in within[i]) == inner for i, s in pairs], bool)
        columns += [by_example(x, items, tables) for x in (chosen, chosen & items.credit)]
    return np.stack(columns, axis=-1)


def subgroup_f1(sums: np.ndarray) -> np.ndarray:
    """Return the F1 of a subgroup of spans: gold, found, predicted and correct [..., 4] -> [...].

    Found and correct differ where the subgroup of a span depends on the spans around it (depth).
    """
    recall, precision = ratio(sums[..., 1], sums[..., 0]), ratio(sums[..., 3], sums[..., 2])
    return ratio(2 * precision * recall, precision + recall)


def is_nested(tables: Tables) -> bool:
    """Return whether gold spans nest."""
    return any(map(inner_spans, side_sets(tables, tables.items.gold)))


def has_characters(tables: Tables) -> bool:
    """Return whether gold spans are given in characters."""
    known = [e.offsets is not None and e.spans is not None for e in tables.examples]
    return bool(known) and all(known)


def items_in_characters(
    tables: Tables, predicted: Sequence[Sequence[Span]], unreachable: Sequence[Sequence[Span]] = ()
) -> Items:
    """Return the gold and predicted spans of each text in characters.

    ``predicted`` are in words, ``unreachable`` in characters: spans that words cannot represent.
    """
    gold, found = [], []
    rows = zip(tables.examples, predicted, unreachable or [()] * len(tables), strict=True)
    for example, spans, others in rows:
        gold.append({*words_to_chars(example.offsets, example.spans), *example.unreachable})
        found.append({*words_to_chars(example.offsets, spans), *others})
    return set_items(gold, found)


def _characters(tables: Tables) -> Items:
    return items_in_characters(
        tables, tables.predicted, [prediction.unreachable for prediction in tables.predictions]
    )


inner_counts = partial(depth_counts, inner=True)
SPAN_METRICS = {
    **{
        f"span_{rate}_{criterion}": Metric(counts, value, reported=False)
        for criterion in CRITERIA
        if criterion != "strict"
        for counts in (partial(_matching_counts, criterion=criterion),)
        for rate, value in RATES.items()
    },
    "span_f1_macro": Metric(class_counts, macro_f1, reported=False, by_class=True),
    "ece": expected_calibration_error(),
    **{
        f"span_{rate}_characters": Metric(
            partial(item_counts, table="characters"), value, has_characters, reported=rate == "f1"
        )
        for rate, value in RATES.items()
    },
}
"""The metrics of all types that have spans."""


def span_sides(tables: Tables, item: int) -> tuple[Any, Any]:
    """Return the gold and the predicted span of an item as JSON values."""
    words = tables.examples[tables.items.example[item]].words
    sides = tables.items.gold[item], tables.items.predicted[item]
    gold, predicted = (
        None if span is None else {**span._asdict(), "text": surface(words, span)} for span in sides
    )
    return gold, predicted


def criterion_tables(tables: Tables) -> dict[str, TableRows]:
    """Return the table of the scores under each criterion."""
    return {"counted": scores_by_criterion(match_kinds(tables))}


def scores_by_criterion(match_kinds: Iterable[str]) -> TableRows:
    """Return the scores of pairs of spans under each of the ``CRITERIA``, with counts of pairs."""
    counts, rows = Counter(match_kinds), []
    paired = sum(counts[kind] for kind in MATCHES[:4])
    missed, spurious = counts["miss"], counts["false positive"]
    for criterion, credit in CRITERIA.items():
        correct, partly = (
            sum(counts[kind] for kind in MATCHES if credit.get(kind) == share) for share in (1, 0.5)
        )
        sums = np.array([correct + partly / 2, paired + spurious, paired + missed])
        row = {"counted": criterion} | {rate: float(value(sums)) for rate, value in RATES.items()}
        row |= {"correct": correct, "incorrect": paired - correct - partly, "partial": partly}
        rows.append(row | {"missed": missed, "spurious": spurious})
    return rows


def span_macro_f1(scores: Any, tables: Mapping[str, TableRows]) -> dict[str, float]:
    """Return the mean F1 of the types."""
    return {"span_f1_macro": fmean([row["f1"] for row in tables["type"]] or [0.0])}


# --- Subgroups ------------------------------------------------------------------------------------


def span_groupings(tables: Tables, vocabulary: TrainingVocabulary | None) -> dict[str, Grouping]:
    """Divide spans by length, depth, position, and occurrence in training data."""
    words = [example.words for example in tables.examples]

    def by_size(starts: Sequence[int], size: Callable[[int, Span], int]) -> Grouping:
        return _by(tables, buckets(starts), lambda _, *place: bucket(size(*place), starts))

    groupings = {
        "length": by_size(_SPAN_LENGTHS, lambda _, span: span.end - span.start),
        "depth": _by_depth(tables),
        "sentence length": by_size(SENTENCE_LENGTHS, lambda index, _: len(words[index])),
        "first word": by_size(POSITIONS, lambda _, span: span.start + 1),
    }
    if vocabulary is not None:
        known = vocabulary.entity_types

        def occurrence(_: int, index: int, span: Span) -> str:
            types = known.get(surface(words[index], span), ())
            return SEEN_ENTITIES[0 if span.label in types else 1 if types else 2]

        groupings["in training"] = _by(tables, SEEN_ENTITIES, occurrence)
    return groupings


def _by(tables: Tables, order: Sequence[str], name: Callable[[int, int, Span], str]) -> Grouping:
    # found are gold spans that were predicted, correct are predicted spans that are in gold: they
    # differ if the subgroup of a span depends on the spans around it (depth)
    items = tables.items
    counts = np.zeros((2, len(items), 4))  # gold, found, predicted and correct
    counts[0, :, 0] = counts[1, :, 2] = 1
    counts[0, :, 1] = counts[1, :, 3] = items.credit
    names = [
        "" if span is None else name(number, index, span)
        for number, side in enumerate((items.gold, items.predicted))
        for index, span in zip(items.example.tolist(), side, strict=True)
    ]
    return Grouping(
        example=np.tile(items.example, 2),
        names=names,
        counts=counts.reshape(-1, 4),
        order=order,
        row=_row,
        score="span_f1",
        value=subgroup_f1,
    )


def _by_depth(tables: Tables) -> Grouping:
    sides = [side_sets(tables, side) for side in (tables.items.gold, tables.items.predicted)]
    deep = [list(map(depths, side)) for side in sides]
    nested = any(any(found.values()) for side in deep for found in side)
    by_depth = _by(tables, DEPTHS, lambda side, i, span: DEPTHS[min(deep[side][i][span], 3)])
    return replace(by_depth, shown=nested)


def _row(sums: np.ndarray) -> dict[str, float]:
    gold, found, predicted, correct = sums.astype(int).tolist()
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


# --- The type -------------------------------------------------------------------------------------


def _items(
    gold: Sequence[Sequence[Span]],
    predicted: Sequence[Sequence[Span]],
    predictions: Sequence[SpanPrediction],
) -> Items:
    known = [dict(zip(p.spans, p.scores, strict=True)) for p in predictions]
    return matched_items(map(set, gold), map(set, predicted), known)


def _parse(row: Mapping[str, Any], where: str, example: TokenExample) -> SpanPrediction:
    words, text, spans = row.get("words", row.get("tokens")), row.get("text"), row["spans"]
    if words is not None:
        check_words(where, words, example)
    listed = spans if isinstance(spans, list) else []
    values = [span for span in listed if isinstance(span, dict)]
    in_words = words is not None or text is None
    if in_words and not any("start" not in s and "start_char" in s for s in values):
        found = read_spans(spans, where, len(example.words))
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
        found = read_spans(spans, where, len(example.words), example.text, example.offsets)
    known = {
        (each.get("start"), each.get("end"), str(each.get("label"))): each.get("score")
        for each in (values if in_words else ())
    }
    return SpanPrediction(
        example.id,
        example.words,
        found.spans,
        tuple(known_or_nan(known.get(span)) for span in found.spans),
        unreachable=found.unreachable,
        decided=withheld_in(row),
    )


def with_spelled_spans(file: PredictionFile) -> PredictionFile:
    """Add the spans that its tags spell to the rows of a file without spans."""
    only_tags = [row["tags"] for _, row in file.rows if "spans" not in row]
    scheme = predicted_scheme(only_tags, None)
    if only_tags and scheme is None:
        raise DataError(
            f"{file}: its tags do not spell spans (B-TYPE, I-TYPE, O), so they cannot be "
            "compared with spans."
        )
    spelled = (tags_to_spans(tags, str(scheme)) for tags in only_tags)
    rows = [
        (where, row if "spans" in row else row | {"spans": next(spelled)})
        for where, row in file.rows
    ]
    return replace(file, rows=rows)


def predicted_scheme(predicted: Sequence[Sequence[str]], scheme: str | None) -> str | None:
    """Return the scheme of predicted tags, next to gold of a ``scheme``."""
    found = detect_scheme(predicted)
    if found in ("IO", "IOB1") and scheme not in ("IO", "IOB1"):
        found = "BIO"  # a few ill-formed tags do not make another scheme
    return found


def _uncertainty(prediction: SpanPrediction) -> float | None:
    # the entropy in bits of each candidate, span or not, summed, for each word
    p = np.array([score for _, score in prediction.candidates], dtype=float)
    p = np.clip(p, 1e-12, 1 - 1e-12)
    entropy = float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)).sum())
    return entropy / max(len(prediction.words), 1)


def _further_scores(tables: Tables) -> dict[str, float]:
    found = {}
    if is_nested(tables):
        of_gold, of_found, of_predicted, _ = map(float, total(inner_counts, tables))
        found = {"inner_gold": of_gold, "inner_predicted": of_predicted, "inner_found": of_found}
    by_type = class_scores(tables).items()
    return found | {f"span_f1_strict:{name}": row["f1"] for name, row in by_type}


SPANS = PredictionType(
    name="spans",
    key="spans",
    wording=Wording("spans", "sentence", "predicted spans"),
    metrics={
        **rates("span_{}_strict"),
        "span_f1_outermost": Metric(partial(depth_counts, inner=False), subgroup_f1, is_nested),
        "span_f1_inner": Metric(inner_counts, subgroup_f1, is_nested),
        **SPAN_METRICS,
    },
    default="span_f1_strict",
    gold=lambda example: example.spans,
    value=lambda prediction: prediction.spans,
    items=_items,
    parse=_parse,
    read_gold=lambda file, source: read_gold(file, **source.reading),
    uncertainty=_uncertainty,
    repeats=lambda prediction: None if prediction.spans else (),
    tables={"characters": _characters},
    groupings=span_groupings,
    first_tables=criterion_tables,
    further_scores=_further_scores,
    analysis_scores=span_macro_f1,
    categories=match_kinds,
    sides=span_sides,
    named=(("span_{}_strict", ""),),
    classes="type",
    has_confusions=True,
    without_gold=(
        "no spans to score against: give spans, or tags that spell spans (B-TYPE, I-TYPE, O)."
    ),
    tells_seen=True,
    **OF_WORDS,
)
