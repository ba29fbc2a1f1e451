"""Metrics, each written once: counts of each example, and the value of their sum.

Scores sum over all examples; confidence intervals and significance tests (``resampling``) take
weighted sums, so values also take batches of sums. To add a metric, add a ``Metric`` to
``METRICS``. A score with nothing to divide by is 0.0.

Shapes: N examples, C names (labels, tags or span types).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.config.metric_facts import facts_of
from finetune.data.spans import inner_spans
from finetune.data.tag_schemes import convert_tags
from finetune.evaluation.answers import answer_counts, best_scores
from finetune.evaluation.pairs import CharacterSpans, Pairs, items_of, name_of, pair, sets_of
from finetune.evaluation.seqeval_spans import seqeval_counts
from finetune.evaluation.span_matching import (
    CRITERIA,
    KINDS,
    Match,
    count_kinds,
    credit_counts,
    match_spans,
)
from finetune.types import MaskedPrediction, Relation, Span

NUM_BINS = 15
"""Bins of equal width of the expected calibration error, as in Guo et al. 2017."""


# --- Counts of each example -----------------------------------------------------------------------


def item_counts(pairs: Pairs, strict: bool = False, name: str | None = None) -> np.ndarray:
    """Return the numbers of correct, predicted and gold labels, words or spans [N, 3].

    With ``name``, count one label, tag or span type only.
    """
    sides: Sequence[Any] = items_of(pairs, strict)
    if name is not None:
        sides = [[[i for i in items if name_of(i) == name] for items in side] for side in sides]
    return np.array([list(map(len, side)) for side in sides], dtype=np.int64).T


def class_counts(pairs: Pairs) -> np.ndarray:
    """Return the ``item_counts`` of every name [N, C, 3], of label sets [N, C, 4].

    The fourth count is 1 for the model's labels: averages over label sets include them all, as in
    scikit-learn.
    """
    column = {name: index for index, name in enumerate(pairs.names)}
    cells = [
        (example * len(column) + column[name_of(item)]) * 3 + count
        for count, side in enumerate(items_of(pairs))
        for example, items in enumerate(side)
        for item in items
    ]
    shape = len(pairs), len(column), 3
    counts = np.bincount(np.array(cells, dtype=np.int64), minlength=math.prod(shape)).reshape(shape)
    if pairs.kind != "labels":
        return counts
    of_model = np.isin(pairs.names, pairs.labels).astype(np.int64)[:, None]
    return np.concatenate([counts, np.broadcast_to(of_model, (*shape[:2], 1))], axis=-1)


def positive_counts(pairs: Pairs) -> np.ndarray:
    """Return the ``item_counts`` of the positive class of two labels [N, 3]."""
    return item_counts(pairs, name=pairs.positive)


def label_set_counts(pairs: Pairs) -> np.ndarray:
    """Return for each label set whether it is exactly right, and 1 [N, 2]."""
    equal = [set(g) == set(p) for g, p in zip(pairs.gold, pairs.predicted, strict=True)]
    return np.column_stack([np.array(equal, dtype=np.int64), np.ones(len(equal), dtype=np.int64)])


def hamming_counts(pairs: Pairs) -> np.ndarray:
    """Return the wrong decisions of each example, 1, and the labels that occur [N, 2 + C]."""
    counts = class_counts(pairs)
    wrong = (counts[..., 1] + counts[..., 2] - 2 * counts[..., 0]).sum(axis=-1)
    return np.column_stack([wrong, np.ones_like(wrong), counts[..., 1:].sum(axis=-1)])


def tag_counts(pairs: Pairs) -> np.ndarray:
    """Return the equal tags (both in the scheme of gold) and the words of each sentence [N, 2]."""
    (scheme, predicted_scheme), predicted = map(str, pairs.schemes), pairs.predicted
    if scheme != predicted_scheme:
        predicted = [convert_tags(tags, predicted_scheme, scheme) for tags in predicted]
    equal = [sum(map(str.__eq__, *tags)) for tags in zip(pairs.gold, predicted, strict=True)]
    return np.array([equal, list(map(len, pairs.gold))], dtype=np.int64).T


def choice_counts(pairs: Pairs) -> np.ndarray:
    """Return for each question whether the right choice is predicted, and 1 [N, 2]."""
    equal = np.array(pairs.gold, dtype=np.int64) == np.array(pairs.predicted, dtype=np.int64)
    return np.column_stack([equal, np.ones(len(equal))]).astype(np.int64)


def subgroup_counts(pairs: Pairs, inner: bool) -> np.ndarray:
    """Return the counts of inner or of outermost spans for ``subgroup_f1`` [N, 4].

    Inner spans lie within a wider span of the same side.
    """
    rows = []
    for gold, predicted in sets_of(pairs):
        groups = [inner_spans(s) if inner else s - inner_spans(s) for s in (gold, predicted)]
        found, correct = groups[0] & predicted, groups[1] & gold
        rows.append([len(spans) for spans in (groups[0], found, groups[1], correct)])
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def matching_counts(pairs: Pairs, criterion: str) -> np.ndarray:
    """Return credit, predicted and gold spans of each sentence [N, 3] (``span_matching``)."""
    kinds = (count_kinds([match_spans(*sides)]) for sides in sets_of(pairs))
    rows = [credit_counts(each, criterion) for each in kinds]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def relation_boundary_counts(pairs: Pairs) -> np.ndarray:
    """Return correct, predicted and gold relations without the types of their spans [N, 3]."""
    gold, predicted = (
        [{(*r.subject[:2], *r.object[:2], r.label) for r in relations} for relations in side]
        for side in (pairs.gold, pairs.predicted)
    )
    rows = [(len(g & p), len(p), len(g)) for g, p in zip(gold, predicted, strict=True)]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def character_counts(pairs: Pairs) -> np.ndarray:
    """Return the correct, predicted and gold spans, compared by their characters [N, 3]."""
    rows = [(len(gold & found), len(found), len(gold)) for gold, found in pairs.characters]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def subword_counts(pairs: Pairs) -> np.ndarray:
    """Return the correct and all masked subwords of each sequence [N, 2]."""
    sides = zip(pairs.gold, pairs.predicted, strict=True)
    return np.array([(sum(map(str.__eq__, *both)), len(both[0])) for both in sides], dtype=np.int64)


def subword_losses(pairs: Pairs) -> np.ndarray:
    """Return the summed loss and the number of the masked subwords of each sequence [N, 2]."""
    return np.array([(math.fsum(losses), len(losses)) for losses in pairs.losses], dtype=float)


def boundary_counts(pairs: Pairs) -> np.ndarray:
    """Return the summed loss and the number of the boundary losses of each sequence [N, 2]."""
    return subword_losses(replace(pairs, losses=pairs.boundary_losses))


def next_sentence_counts(pairs: Pairs) -> np.ndarray:
    """Return the correct and all predictions of next sentence prediction [N, 2]."""
    rows = [(bool(each) and each[0] == each[1], bool(each)) for each in pairs.next_sentences]
    return np.array(rows, dtype=np.int64)


def sense_counts(pairs: Pairs) -> np.ndarray:
    """Return credit, answered and gold targets [N, 3]; several predicted senses share the credit.

    As in the scorer of Raganato et al. 2017, any gold sense is correct.
    """
    rows = [
        (len({*gold} & {*found}) / len({*found}) if found else 0.0, bool(found), 1)
        for gold, found in zip(pairs.gold, pairs.predicted, strict=True)
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def question_counts(pairs: Pairs, exact: bool, has_answer: bool | None = None) -> np.ndarray:
    """Return the score of each answer, and 1 [N, 2].

    With ``has_answer``, both are 0 for the questions without an answer, or for the others.
    """
    score, has, one = answer_counts(pairs.gold, pairs.predicted, exact).T
    counted = one if has_answer is None else has if has_answer else one - has
    return np.column_stack([score * counted, counted])


def squared_errors(pairs: Pairs) -> np.ndarray:
    """Return the squared error of each number, and 1 [N, 2]."""
    difference = np.asarray(pairs.gold) - np.asarray(pairs.predicted)
    return np.column_stack([difference * difference, np.ones(len(difference))])


def moments(pairs: Pairs) -> np.ndarray:
    """Return the moments of gold x and predicted y: xy, x, y, xx, yy, 1 [N, 6].

    Both sides are centered and scaled, by the values of all runs: no square underflows.
    """
    x = _centered(pairs.gold, pairs.gold)
    y = _centered(pairs.predicted, pairs.all_predicted)
    return np.column_stack([x * y, x, y, x * x, y * y, np.ones(len(x))])


def _centered(values: Sequence[float], all_values: Sequence[float]) -> np.ndarray:
    if len(set(all_values)) < 2:
        return np.zeros(len(values))
    mean = math.fsum(all_values) / len(all_values)
    return (np.asarray(values) - mean) / (np.abs(np.asarray(all_values) - mean).max() or 1.0)


def rank_moments(pairs: Pairs) -> np.ndarray:
    """Return the ``moments`` of ranks. In a resample ranks change: see ``resampling.Counts``."""
    one = np.ones((1, len(pairs)))
    gold, predicted = (weighted_ranks(side, one)[0] for side in (pairs.gold, pairs.predicted))
    return moments(Pairs("number", gold, predicted, all_predicted=predicted))


def weighted_ranks(values: npt.ArrayLike, weights: np.ndarray) -> np.ndarray:
    """Return mean ranks, from 1, where value n occurs ``weights[r, n]`` times: [R, N]."""
    if weights.shape[1] == 0:
        return np.zeros_like(weights)
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 1))
    each = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks: np.ndarray = (np.cumsum(each, axis=1) - (each - 1) / 2)[:, group]
    return ranks


def confidence_counts(pairs: Pairs) -> np.ndarray:
    """Return the ``bin_counts`` of the predictions of each example [N, 3, bins]."""
    rows = [np.array(each, dtype=np.float64).reshape(-1, 2).T for each in pairs.confidences or ()]
    return np.array([bin_counts(*row) for row in rows]).reshape(-1, 3, NUM_BINS)


def bin_counts(
    confidences: npt.ArrayLike, correct: npt.ArrayLike, num_bins: int = NUM_BINS
) -> np.ndarray:
    """Return number, summed confidence and correct predictions of each bin [3, bins].

    A bin includes its upper end, the first one also 0.
    """
    index = np.ceil(np.asarray(confidences) * num_bins - 1e-9).astype(int) - 1
    index = np.clip(index, 0, num_bins - 1)
    sides = np.ones(len(index)), confidences, correct
    return np.stack([np.bincount(index, weights=side, minlength=num_bins) for side in sides])


# --- Values of sums -------------------------------------------------------------------------------


def ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> np.ndarray:
    """Return quotients, 0 where there is nothing to divide by."""
    whole = np.asarray(whole)
    found: np.ndarray = np.divide(part, whole, out=np.zeros(whole.shape), where=whole != 0)
    return found


def mean(sums: np.ndarray) -> np.ndarray:
    """Return the first count over the second [..., K] -> [...]."""
    return ratio(sums[..., 0], sums[..., 1])


precision = mean
"""Correct over predicted, from correct, predicted and gold [..., 3] -> [...]."""


def recall(sums: np.ndarray) -> np.ndarray:
    """Return correct over gold [..., 3] -> [...]."""
    return ratio(sums[..., 0], sums[..., 2])


def f1(sums: np.ndarray) -> np.ndarray:
    """Return the harmonic mean of precision and recall, ``2 tp / (2 tp + fp + fn)`` [..., 3].

    van Rijsbergen 1979; Jurafsky & Martin, "Evaluation: precision, recall, F-measure".
    """
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def macro_f1(sums: np.ndarray) -> np.ndarray:
    """Return the mean F1 of the names that occur [..., C, 3] -> [...]."""
    occurs = (sums[..., 1:] > 0).any(axis=-1)
    return ratio(_exact_sum(f1(sums)), occurs.sum(axis=-1))


def weighted_f1(sums: np.ndarray) -> np.ndarray:
    """Return the mean F1 of names, weighted by their gold count [..., C, 3] -> [...]."""
    weighted = f1(sums) * sums[..., 2]
    return ratio(sum(np.moveaxis(weighted, -1, 0)), sums[..., 2].sum(axis=-1))


def perplexity(sums: np.ndarray) -> np.ndarray:
    """Return e to the mean loss, from summed losses and their number [..., 2] -> [...]."""
    found: np.ndarray = np.exp(mean(sums))
    return found


def matthews(sums: np.ndarray) -> np.ndarray:
    """Return the Matthews correlation of any number of classes [..., C, 3] -> [...].

    ``(c n - sum_k g_k p_k) / sqrt((n² - sum_k g_k²) (n² - sum_k p_k²))`` (Matthews 1975; Gorodkin
    2004) of n examples, c correct, g_k and p_k of class k; 0 where a side has one class only.
    """
    correct, predicted, gold = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    n = gold.sum(axis=-1)
    covariance = correct.sum(axis=-1) * n - (gold * predicted).sum(axis=-1)
    spread = [n * n - (side * side).sum(axis=-1) for side in (gold, predicted)]
    spread[1] -= (n - predicted.sum(axis=-1)) ** 2  # predictions of no class are a class, too
    return ratio(covariance, np.sqrt(spread[0] * spread[1]))


def hamming_loss(sums: np.ndarray) -> np.ndarray:
    """Return the fraction of wrong decisions [..., 2 + C] -> [...] (Tsoumakas & Katakis 2007)."""
    return ratio(sums[..., 0], sums[..., 1] * (sums[..., 2:] > 0).sum(axis=-1))


def subgroup_f1(sums: np.ndarray) -> np.ndarray:
    """Return the F1 of a subgroup of spans: gold, found, predicted and correct [..., 4] -> [...].

    Found and correct differ where the subgroup of a span depends on the spans around it (depth).
    """
    recall, precision = ratio(sums[..., 1], sums[..., 0]), ratio(sums[..., 3], sums[..., 2])
    return ratio(2 * precision * recall, precision + recall)


def correlation(sums: np.ndarray) -> np.ndarray:
    """Return the Pearson correlation from ``moments`` [..., 6] -> [...], 0 for a constant side."""
    xy, x, y, xx, yy, n = np.moveaxis(sums, -1, 0)
    deviations = []
    for total, squares in ((x, xx), (y, yy)):
        spread = squares - ratio(total * total, n)
        rounding = 1e-13 * squares  # a constant side leaves no more than this
        deviations.append(np.sqrt(np.where(spread > rounding, spread, 0.0)))
    return ratio(xy - ratio(x * y, n), deviations[0] * deviations[1]).clip(-1.0, 1.0)


def calibration_error(sums: np.ndarray) -> np.ndarray:
    """Return the expected calibration error from ``bin_counts`` [..., 3, bins] -> [...].

    The mean distance of confidence and accuracy over bins, weighted by the number of predictions
    (Naeini, Cooper & Hauskrecht 2015). Resamples, which repeat examples, have a larger error.
    """
    number, confidence, correct = np.moveaxis(sums, -2, 0)
    gaps = number * np.abs(ratio(correct, number) - ratio(confidence, number))
    return ratio(_exact_sum(gaps), number.sum(axis=-1))


def _exact_sum(values: np.ndarray) -> np.ndarray:
    """Return sums over the last axis, rounded once, so that they do not depend on the order."""
    exact: np.ndarray = np.apply_along_axis(math.fsum, -1, values)
    return exact


# --- The metrics ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A metric: ``counts(pairs) -> [N, ...]`` of each example, ``value(sums [..., K]) -> [...]``.

    Training and ``finetune score`` give only the ``reported`` ones that apply.
    """

    counts: Callable[[Pairs], np.ndarray]
    value: Callable[[np.ndarray], np.ndarray]
    applies: Callable[[Pairs], bool] = lambda _: True
    reported: bool = True
    lower_is_better: bool = False


