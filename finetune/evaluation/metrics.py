"""Scores: plain functions from gold and predicted labels to plain Python floats; no network.

Throughout, a score with nothing to divide by is 0.0, and F1 is the harmonic mean of precision and
recall, ``2 tp / (2 tp + fp + fn)`` (van Rijsbergen 1979). Jurafsky & Martin, *Speech and Language
Processing*, section "Evaluation: precision, recall, F-measure".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from finetune.data.tag_schemes import spans_to_tags, strict_spans, tags_to_spans
from finetune.evaluation.positive import positive_label
from finetune.types import LabelSet, Span, UserError


def classification_scores(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """``accuracy``, ``macro_f1``, ``weighted_f1``, ``matthews``; and ``f1`` for two labels.

    ``macro_f1`` is the mean of F1 over the labels that occur in gold or predicted, ``weighted_f1``
    weights it by the gold count (both as in scikit-learn); ``f1`` is that of the positive class
    (``positive_label``), in whatever order the labels are. Raises ValueError if the lengths differ.
    """
    by_label = f1_scores(gold, predicted)
    scores = {
        "accuracy": _ratio(sum(map(str.__eq__, gold, predicted)), len(gold)),
        "macro_f1": _mean(each["f1"] for each in by_label.values()),
        "weighted_f1": _weighted_f1(by_label),
        "matthews": matthews(gold, predicted),
    }
    if len(set(labels)) == 2:
        scores["f1"] = by_label.get(positive_label(labels), {"f1": 0.0})["f1"]
    return scores


def f1_scores(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, dict[str, float]]:
    """``precision``, ``recall``, ``f1`` and ``support`` (gold count) of each label that occurs.

    Labels in alphabetical order. Raises ValueError if the lengths differ.
    """
    _check_lengths(gold, predicted, "examples")
    return _by_name([[label] for label in gold], [[label] for label in predicted])


def matthews(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Matthews correlation of two labellings, for any number of labels.

    With ``n`` examples, ``c`` correct, and ``g_k``, ``p_k`` examples of label k in gold and
    predicted: ``(c n - sum_k g_k p_k) / sqrt((n² - sum_k g_k²) (n² - sum_k p_k²))`` (Matthews
    1975; Gorodkin 2004). 0.0 if either side has one label only. Raises ValueError if the lengths
    differ.
    """
    _check_lengths(gold, predicted, "examples")
    n, correct = len(gold), sum(map(str.__eq__, gold, predicted))
    g, p = Counter(gold), Counter(predicted)
    covariance = correct * n - sum(g[label] * p[label] for label in g)
    spread = [n * n - sum(count * count for count in side.values()) for side in (g, p)]
    return _ratio(covariance, math.sqrt(math.prod(spread)))


def confusion(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> list[list[int]]:
    """Counts by gold label (row) and predicted label (column), C rows of C.

    Raises ValueError for a label that is not among ``labels`` and if the lengths differ.
    """
    _check_lengths(gold, predicted, "examples")
    names = LabelSet(labels)
    table = [[0] * len(names) for _ in names]
    for (right, answer), count in Counter(zip(gold, predicted, strict=True)).items():
        table[names.id(right)][names.id(answer)] += count
    return table


def multilabel_scores(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str]
) -> dict[str, float]:
    """``micro_f1``, ``macro_f1``, ``weighted_f1``, ``subset_accuracy``, ``hamming_loss`` of sets.

    ``micro_f1`` pools all decisions, ``macro_f1`` is the mean of F1 over all ``labels`` (also those
    that never occur, with 0.0, as scikit-learn has it), ``weighted_f1`` weights it by the gold
    count, ``subset_accuracy`` is the share of examples with exactly the right set, ``hamming_loss``
    the share of wrong decisions among examples times labels (Tsoumakas & Katakis 2007). Raises
    ValueError if the lengths differ.
    """
    _check_lengths(gold, predicted, "examples")
    gold, predicted = [set(each) for each in gold], [set(each) for each in predicted]
    by_label = _by_name(gold, predicted)
    names = {*labels, *by_label}
    wrong = sum(len(right ^ answer) for right, answer in zip(gold, predicted, strict=True))
    return {
        "micro_f1": _pooled(gold, predicted)["f1"],
        "macro_f1": _mean(by_label[n]["f1"] if n in by_label else 0.0 for n in names),
        "weighted_f1": _weighted_f1(by_label),
        "subset_accuracy": _ratio(sum(map(set.__eq__, gold, predicted)), len(gold)),
        "hamming_loss": _ratio(wrong, len(gold) * len(names)),
    }


