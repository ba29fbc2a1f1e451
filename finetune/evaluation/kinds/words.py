"""One tag for each word: tags that spell spans, and others such as parts of speech."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.data import DataError
from finetune.data.files import DataFile
from finetune.data.tag_conversion import respelled
from finetune.data.tag_schemes import (
    convert_tags,
    detect_scheme,
    require_scheme,
    spans_to_tags,
    strict_spans,
    tags_to_spans,
)
from finetune.data.tokens import read_token_file
from finetune.evaluation.kinds.examples import (
    POSITIONS,
    SENTENCE_LENGTHS,
    OfSentences,
    bucket,
    buckets,
    check_words,
    predicted_scheme,
    right_by_group,
    spans_in_characters,
)
from finetune.evaluation.kinds.kind import (
    Answer,
    Grouping,
    Items,
    Kind,
    Mistake,
    Scored,
    Table,
    Wording,
    decided_in,
    expected_calibration_error,
    probability,
    rates,
)
from finetune.evaluation.kinds.spans import (
    SPAN_METRICS,
    OfSpans,
    span_mistake,
    span_sets,
)
from finetune.evaluation.metrics import (
    Metric,
    class_counts,
    f1,
    item_counts,
    macro_f1,
    matthews,
    mean,
    recall,
    weighted_f1,
)
from finetune.evaluation.span_matching import Match
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.types import Span, TokenExample, TokenPrediction, UserError, quantity

if TYPE_CHECKING:
    from finetune.evaluation.predictions import Gold, GoldSource, PredictionFile

NO_TAG = ""
"""The tag of a word whose answer is withheld."""
SEEN_WORDS = ("seen with one tag", "seen with several tags", "unseen")


# --- The spans that seqeval finds in tags, on which all scores of tags rest ----------------------
#
# seqeval's own score functions are slow on large data: here it reads each distinct stretch of tags
# between two O once. Several counts look at the same sentences, which are kept, too.


_PREFIXES = {"L": "E", "U": "S", "M": "I"}
"""BIOES prefixes for BILOU and BMES, as seqeval's default mode knows no others."""


def seqeval_spans(tags: Sequence[str], scheme: str, strict: bool) -> tuple[Span, ...]:
    """Return the spans of tags by the default mode of seqeval, or by its strict mode.

    seqeval's strict mode has no IO, and reads some illegal IOB1 tags as spans: spans of these
    schemes are read strictly here and converted to BIO.

    Raises:
        UserError: A tag is not in the scheme.
    """
    return _spans_of_sentence(tuple(tags), scheme, strict)


@lru_cache(maxsize=65536)
def _spans_of_sentence(tags: tuple[str, ...], scheme: str, strict: bool) -> tuple[Span, ...]:
    found, start = [], 0
    for outside, words in groupby(tags, "O".__eq__):
        stretch = tuple(words)
        if not outside:
            spans = _spans_of_stretch(stretch, scheme, strict)
            found += [Span(start + first, start + end, label) for first, end, label in spans]
        start += len(stretch)
    return tuple(found)


@lru_cache(maxsize=65536)
def _spans_of_stretch(tags: tuple[str, ...], scheme: str, strict: bool) -> tuple[Span, ...]:
    from seqeval.metrics.sequence_labeling import get_entities  # loads scikit-learn
    from seqeval.scheme import IOB2, IOBES, Entities

    require_scheme(tags, scheme)
    if not strict:
        places = [(start, last + 1, name) for name, start, last in get_entities(_for_seqeval(tags))]
    else:
        if scheme in ("IO", "IOB1"):
            tags = tuple(spans_to_tags(strict_spans(tags, scheme), len(tags), "BIO"))
        written = IOB2 if scheme in ("IO", "IOB1", "BIO") else IOBES
        (entities,) = Entities([_for_seqeval(tags)], written).entities
        places = [(each.start, each.end, each.tag) for each in entities]
    return tuple(Span(start, end, bytes.fromhex(name).decode()) for start, end, name in places)


def _for_seqeval(tags: Sequence[str]) -> list[str]:
    found = []
    for tag in tags:
        prefix, hyphen, span_type = tag.partition("-")
        found.append(f"{_PREFIXES.get(prefix, prefix)}{hyphen}{span_type.encode().hex()}")
    return found