def _has_unanswerable(pairs: Pairs) -> bool:
    return not all(pairs.gold)


def _is_nested(pairs: Pairs) -> bool:
    return any(inner_spans(spans) for spans in pairs.gold)


_RATES = {"precision": precision, "recall": recall, "f1": f1}
_strict_counts = partial(item_counts, strict=True)
_inner_counts = partial(subgroup_counts, inner=True)
_CLASSES = {
    "macro_f1": Metric(class_counts, macro_f1),
    "weighted_f1": Metric(class_counts, weighted_f1),
}
_ONE_LABEL = {
    "accuracy": Metric(item_counts, recall),
    **_CLASSES,
    "matthews": Metric(class_counts, matthews),
}
_ECE = Metric(
    confidence_counts,
    calibration_error,
    lambda pairs: bool(pairs.confidences),
    reported=False,
    lower_is_better=True,
)
_SPANS = (
    {
        f"span_{rate}_{criterion}": Metric(counts, value, reported=False)
        for criterion in CRITERIA
        if criterion != "strict"
        for counts in (partial(matching_counts, criterion=criterion),)
        for rate, value in _RATES.items()
    }
    | {"span_f1_macro": Metric(class_counts, macro_f1, reported=False), "ece": _ECE}
    | {
        f"span_{rate}_characters": Metric(
            character_counts, value, lambda pairs: bool(pairs.characters), reported=rate == "f1"
        )
        for rate, value in _RATES.items()
    }
)