def multilabel_sets(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]]
) -> dict[str, dict[str, float]]:
    """``precision``, ``recall``, ``f1`` and ``support`` of each label in sets of labels.

    Labels in alphabetical order. Raises ValueError if the lengths differ.
    """
    _check_lengths(gold, predicted, "examples")
    return _by_name([set(each) for each in gold], [set(each) for each in predicted])


def regression_scores(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
    """``pearson`` and ``spearman`` correlation, and ``mse``, the mean squared error.

    Pearson: covariance over the product of standard deviations; Spearman: the same of the ranks,
    ties sharing their mean rank (scipy). A side that is constant has no correlation: 0.0. Raises
    ValueError if the lengths differ or a number is not finite.
    """
    _check_lengths(gold, predicted, "examples")
    sides = [[float(value) for value in side] for side in (gold, predicted)]
    for name, side in zip(("gold", "predicted"), sides, strict=True):
        bad = next((i for i, value in enumerate(side) if not math.isfinite(value)), None)
        if bad is not None:
            raise UserError(f"{name} value {bad} is {side[bad]}: only finite numbers have a score")
    return {
        "pearson": _pearson(*sides),
        "spearman": _pearson(*map(_ranks, sides)),
        "mse": _mean((a - b) * (a - b) for a, b in zip(*sides, strict=True)),
    }


def span_scores(
    gold: Sequence[Collection[Span]], predicted: Sequence[Collection[Span]]
) -> dict[str, float]:
    """Micro ``precision``, ``recall`` and ``f1`` over the spans of all sentences.

    A span is right if start, end and label all are; spans may nest and overlap, and a repeated one
    counts once. No span in gold or predicted gives 0.0, as in seqeval. Raises ValueError if the
    numbers of sentences differ.
    """
    _check_lengths(gold, predicted, "sentences")
    return _pooled(gold, predicted)


def span_scores_by_type(
    gold: Sequence[Collection[Span]], predicted: Sequence[Collection[Span]]
) -> dict[str, dict[str, float]]:
    """``precision``, ``recall``, ``f1`` and ``support`` (gold spans) of each span type.

    Types in alphabetical order. Raises ValueError if the numbers of sentences differ.
    """
    _check_lengths(gold, predicted, "sentences")
    return _by_name(gold, predicted)


def tagging_scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    scheme: str | None,
    predicted_scheme: str | None = None,
) -> dict[str, float]:
    """Scores of tag sequences, one tag for each word.

    With a scheme: ``span_precision_conll``, ``span_recall_conll`` and ``span_f1_conll`` read both
    sides tolerantly as the script conlleval does (Tjong Kim Sang & Buchholz 2000; the default mode
    of seqeval); ``span_f1_strict`` counts only spans that are spelled as the scheme demands
    (seqeval's strict mode); ``tag_accuracy`` is the share of equal tags. The first two differ where
    tags are illegal: a lone ``I-PER`` is a span in the first and none in the second. Without a
    scheme (POS and other plain tags): ``accuracy``, ``macro_f1``, ``weighted_f1`` and ``matthews``
    of words. Raises ValueError if numbers of sentences or words differ, or for a tag that is not in
    the scheme.
    ``predicted_scheme`` is the predictions' own, where it differs (BIOES against BIO gold).
    """
    _check_words(gold, predicted)
    if scheme is None:
        flat = [[tag for sentence in side for tag in sentence] for side in (gold, predicted)]
        return classification_scores(*flat, labels=())
    sides = ((gold, scheme), (predicted, predicted_scheme or scheme))
    conll, strict = (
        [[read(tags, its_scheme) for tags in side] for side, its_scheme in sides]
        for read in (tags_to_spans, strict_spans)
    )
    same_tags, num_words = 0, sum(map(len, gold))
    for right, tags, spans in zip(gold, predicted, conll[1], strict=True):
        if predicted_scheme not in (None, scheme):
            tags = spans_to_tags(spans, len(tags), scheme)
        same_tags += sum(map(str.__eq__, right, tags))
    scores = span_scores(*conll)
    strict_f1, accuracy = span_scores(*strict)["f1"], _ratio(same_tags, num_words)
    named = {f"span_{name}_conll": value for name, value in scores.items()}
    return named | {"span_f1_strict": strict_f1, "tag_accuracy": accuracy}