# --- The kinds ------------------------------------------------------------------------------------


def tag_counts(scored: Scored) -> np.ndarray:
    """Return the equal tags (both in the scheme of gold) and the words of each sentence [N, 2]."""
    sides = zip(scored.gold, in_scheme_of_gold(scored), strict=True)
    equal = [sum(map(str.__eq__, *tags)) for tags in sides]
    return np.array([equal, list(map(len, scored.gold))], dtype=np.int64).T


def in_scheme_of_gold(scored: Scored) -> Sequence[Sequence[str]]:
    """Return the predicted tags in the scheme of gold."""
    scheme, other = scored.schemes
    if scheme is None or other in (None, scheme):
        return scored.predicted
    return [convert_tags(tags, str(other), scheme) for tags in scored.predicted]


class _OfWords(OfSentences):
    """The base class of the kinds of tags."""

    wording = Wording("tags", "sentence", "words")

    def gold(self, example: TokenExample) -> tuple[str, ...] | None:
        """Return the gold tags."""
        return example.tags

    def value(self, prediction: TokenPrediction) -> tuple[str, ...]:
        """Return the predicted tags."""
        return prediction.tags

    def uncertainty(self, prediction: TokenPrediction) -> float | None:
        """Return 1 less the geometric mean of the probabilities of the tags.

        It does not prefer long sentences (MNLP, Shen et al. 2018; measures for sequences: Settles &
        Craven 2008).
        """
        logs = np.log(np.maximum(prediction.scores, np.finfo(float).tiny))
        return 1 - math.exp(float(logs.mean())) if len(logs) else 0.0

    def read_gold(self, file: str | DataFile, source: GoldSource) -> list[TokenExample]:
        """Return the sentences of a file with their tags."""
        return list(read_token_file(file, **source.reading))

    def parse(self, row: Mapping[str, Any], where: str, example: TokenExample) -> TokenPrediction:
        """Return the predicted tags of the words of the gold example."""
        if len(row["tags"]) != len(example.words):
            raise DataError(
                f"{where}: {quantity(len(row['tags']), 'tag')} for the "
                f"{quantity(len(example.words), 'word')} of {example.where}. Every word needs "
                "exactly one."
            )
        if isinstance(words := row.get("words"), list) and all(isinstance(w, str) for w in words):
            check_words(where, words, example)
        found, scores = row.get("scores"), tuple[float, ...]()
        if isinstance(found, list) and len(found) == len(row["tags"]):
            known = [score for each in found if (score := probability(each)) is not None]
            scores = tuple(known) if len(known) == len(found) else ()
        tags = tuple(tag or NO_TAG for tag in row["tags"])
        return TokenPrediction(example.id, example.words, tags, scores, decided=decided_in(row))

    def scored(
        self, examples: Sequence[Any], predictions: Sequence[TokenPrediction], **facts: Any
    ) -> Scored:
        """Return gold and predictions, also in characters where gold is given so."""
        spans = [prediction.spans or () for prediction in predictions]
        characters = spans_in_characters(examples, spans)
        return super().scored(examples, predictions, characters=characters, **facts)

    def align(self, file: PredictionFile, gold: Gold) -> Scored:
        """Return tags with gold; both decide their schemes."""
        pairs, by = file.pairs(gold, self)
        examples = [example for _, example in pairs]
        if lacking := [example.where for example in examples if example.tags is None]:
            raise DataError(f"{lacking[0]}: no tags to score against.")
        predictions = [self.parse(row, where, example) for (where, row), example in pairs]
        gold_tags = respelled([example.tags for example in examples])
        predicted = respelled([prediction.tags for prediction in predictions])
        scheme = detect_scheme(gold_tags)
        own = scheme and (predicted_scheme(predicted, scheme) or scheme)
        if scheme not in (None, "BIO", own):  # as training reads gold: scores agree
            gold_tags, scheme = [convert_tags(tags, scheme, "BIO") for tags in gold_tags], "BIO"
        spans = [tags_to_spans(tags, own) for tags in predicted if own]
        characters = spans_in_characters(examples, spans) if spans else ()
        return self.pair(
            gold_tags,
            predicted,
            schemes=(scheme, own),
            examples=examples,
            predictions=predictions,
            characters=characters,
            by=by,
        )

    def pair(
        self,
        gold: Sequence[Sequence[str]],
        predicted: Sequence[Sequence[str]],
        *,
        schemes: tuple[str | None, str | None] = (None, None),
        **facts: Any,
    ) -> Scored:
        """Return gold and predicted tags, one for each word; without a scheme they are plain.

        The second of the ``schemes`` is given if predictions have another scheme than gold.
        """
        kind = TAGS if schemes[0] is not None else PLAIN_TAGS
        schemes = schemes[0], schemes[1] or schemes[0]
        return Kind.pair(kind, gold, predicted, schemes=schemes, **facts)

    def check(self, gold: Sequence[Any], predicted: Sequence[Any]) -> None:
        """Raise UserError for other numbers of sentences, or of words, on both sides."""
        super().check(gold, predicted)
        for index, tags in enumerate(zip(gold, predicted, strict=True)):
            if len(tags[0]) != len(tags[1]):
                raise UserError(
                    f"sentence {index} has {len(tags[0])} gold and "
                    f"{quantity(len(tags[1]), 'predicted tag')}: every word needs exactly one "
                    "prediction"
                )

    def repeatable(self, prediction: TokenPrediction) -> Collection[Any] | None:
        """Return the tags."""
        return {*prediction.tags}