METRICS: dict[str, dict[str, Metric]] = {
    "label": {
        **_ONE_LABEL,
        "f1": Metric(positive_counts, f1, lambda pairs: pairs.positive is not None),
        "micro_f1": Metric(item_counts, f1, reported=False),
        "ece": _ECE,
    },
    "labels": {
        "micro_f1": Metric(item_counts, f1),
        **_CLASSES,
        "subset_accuracy": Metric(label_set_counts, mean),
        "hamming_loss": Metric(hamming_counts, hamming_loss, lower_is_better=True),
        "ece": _ECE,
    },
    "number": {
        "pearson": Metric(moments, correlation),
        "spearman": Metric(rank_moments, correlation),
        "mse": Metric(squared_errors, mean, lower_is_better=True),
        "pearson_all": Metric(moments, correlation, reported=False),
        "spearman_all": Metric(rank_moments, correlation, reported=False),
    },
    "choice": {"accuracy": Metric(choice_counts, mean), "ece": _ECE},
    "plain tags": {**_ONE_LABEL, "ece": _ECE},
    "tags": {
        **{f"span_{rate}_conll": Metric(item_counts, value) for rate, value in _RATES.items()},
        "span_f1_strict": Metric(_strict_counts, f1),
        "span_precision_strict": Metric(_strict_counts, precision, reported=False),
        "span_recall_strict": Metric(_strict_counts, recall, reported=False),
        "tag_accuracy": Metric(tag_counts, mean),
        **_SPANS,
    },
    "spans": {
        **{f"span_{rate}_strict": Metric(item_counts, value) for rate, value in _RATES.items()},
        "span_f1_outermost": Metric(partial(subgroup_counts, inner=False), subgroup_f1, _is_nested),
        "span_f1_inner": Metric(_inner_counts, subgroup_f1, _is_nested),
        **_SPANS,
    },
    "relations": {
        **{f"relation_{rate}_strict": Metric(item_counts, value) for rate, value in _RATES.items()},
        "relation_f1": Metric(relation_boundary_counts, f1),
        "relation_f1_macro": Metric(class_counts, macro_f1),
        "ece": _ECE,
    },
    "answers": {
        "exact_match": Metric(partial(question_counts, exact=True), mean),
        "f1": Metric(partial(question_counts, exact=False), mean),
        **{
            f"{part}_{name}": Metric(
                partial(question_counts, exact=exact, has_answer=has_answer),
                mean,
                _has_unanswerable,
            )
            for part, has_answer in (("hasans", True), ("noans", False))
            for name, exact in (("exact", True), ("f1", False))
        },
        "ece": _ECE,
    },
    "subwords": {
        "mlm_accuracy": Metric(subword_counts, mean),
        "mlm_loss": Metric(subword_losses, mean, lower_is_better=True),
        "perplexity": Metric(subword_losses, perplexity, lower_is_better=True),
        "sbo_loss": Metric(
            boundary_counts, mean, lambda pairs: any(pairs.boundary_losses), lower_is_better=True
        ),
        "nsp_accuracy": Metric(next_sentence_counts, mean, lambda pairs: any(pairs.next_sentences)),
    },
    "senses": {rate: Metric(sense_counts, _RATES[rate]) for rate in ("f1", "precision", "recall")},
}
"""The metrics of each kind of ``Pairs``."""

