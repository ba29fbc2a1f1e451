"""What each example counts of a part of itself: spans by what they were matched with, groups of
spans, words and texts, and bins of confidence.

The values are those of `finetune analyze`. Every function makes ``Sums`` of one run. N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from finetune.data.spans import inner_spans
from finetune.data.tag_schemes import tags_to_spans
from finetune.evaluation.alignment import AlignedPredictions, with_probabilities
from finetune.evaluation.analysis_tables import TEXT_LENGTHS, text_lengths
from finetune.evaluation.calibration import NUM_BINS, bins_of
from finetune.evaluation.counts import Sums, ratio
from finetune.evaluation.item_counts import kind_of, mean_of
from finetune.evaluation.span_matching import credit, kinds_of, match_spans
from finetune.evaluation.subgroups import (
    KNOWN,
    Naming,
    TrainingVocabulary,
    buckets,
    span_counts,
    span_groupings,
    word_groupings,
)
from finetune.types import Span, TokenExample

Counted = Callable[[AlignedPredictions], Sums]
Sides = list[tuple[Collection[Span], Collection[Span]]]
"""The spans of each sentence in gold and in the answers."""


def spans_of(run: AlignedPredictions) -> Sides:
    """Spans, or those of tags, read as conlleval does."""
    gold, answers = run.gold, run.predicted
    if run.kind == "tags":
        source, answered = run.schemes[0] or "", run.schemes[1] or run.schemes[0] or ""
        gold = [tags_to_spans(tags, source) for tags in gold]
        answers = [tags_to_spans(tags, answered) for tags in answers]
    return list(zip(gold, answers, strict=True))


def matched(
    run: AlignedPredictions,
    names: Sequence[str],
    way: str,
    rate: Callable[[np.ndarray], np.ndarray],
) -> Sums:
    """A rate under one of the ways of counting: credit, answered and gold spans [N, 3]."""
    rows = [credit(kinds_of([match_spans(*sides)]), way) for sides in spans_of(run)]
    return Sums(np.array(rows, dtype=np.float64), rate)


def nested_f1(run: AlignedPredictions, names: Sequence[str], inner: bool) -> Sums:
    """F1 of inner or of outermost spans, as in ``span_ner_scores``."""
    rows = []
    for gold, answers in ((set(gold), set(answers)) for gold, answers in spans_of(run)):
        parts = [inner_spans(s) if inner else s - inner_spans(s) for s in (gold, answers)]
        rows.append((len(parts[0]), len(parts[0] & answers), len(parts[1]), len(parts[1] & gold)))
    return Sums(np.array(rows, dtype=np.float64), _part_f1)


def _part_f1(sums: np.ndarray) -> np.ndarray:
    """F1 of recall (gold, found) and precision (predicted, right), as that of ``SpanPart``."""
    recall, precision = ratio(sums[..., 1], sums[..., 0]), ratio(sums[..., 3], sums[..., 2])
    return ratio(2 * precision * recall, precision + recall)


def calibration_error(run: AlignedPredictions, names: Sequence[str]) -> Sums:
    """The expected calibration error: answers, confidence and right ones of each bin [N, 3 B].

    That of few answers is larger, so resamples, which repeat some, have larger ones than the whole.
    """
    rows = np.zeros((len(run.gold), 3, NUM_BINS))
    for counts, pairs in zip(rows, with_probabilities(run) or (), strict=True):
        confidences, right = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        place = bins_of(confidences)
        for row, weights in zip(counts, (None, confidences, right), strict=True):
            row += np.bincount(place, weights=weights, minlength=NUM_BINS)
    return Sums(rows.reshape(len(rows), -1), _bin_gaps)


def _bin_gaps(sums: np.ndarray) -> np.ndarray:
    number, confidence, right = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, NUM_BINS), -2, 0)
    return ratio(np.abs(right - confidence).sum(axis=-1), number.sum(axis=-1))


def group_counters(
    runs: Sequence[AlignedPredictions], train: TrainingVocabulary | None = None
) -> dict[str, Counted]:
    """How to count each group that the tables of `finetune analyze` have, by name of metric.

    The name is that of the score and of the table, then that of the group, with ``_`` for spaces:
    ``span_f1_length:3``, ``span_f1_in_training:unseen``, ``accuracy_place:1``. ``train`` tells what
    is seen.
    """
    run, kind = runs[0], kind_of(runs[0])
    if kind == "label" and run.examples:
        groups = [[name] for name in text_lengths(run.examples)]
        lengths = {"text length": (groups, buckets(TEXT_LENGTHS))}
        return _named("accuracy", lengths, partial(_accuracy, pairs=_whole))
    words = [example.words for example in run.examples if isinstance(example, TokenExample)]
    if kind == "plain" and words:
        return _of_words(words, train and train.word_tags)
    if kind in ("tags", "spans") and words:
        groupings = span_groupings(words, train and train.entity_types)
        if not any(inner_spans(spans) for run in runs for both in spans_of(run) for spans in both):
            del groupings["depth"]
        return _named("span_f1", groupings, _group_f1)
    return {}


def _of_words(
    words: Sequence[Sequence[str]], known: Mapping[str, Collection[str]] | None
) -> dict[str, Counted]:
    found = _named("accuracy", word_groupings(words, known), partial(_accuracy, pairs=_by_word))
    if known is not None:
        found["unseen_word_accuracy"] = found[f"accuracy_in_training:{KNOWN[2]}"]
    return found


def _named(
    score: str, groupings: Mapping[str, tuple[Any, Sequence[str]]], counter: Callable[..., Sums]
) -> dict[str, Counted]:
    return {
        f"{score}_{name}:{group}".replace(" ", "_"): partial(counter, groups=groups, group=group)
        for name, (groups, order) in groupings.items()
        for group in order
    }


def _group_f1(run: AlignedPredictions, groups: Naming, group: str) -> Sums:
    """F1 of the spans of one group: the counts of a ``SpanPart`` [N, 4]."""
    rows = [
        span_counts(index, *sides, groups).get(group, [0] * 4)
        for index, sides in enumerate(spans_of(run))
    ]
    return Sums(np.array(rows, dtype=np.float64), _part_f1)


def _accuracy(
    run: AlignedPredictions,
    groups: Sequence[Sequence[str]],
    group: str,
    pairs: Callable[[Any, Any], Sequence[tuple[str, str]]],
) -> Sums:
    """The share of right answers in one group of words, or of texts."""
    of_group = [
        [
            answer == gold
            for name, (gold, answer) in zip(names, pairs(*sides), strict=True)
            if name == group
        ]
        for names, sides in zip(groups, zip(run.gold, run.predicted, strict=True), strict=True)
    ]
    return mean_of(list(map(sum, of_group)), list(map(len, of_group)))


def _whole(gold: str, answer: str) -> list[tuple[str, str]]:
    return [(gold, answer)]


def _by_word(gold: Sequence[str], answers: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(gold, answers, strict=True))
