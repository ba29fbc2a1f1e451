"""One tag for each word: tags that spell spans, and others such as parts of speech.

Tags that spell spans are scored by these spans. ``span_f1_conll`` reads both sides as the script
conlleval does (Tjong Kim Sang & Buchholz 2000; seqeval's default mode); ``span_f1_strict`` counts
only spans that are spelled as the scheme demands (seqeval's strict mode): a lone ``I-PER`` is a
span in the first only.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from finetune.data import DataError
from finetune.data.tag_conversion import respelled
from finetune.data.tag_schemes import (
    convert_tags,
    detect_scheme,
    spans_to_tags,
    strict_spans,
    tags_to_spans,
)
from finetune.data.token_rows import read_spans
from finetune.data.tokens import read_token_file
from finetune.evaluation import metrics
from finetune.evaluation.metrics import CLASS_METRICS, ECE, Items, Metric
from finetune.evaluation.prediction_types.spans import (
    ONE_TAG_EACH,
    SENTENCE_LENGTHS,
    SPAN_METRICS,
    are_names,
    check_words,
    matched_items,
    predicted_scheme,
    sentence_of_row,
    sides_in_words,
    span_groupings,
)
from finetune.evaluation.tables import (
    Classes,
    Grouping,
    PredictionType,
    Tables,
    Wording,
    buckets,
    right_by_group,
    wrong_value,
)
from finetune.types import Span, TokenExample, TokenPrediction, UserError, quantity

NO_TAG = ""
"""The tag of a word on which the model abstained."""
SEEN_WORDS = ("seen with one tag", "seen with several tags", "unseen")


# --- Tables ---------------------------------------------------------------------------------------


def _tag_tables(tables: Tables) -> Tables:
    # without a scheme tags are plain; the second is that of predictions, if it is another
    if tables.files:
        gold, predicted = respelled(tables.gold), respelled(tables.predicted)
        scheme = detect_scheme(gold)
        other = scheme and (predicted_scheme(predicted, scheme) or scheme)
        if other == "IO":  # as tags without B- look, too
            other = tables.schemes[1] or other
        if scheme not in (None, "BIO", other):  # as training reads gold: scores agree
            gold, scheme = [convert_tags(tags, scheme, "BIO") for tags in gold], "BIO"
        tables = replace(tables, gold=gold, predicted=predicted, schemes=(scheme, other))
    for index, tags in enumerate(zip(tables.gold, tables.predicted, strict=True)):
        if len(tags[0]) != len(tags[1]):
            raise UserError(
                f"sentence {index} has {len(tags[0])} gold and "
                f"{quantity(len(tags[1]), 'predicted tag')}: every word needs exactly one "
                "prediction"
            )
    scheme, other = tables.schemes
    if scheme is None:
        items = _word_items(tables)
        names = metrics.item_names(items, tables.labels)
        return replace(tables, type=PLAIN_TAGS, items=items, names=names)
    tables = replace(tables, type=TAGS, schemes=(scheme, other or scheme))
    items = matched_items(*_span_sets(tables, strict=False))
    if scores := _word_probabilities(tables):  # a span has the mean of its words
        spans = (one or other for one, other in zip(items.predicted, items.gold, strict=True))
        for item, (index, span) in enumerate(zip(items.example.tolist(), spans, strict=True)):
            words = scores[index][span.start : span.end]
            items.score[item] = sum(words) / (span.end - span.start)
    return replace(tables, items=items, names=metrics.item_names(items, tables.labels))


def _span_sets(tables: Tables, strict: bool) -> tuple[list[set[Span]], list[set[Span]]]:
    gold, predicted = (
        [set(_spans(tuple(tags), str(scheme), strict)) for tags in side]
        for side, scheme in zip((tables.gold, tables.predicted), tables.schemes, strict=True)
    )
    return gold, predicted


def _strict_counts(tables: Tables, name: str | None = None) -> np.ndarray:
    def of_name(spans: set[Span]) -> set[Span]:
        return {span for span in spans if name in (None, span.label)}

    return metrics.set_counts(*_span_sets(tables, strict=True), of_name)


@lru_cache(maxsize=65536)
def _spans(tags: tuple[str, ...], scheme: str, strict: bool) -> Sequence[Span]:
    return strict_spans(tags, scheme) if strict else tags_to_spans(tags, scheme)


def _word_probabilities(tables: Tables) -> list[tuple[float, ...]]:
    scores = [prediction.scores for prediction in tables.predictions]
    pairs = zip(scores, tables.predicted, strict=bool(scores))
    return scores if all(len(of_words) == len(tags) for of_words, tags in pairs) else []


def _word_items(tables: Tables) -> Items:
    predicted = _in_scheme_of_gold(tables)
    lengths = np.fromiter(map(len, tables.gold), np.int64)
    return Items.of(
        np.repeat(np.arange(len(lengths)), lengths),
        chain.from_iterable(tables.gold),
        chain.from_iterable(_with_withheld(predicted, tables)),
        chain.from_iterable(_word_probabilities(tables)),
        abstained=[not tag for tag in chain.from_iterable(predicted)],
        word=np.concatenate([np.arange(number) for number in (0, *lengths)]),
    )


def _with_withheld(predicted: Sequence[Sequence[str]], tables: Tables) -> Iterable[Sequence[str]]:
    # the tags with those on which the model abstained, whose probabilities the words have
    if not tables.predictions:
        return predicted
    restored, scheme = [], tables.schemes[0]
    for tags, prediction in zip(predicted, tables.predictions, strict=True):
        if withheld := prediction.decided.get("withheld"):
            spans = read_spans(withheld, "", len(tags)).spans
            tag_of = {span.start: span.label for span in spans}
            if scheme is not None:
                tag_of = dict(enumerate(spans_to_tags(spans, len(tags), scheme)))
            left_out = (None, NO_TAG, "O")
            tags = [tag_of.get(n, t) if t in left_out else t for n, t in enumerate(tags)]
        restored.append(tags)
    return restored


def _in_scheme_of_gold(tables: Tables) -> Sequence[Sequence[str]]:
    scheme, other = tables.schemes
    if scheme is None or other in (None, scheme):
        return tables.predicted
    return [convert_tags(tags, str(other), scheme) for tags in tables.predicted]


def _right_tags(tables: Tables) -> np.ndarray:
    pairs = zip(tables.gold, _in_scheme_of_gold(tables), strict=True)
    return np.array([(sum(map(operator.eq, *sides)), len(sides[0])) for sides in pairs])


# --- Files ----------------------------------------------------------------------------------------


def _parse(row: Mapping[str, Any], where: str, example: TokenExample) -> TokenPrediction:
    if example.tags is None:
        problem = "no gold tags: add them, or remove the row"
        if example.spans is not None:
            problem = "gold spans that nest, and no tags; `finetune ner` predicts nested spans"
        raise DataError(f"{example.where}: {problem}. Tags are scored against a tag for each word.")
    if not are_names(row["tags"], str | None):  # None: the model abstained
        raise wrong_value(where, "tags", ONE_TAG_EACH, row["tags"])
    if len(row["tags"]) != len(example.words):
        raise DataError(
            f"{where}: {quantity(len(row['tags']), 'tag')} for the "
            f"{quantity(len(example.words), 'word')} of {example.where}. Every word needs "
            "exactly one."
        )
    if row.get("words") not in (None, [*example.words]):
        check_words(where, row["words"], example)
    if row.get("withheld"):
        read_spans(row["withheld"], where, len(example.words))
    listed, scores = row.get("scores"), tuple[float, ...]()
    if isinstance(listed, list) and len(listed) == len(row["tags"]):
        probabilities = tuple(map(metrics.probability, listed))
        scores = () if any(map(math.isnan, probabilities)) else probabilities
    tags = tuple(tag or NO_TAG for tag in row["tags"])
    return TokenPrediction(example.id, example.words, tags, scores)


# --- Plain tags -----------------------------------------------------------------------------------


def _groupings(tables: Tables) -> dict[str, Grouping]:
    sentences = [example.words for example in tables.examples]
    lengths = (len(words) for words in sentences for _ in words)
    groups: dict[str, tuple[Any, Sequence[str]]] = {
        "sentence length": buckets(lengths, SENTENCE_LENGTHS)
    }
    if tables.vocabulary is not None:
        tags_of = tables.vocabulary.word_tags
        numbers = (len(tags_of.get(word, ())) for words in sentences for word in words)
        groups["in training"] = (SEEN_WORDS[(2, 0, 1)[min(n, 2)]] for n in numbers), SEEN_WORDS
    return {name: right_by_group(tables.items, *group, "words") for name, group in groups.items()}


_FORMS = {"span_{}_conll": metrics.item_counts, "span_{}_strict": _strict_counts}
_SHARED: dict[str, Any] = {
    "wording": Wording("tags", "sentence", "words"),
    "gold": attrgetter("tags"),
    "answer": attrgetter("tags"),
    "parse": _parse,
    "tables": _tag_tables,
    "read_gold": read_token_file,
    "gold_of_row": partial(sentence_of_row, of_tags=True),
    "sides": sides_in_words,
    "in_words": True,
}
TAGS = PredictionType(
    name="tags",
    metrics={
        **metrics.rates("span_{}_conll"),
        "span_f1_strict": Metric(_strict_counts, metrics.f1),
        "span_precision_strict": Metric(_strict_counts, metrics.precision, reported=False),
        "span_recall_strict": Metric(_strict_counts, metrics.recall, reported=False),
        "tag_accuracy": Metric(_right_tags, metrics.mean),
        **SPAN_METRICS,
    },
    default="span_f1_conll",
    calibrated=_word_items,
    groupings=span_groupings,
    classes=Classes("type", _FORMS, confusions=True),
    **_SHARED,
)
PLAIN_TAGS = PredictionType(
    name="plain tags",
    metrics={"accuracy": Metric(metrics.item_counts, metrics.recall), **CLASS_METRICS, **ECE},
    default="accuracy",
    groupings=_groupings,
    classes=Classes("tag", {"{}": metrics.item_counts}, confusions=True),
    **_SHARED,
)