DEFAULT_METRICS = {
    "label": "accuracy",
    "labels": "micro_f1",
    "number": "pearson",
    "choice": "accuracy",
    "plain tags": "accuracy",
    "tags": "span_f1_conll",
    "spans": "span_f1_strict",
    "relations": "relation_f1_strict",
    "answers": "f1",
    "subwords": "mlm_accuracy",
    "senses": "f1",
}
"""The metric that selects models, by kind."""

LOWER_IS_BETTER = frozenset(
    name for table in METRICS.values() for name, metric in table.items() if metric.lower_is_better
)

_BUILT_IN = {
    "ranking_accuracy",
    "ranking_mrr",
    *(name for table in METRICS.values() for name in table),
}


def score_limits(metric: str) -> tuple[float, float]:
    """Return the least and the largest score of a metric; custom metrics have no limits."""
    facts = facts_of(metric)
    if facts.highest > 1 or metric.partition(":")[0] not in _BUILT_IN:
        return -math.inf, math.inf
    return facts.lowest, facts.highest


def metrics_of_names(pairs: Pairs) -> dict[str, Metric]:
    """Return precision, recall and F1 of each label, tag or type: ``f1:NAME`` and so on."""
    if pairs.kind in ("senses", "answers", "choice"):
        return {}
    forms = {
        "tags": {"span_{}_conll": False, "span_{}_strict": True},
        "spans": {"span_{}_strict": False},
        "relations": {"relation_{}_strict": False},
    }.get(pairs.kind, {"{}": False})
    return {
        f"{form.format(rate)}:{name}": Metric(partial(item_counts, name=name, strict=strict), value)
        for form, strict in forms.items()
        for rate, value in _RATES.items()
        for name in pairs.names
    }