def word_probabilities(scored: Scored) -> list[tuple[float, ...]] | None:
    """Return the probability of each word's tag; None where not all are known."""
    found = [prediction.scores for prediction in scored.predictions]
    if not found or any(len(p) != len(t) for p, t in zip(found, scored.predicted, strict=True)):
        return None
    return found


class Tags(_OfWords, OfSpans):
    """Tags that spell spans, scored by these spans, which seqeval reads.

    ``span_f1_conll`` reads both sides as the script conlleval does (Tjong Kim Sang & Buchholz 2000;
    seqeval's default mode); ``span_f1_strict`` counts only spans that are spelled as the scheme
    demands (seqeval's strict mode): a lone ``I-PER`` is a span in the first only.
    """

    name = key = "tags"
    metrics: ClassVar = {
        **rates("span_{}_conll"),
        "span_f1_strict": Metric(partial(item_counts, strict=True), f1),
        **{
            name: metric
            for name, metric in rates("span_{}_strict", strict=True, reported=False).items()
            if name != "span_f1_strict"
        },
        "tag_accuracy": Metric(tag_counts, mean),
        **SPAN_METRICS,
    }
    default = "span_f1_conll"
    named = (("span_{}_conll", False), ("span_{}_strict", True))

    def items(self, scored: Scored, strict: bool = False) -> tuple[Items, Items, Items]:
        """Return the spans of each sentence, read as seqeval reads them."""
        gold, predicted = (
            [set(seqeval_spans(tags, str(scheme), strict)) for tags in side]
            for side, scheme in zip((scored.gold, scored.predicted), scored.schemes, strict=True)
        )
        return [g & p for g, p in zip(gold, predicted, strict=True)], predicted, gold

    def confidences(self, scored: Scored) -> list[list[tuple[float, bool]]] | None:
        """Return the probability of the tag of each word, and whether it is right."""
        known = word_probabilities(scored)
        if known is None:
            return None
        rows = zip(known, scored.gold, in_scheme_of_gold(scored), strict=True)
        found = [[(p, g == t) for p, g, t in zip(*row, strict=True)] for row in rows]
        return found if any(found) else None

    def rated(self, scored: Scored) -> list[list[Answer]]:
        """Return the spans that the predicted tags of each sentence spell."""
        rows = zip(self.span_probabilities(scored), span_sets(scored), strict=True)
        return [
            [Answer(known.get(s, math.nan), s in gold, s.label) for s in sorted(predicted)]
            for known, (gold, predicted) in rows
        ]

    def span_probabilities(self, scored: Scored) -> Sequence[Mapping[Span, float]]:
        """Return the mean probability of the words of each span, also of a missed gold span."""
        known = word_probabilities(scored)
        if known is None:
            return [{} for _ in scored.gold]
        return [
            {s: sum(p[s.start : s.end]) / (s.end - s.start) for s in {*gold, *predicted}}
            for p, (gold, predicted) in zip(known, span_sets(scored), strict=True)
        ]