def _check_lengths(gold: Sequence[object], predicted: Sequence[object], what: str) -> None:
    if len(gold) != len(predicted):
        raise UserError(
            f"{len(gold)} gold and {len(predicted)} predicted {what}: every one needs exactly one "
            "prediction"
        )


def _check_words(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    _check_lengths(gold, predicted, "sentences")
    for index, (right, answer) in enumerate(zip(gold, predicted, strict=True)):
        if len(right) != len(answer):
            raise UserError(
                f"sentence {index} has {len(right)} gold and {len(answer)} predicted tags: every "
                "word needs exactly one prediction"
            )


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return _ratio(math.fsum(values), len(values))


def _precision_recall_f1(correct: int, num_predicted: int, num_gold: int) -> dict[str, float]:
    return {
        "precision": _ratio(correct, num_predicted),
        "recall": _ratio(correct, num_gold),
        "f1": _ratio(2 * correct, num_predicted + num_gold),
    }


def _pooled(
    gold: Sequence[Collection[object]], predicted: Sequence[Collection[object]]
) -> dict[str, float]:
    """Micro scores over sets, one set for each example."""
    pairs = [(set(right), set(answer)) for right, answer in zip(gold, predicted, strict=True)]
    correct = sum(len(right & answer) for right, answer in pairs)
    num_gold, num_predicted = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    return _precision_recall_f1(correct, num_predicted, num_gold)


def _by_name(
    gold: Sequence[Collection[str | Span]], predicted: Sequence[Collection[str | Span]]
) -> dict[str, dict[str, float]]:
    """Scores over sets for each label name or span type, with ``support``."""
    num_correct, num_predicted, num_gold = Counter[str](), Counter[str](), Counter[str]()
    for right, answer in zip(map(set, gold), map(set, predicted), strict=True):
        num_correct.update(map(_name, right & answer))
        num_predicted.update(map(_name, answer))
        num_gold.update(map(_name, right))
    return {
        name: _precision_recall_f1(num_correct[name], num_predicted[name], num_gold[name])
        | {"support": num_gold[name]}
        for name in sorted({*num_gold, *num_predicted})
    }


def _weighted_f1(by_name: Mapping[str, Mapping[str, float]]) -> float:
    each = by_name.values()
    return _ratio(sum(s["f1"] * s["support"] for s in each), sum(s["support"] for s in each))


def _name(item: str | Span) -> str:
    return item if isinstance(item, str) else item.label


def _ranks(values: Sequence[float]) -> list[float]:
    """1-based ranks; equal values share their mean rank."""
    from scipy.stats import rankdata  # imported late: it costs half a second

    return rankdata(values).tolist()


def _pearson(left: Sequence[float], right: Sequence[float]) -> float:
    if len(set(left)) < 2 or len(set(right)) < 2:
        return 0.0
    centred = [_centred(side) for side in (left, right)]
    lengths = [math.sqrt(math.fsum(x * x for x in side)) for side in centred]
    cosine = _ratio(math.fsum(x * y for x, y in zip(*centred, strict=True)), math.prod(lengths))
    return max(-1.0, min(1.0, cosine))


def _centred(values: Sequence[float]) -> list[float]:
    """Deviations from the mean, over the largest of them so that squares do not underflow."""
    mean = _mean(values)
    largest = max(abs(value - mean) for value in values)
    return [(value - mean) / largest for value in values] if largest else [0.0] * len(values)