# --- Scores ---------------------------------------------------------------------------------------


def total(counts: Callable[[Pairs], np.ndarray], pairs: Pairs) -> np.ndarray:
    """Return the sum of the counts of all examples; sums of floats are rounded once."""
    if counts in (class_counts, hamming_counts):  # large where there are many names
        chunks = [slice(start, start + 1024) for start in range(0, max(1, len(pairs)), 1024)]
        parts = [replace(pairs, gold=pairs.gold[c], predicted=pairs.predicted[c]) for c in chunks]
        rows = np.array([counts(part).sum(axis=0) for part in parts])
    else:
        rows = counts(pairs)
    return rows.sum(axis=0) if rows.dtype.kind == "i" else _exact_sum(np.moveaxis(rows, 0, -1))


def scores(pairs: Pairs) -> dict[str, float]:
    """Return the reported metrics of gold and predictions, by name."""
    sums: dict[Callable[[Pairs], np.ndarray], np.ndarray] = {}
    found = {}
    for name, metric in METRICS[pairs.kind].items():
        if metric.reported and metric.applies(pairs):
            if metric.counts not in sums:
                sums[metric.counts] = total(metric.counts, pairs)
            found[name] = float(metric.value(sums[metric.counts]))
    return found


def text_scores(
    kind: str,
    gold: Sequence[Any],
    predicted: Sequence[Any],
    labels: Collection[str] = (),
    positive: str | None = None,
) -> dict[str, float]:
    """Return the scores of texts, of kind "label", "labels" or "number" (``pair``).

    Averages equal scikit-learn's: of single labels over the labels that occur, of label sets over
    all ``labels``. Two labels also have the ``f1`` of the ``positive`` class.
    Ties share their mean rank, as in scipy. The correlation with a constant is 0.0.

    >>> text_scores("label", ["a", "b"], ["a", "a"], ["a", "b"])["accuracy"]
    0.5
    """
    return scores(pair(kind, gold, predicted, labels, positive=positive))