class PlainTags(_OfWords):
    """Tags that spell no spans, such as parts of speech: a label for each word."""

    name = "plain tags"
    title = "tags"
    metrics: ClassVar = {
        "accuracy": Metric(item_counts, recall),
        "macro_f1": Metric(class_counts, macro_f1, by_class=True),
        "weighted_f1": Metric(class_counts, weighted_f1, by_class=True),
        "matthews": Metric(class_counts, matthews, by_class=True),
        "ece": expected_calibration_error(),
    }
    default = "accuracy"
    named = (("{}", False),)
    classes = "tag"
    pairs_of_labels = True
    tells_seen = True

    def items(self, scored: Scored, strict: bool = False) -> tuple[Items, Items, Items]:
        """Return the tags of each sentence."""
        correct = [
            [gold for gold, tag in zip(*tags, strict=True) if gold == tag] for tags in scored.sides
        ]
        return correct, scored.predicted, scored.gold

    def rated(self, scored: Scored) -> list[list[Answer]]:
        """Return the tag of each word."""
        known = word_probabilities(scored) or [()] * len(scored)
        rows = zip(known, scored.sides, strict=True)
        return [
            [Answer(p, g == t, t) for p, g, t in zip(own, *sides, strict=bool(own))]
            for own, sides in rows
        ]

    def confusions(self, scored: Scored) -> Counter[tuple[str, str]]:
        """Count the pairs of tags of each word."""
        return Counter(pair for tags in scored.sides for pair in zip(*tags, strict=True))

    def groupings(
        self, scored: Scored, vocabulary: TrainingVocabulary | None
    ) -> dict[str, Grouping]:
        """Divide words by the length of the sentence, position, and occurrence in training data."""
        words = [example.words for example in scored.examples]
        lengths = [[bucket(len(each), SENTENCE_LENGTHS)] * len(each) for each in words]
        places = [[bucket(index + 1, POSITIONS) for index in range(len(each))] for each in words]
        groups: dict[str, tuple[list[list[str]], Sequence[str]]] = {
            "sentence length": (lengths, buckets(SENTENCE_LENGTHS)),
            "position": (places, buckets(POSITIONS)),
        }
        if vocabulary is not None:
            known = vocabulary.word_tags
            numbers = [[len(known.get(word, ())) for word in each] for each in words]
            names = [[SEEN_WORDS[(2, 0, 1)[min(n, 2)]] for n in each] for each in numbers]
            groups["in training"] = names, SEEN_WORDS
        return {name: right_by_group(*each, "words") for name, each in groups.items() if words}

    def subgroup_metrics(
        self, scored: Scored, vocabulary: TrainingVocabulary | None
    ) -> dict[str, Metric]:
        """Return a metric for each row of the tables, and the accuracy on unseen words."""
        found = super().subgroup_metrics(scored, vocabulary)
        unseen = found.get(f"accuracy_in_training:{SEEN_WORDS[2]}")
        return found if unseen is None else found | {"unseen_word_accuracy": unseen}

    def scores_of_tables(
        self, scores: Mapping[str, float], tables: Mapping[str, Table]
    ) -> dict[str, float]:
        """Return the number of unseen words, and the accuracy on them."""
        if "in training" not in tables:
            return {}
        unseen = [row for row in tables["in training"] if row["in training"] == SEEN_WORDS[2]]
        return {
            "unseen_words": float(sum(row["words"] for row in unseen)),
            "unseen_word_accuracy": sum(row["accuracy"] for row in unseen),
        }

    def mistakes(self, scored: Scored) -> Iterator[tuple[int, Mistake]]:
        """Yield every word with a wrong tag; the category names the gold and the predicted tag."""
        known = word_probabilities(scored)
        for number, tags in enumerate(scored.sides):
            words = scored.examples[number].words
            for index, (gold, predicted) in enumerate(zip(*tags, strict=True)):
                if gold != predicted:
                    span = Span(index, index + 1, predicted)
                    match = Match(Span(index, index + 1, gold), span)
                    sure = {span: known[number][index]} if known else {}
                    category = f"{gold} taken for {predicted}"
                    yield number, span_mistake(category, words, match, sure)


TAGS = Tags()
PLAIN_TAGS = PlainTags()