def choice_scores(gold: Sequence[Any], predicted: Sequence[int]) -> dict[str, float]:
    """Return the scores of multiple choice, from the indices of choices."""
    return scores(pair("choice", gold, predicted))


def masked_scores(predicted: Sequence[MaskedPrediction]) -> dict[str, float]:
    """Return the scores of masked language modeling."""
    gold, found = ([getattr(p, side) for p in predicted] for side in ("gold", "subwords"))
    boundary = [p.boundary_losses or () for p in predicted]
    losses = [p.losses for p in predicted]
    following = [
        () if p.follows is None or p.follows_score is None else (p.follows, p.follows_score >= 0.5)
        for p in predicted
    ]
    return scores(
        Pairs(
            "subwords",
            gold,
            found,
            losses=losses,
            boundary_losses=boundary,
            next_sentences=following,
        )
    )


def span_scores(
    gold: Sequence[Collection[Span]],
    predicted: Sequence[Collection[Span]],
    characters: CharacterSpans = (),
) -> dict[str, float]:
    """Return the scores of spans that may nest; a span is correct if start, end and label are.

    ``span_f1_strict`` is a micro average (on flat data, seqeval's strict mode), and
    ``span_f1_strict:TYPE`` the F1 of a type. Nested gold also has ``span_f1_outermost``,
    ``span_f1_inner`` and counts of inner spans. A repeated span counts once. With ``characters``
    (``spans_in_characters``) there is also ``span_f1_characters``, in which gold that words cannot
    represent is missed.
    """
    pairs = pair("spans", gold, predicted, characters=characters)
    found = scores(pairs)
    if _is_nested(pairs):
        of_gold, of_found, of_predicted, _ = map(float, total(_inner_counts, pairs))
        found |= {"inner_gold": of_gold, "inner_predicted": of_predicted, "inner_found": of_found}
    by_type = zip(pairs.names, f1(total(class_counts, pairs)).tolist(), strict=True)
    return found | {f"span_f1_strict:{name}": value for name, value in by_type}


def relation_scores(
    gold: Sequence[Collection[Relation]], predicted: Sequence[Collection[Relation]]
) -> dict[str, float]:
    """Return the scores of directed relations between spans; a repeated relation counts once.

    A relation is correct in ``relation_f1_strict`` if its label and both spans are, with their
    types ("Rel+" of Bekoulis et al. 2018), and in ``relation_f1`` if its label and the boundaries
    of both spans are. ``relation_f1_strict:LABEL`` is the F1 of a label, and ``relation_f1_macro``
    the mean over the labels that occur: the official score of SemEval-2010 task 8 if each sentence
    has one pair (Hendrickx et al. 2010).
    """
    pairs = pair("relations", gold, predicted)
    by_label = zip(pairs.names, f1(total(class_counts, pairs)).tolist(), strict=True)
    return scores(pairs) | {f"relation_f1_strict:{name}": value for name, value in by_label}


def answer_scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[str],
    best: Sequence[str] | None = None,
    no_answer: Sequence[float] | None = None,
) -> dict[str, float]:
    """Return the scores of answers to questions, as in the official evaluation of SQuAD.

    Data with unanswerable questions also have the scores of the questions with an answer
    (``hasans_exact``, ``hasans_f1``) and without (``noans_exact``, ``noans_f1``), and, with the
    probabilities of ``no_answer``, ``best_scores``. An empty prediction is no answer.
    """
    pairs = pair("answers", gold, predicted)
    found = scores(pairs)
    if best is not None and no_answer is not None and _has_unanswerable(pairs):
        found |= best_scores(gold, best, no_answer)
    return found


def class_scores(
    kind: str,
    gold: Sequence[Any],
    predicted: Sequence[Any],
    schemes: tuple[str | None, str | None] = (None, None),
) -> dict[str, dict[str, float]]:
    """Return ``precision``, ``recall``, ``f1`` and ``support`` (gold count) of each name in order.

    Names are the labels, plain tags or span types that occur. ``pair`` explains the arguments.
    """
    pairs = pair(kind, gold, predicted, schemes=schemes)
    return {
        name: {rate: float(value(row)) for rate, value in _RATES.items()} | {"support": int(row[2])}
        for name, row in zip(pairs.names, total(class_counts, pairs), strict=True)
    }


def scores_by_criterion(matches: Iterable[Iterable[Match]]) -> dict[str, dict[str, float]]:
    """Return the scores of matched spans under each of the ``CRITERIA``, with counts of pairs."""
    kinds = count_kinds(matches)
    paired = sum(kinds[kind] for kind in KINDS[:4])
    found = {}
    for criterion, (full, half) in CRITERIA.items():
        correct, partly = (sum(kinds[kind] for kind in some) for some in (full, half))
        sums = np.array(credit_counts(kinds, criterion))
        found[criterion] = {rate: float(value(sums)) for rate, value in _RATES.items()} | {
            "correct": correct,
            "incorrect": paired - correct - partly,
            "partial": partly,
            "missed": kinds["miss"],
            "spurious": kinds["false positive"],
        }
    return found


def tagging_scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    scheme: str | None,
    predicted_scheme: str | None = None,
    characters: CharacterSpans = (),
) -> dict[str, float]:
    """Return the scores of tags, one for each word.

    ``span_f1_conll`` reads both sides as the script conlleval does (Tjong Kim Sang & Buchholz 2000;
    seqeval's default mode); ``span_f1_strict`` counts only spans that are spelled as the scheme
    demands (seqeval's strict mode): a lone ``I-PER`` is a span in the first only. Tags without a
    scheme, such as parts of speech, get the scores of single labels, by word. ``predicted_scheme``
    is given if predictions have another scheme than gold; ``characters`` as in ``span_scores``.

    Raises:
        UserError: The numbers of sentences or words differ, or a tag is not in its scheme.
    """
    pairs = pair("tags", gold, predicted, schemes=(scheme, predicted_scheme), characters=characters)
    found = scores(pairs)
    if scheme is None:
        return found
    conll, strict = seqeval_counts(gold, predicted, (scheme, predicted_scheme or scheme))
    by_seqeval = {f"span_{rate}_conll": value(conll) for rate, value in _RATES.items()}
    for name, value in {**by_seqeval, "span_f1_strict": f1(strict)}.items():
        if abs(found[name] - value) > 1e-9:
            raise RuntimeError(  # a bug
                f"{name} is {found[name]} by our counts and {value} by seqeval"
            )
        found[name] = float(value)
    return found
