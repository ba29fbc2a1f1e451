"""What each example counts towards a metric, by name: the sufficient statistics of its score.

F1 is a function of three counts, Matthews of the counts of each label, Pearson of five moments.
The values are those of `finetune.metrics` and `finetune.span_metrics` on a resample itself,
repeated examples counting as often as drawn; names that do not occur in it are left out of means,
as `finetune score` would. N examples, C names (labels, tags or types of spans).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finetune.align import spans_to_tags, strict_spans, tags_to_spans
from finetune.counts import Ranks, Sums, ratio
from finetune.nesting import inner_spans
from finetune.positive import positive_label
from finetune.types import Span, perhaps, shortened

if TYPE_CHECKING:
    from finetune.answers import Answers

LOWER_IS_BETTER = frozenset({"mse", "hamming_loss"})
"""Metrics of which the smaller value is the better."""


class Items(NamedTuple):
    """The names of what each example has right, answered and in gold: N lists each."""

    right: list[list[str]]
    answered: list[list[str]]
    gold: list[list[str]]


def default_metric(run: Answers) -> str:
    """The metric that selects models of this kind in training."""
    usual = {"label": "accuracy", "labels": "micro_f1", "number": "pearson", "plain": "accuracy"}
    return usual.get(_kind(run), "span_f1_conll" if run.form == "tags" else "span_f1_strict")


def count(metric: str, runs: Sequence[Answers]) -> list[Sums | Ranks]:
    """What each example of each run counts towards a metric.

    The runs answer the same examples in the same form. ``metric`` is a name that `finetune score`
    prints, or the precision, recall or F1 of one label, tag or type, such as ``f1:NAME`` and
    ``span_f1_strict:TYPE``. Raises ValueError for one that does not fit the answers, naming those
    that do.
    """
    kind = _kind(runs[0])
    names = _seen(runs)
    whole = {
        name: counter
        for name, counter in _WHOLE[kind].items()
        if (name != "f1" or len(names) == 2) and (name not in _NESTED or _has_inner(runs[0]))
    }
    base, colon, name = metric.partition(":")
    if not colon and base in whole:
        return [whole[base](run, names) for run in runs]
    if base in _SHARES[kind] and name in names:
        share, reading = _SHARES[kind][base]
        return [_share(run, names, share, reading, name) for run in runs]
    legal = [*whole, *(f"{share}:{each}" for share in _SHARES[kind] for each in names)]
    raise ValueError(
        f"--metric {metric} does not fit these predictions: choose {shortened(legal, 16)}."
        f"{perhaps(metric, legal)}"
    )


def _seen(runs: Sequence[Answers]) -> list[Any]:
    """All names in gold or answers of any run, sorted; of numbers all answers."""
    if runs[0].form == "number":
        numbers = [number for run in runs for number in (*run.answers, *run.gold)]
        if not np.isfinite(numbers).all():
            bad = next(number for number in numbers if not np.isfinite(number))
            raise ValueError(f"gold or a prediction is {bad}: only finite numbers have a score.")
        return [answer for run in runs for answer in run.answers]
    sides = [side for run in runs for side in _items(run)[1:]]
    return sorted({name for side in sides for names in side for name in names})


def _kind(run: Answers) -> str:
    """The form, with tags that spell spans (``tags``) apart from those that do not (``plain``)."""
    return "plain" if run.form == "tags" and run.schemes[0] is None else run.form


def _items(run: Answers, reading: str = "conll") -> Items:
    """Names of labels, tags or spans; tags that spell spans are read by conlleval or strictly."""
    pairs: list[tuple[Any, Any]] = list(zip(run.gold, run.answers, strict=True))
    kind = _kind(run)
    if kind == "plain":
        right = [[a for a, b in zip(*pair, strict=True) if a == b] for pair in pairs]
        return Items(right, [list(a) for _, a in pairs], [list(g) for g, _ in pairs])
    if kind == "tags":
        read = strict_spans if reading == "strict" else tags_to_spans
        schemes = run.schemes[0] or "", run.schemes[1] or run.schemes[0] or ""
        pairs = [(read(g, schemes[0]), read(a, schemes[1])) for g, a in pairs]
    elif kind == "label":
        pairs = [([g], [a]) for g, a in pairs]
    sets = [(set(g), set(a)) for g, a in pairs]
    sides = [g & a for g, a in sets], [a for _, a in sets], [g for g, _ in sets]
    return Items(*([[_name(item) for item in each] for each in side] for side in sides))


def _name(item: str | Span) -> str:
    return item if isinstance(item, str) else item.label


def _precision(sums: np.ndarray) -> np.ndarray:
    return ratio(sums[..., 0], sums[..., 1])


def _recall(sums: np.ndarray) -> np.ndarray:
    return ratio(sums[..., 0], sums[..., 2])


def _f1(sums: np.ndarray) -> np.ndarray:
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def _share(
    run: Answers,
    names: Sequence[str],
    share: Callable[[np.ndarray], np.ndarray],
    reading: str = "conll",
    name: str | None = None,
) -> Sums:
    """A share of right, answered and gold items (of one name): counts [N, 3]."""
    rows = [
        [len(each) if name is None else each.count(name) for each in side]
        for side in _items(run, reading)
    ]
    return Sums(np.array(rows, dtype=np.float64).T, share)


def _by_name(run: Answers, names: Sequence[str], score: Callable[..., np.ndarray]) -> Sums:
    """A function of the counts of all names: right, answered and gold, [N, 3 C]."""
    index = {name: column for column, name in enumerate(names)}
    items = _items(run)
    rows = np.zeros((len(run.gold), 3, len(names)))
    for part, side in enumerate(items):
        places = [(i, index[name]) for i, each in enumerate(side) for name in each]
        if places:
            example, column = np.array(places).T
            np.add.at(rows, (example, part, column), 1)
    shape = (3, len(names))
    return Sums(
        rows.reshape(len(rows), -1), lambda sums: score(sums.reshape(*sums.shape[:-1], *shape))
    )


def _f1_by_name(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F1, number in gold, and whether it occurs at all, of each name [..., C]."""
    right, answered, gold = (sums[..., part, :] for part in range(3))
    return ratio(2 * right, answered + gold), gold, answered + gold > 0


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    """The mean over names that occur in the resample, in gold or answers."""
    f1, _, occurs = _f1_by_name(sums)
    return ratio(f1.sum(axis=-1), occurs.sum(axis=-1))


def _weighted_f1(sums: np.ndarray) -> np.ndarray:
    f1, gold, _ = _f1_by_name(sums)
    return ratio((f1 * gold).sum(axis=-1), gold.sum(axis=-1))


def _matthews(sums: np.ndarray) -> np.ndarray:
    """The multiclass correlation, as `finetune.metrics.matthews` has it."""
    right, answered, gold = (sums[..., part, :] for part in range(3))
    number = gold.sum(axis=-1)
    covariance = right.sum(axis=-1) * number - (gold * answered).sum(axis=-1)
    spread = [number**2 - (side**2).sum(axis=-1) for side in (answered, gold)]
    return ratio(covariance, np.sqrt(spread[0]) * np.sqrt(spread[1]))


def _hamming_loss(sums: np.ndarray) -> np.ndarray:
    """Wrong decisions over examples times names that occur; the last column counts examples."""
    wrong, number, occurs = sums[..., 0], sums[..., 1], sums[..., 2:] > 0
    return ratio(wrong, number * occurs.sum(axis=-1))


def _hamming(run: Answers, names: Sequence[str]) -> Sums:
    by_name = _by_name(run, names, _macro_f1).rows.reshape(len(run.gold), 3, len(names))
    right, answered, gold = (by_name[:, part] for part in range(3))
    wrong = (answered + gold - 2 * right).sum(axis=1)
    rows = np.column_stack([wrong, np.ones(len(wrong)), answered + gold])
    return Sums(rows, _hamming_loss)


def _mean_of(values: Sequence[float], counts: Sequence[float] | None = None) -> Sums:
    """The sum of values over that of counts, 1 for each example if none are given."""
    counts = np.ones(len(values)) if counts is None else counts
    rows = np.column_stack([values, counts]).astype(np.float64)
    return Sums(rows, lambda sums: ratio(sums[..., 0], sums[..., 1]))


def _subset_accuracy(run: Answers, names: Sequence[str]) -> Sums:
    return _mean_of([set(g) == set(a) for g, a in zip(run.gold, run.answers, strict=True)])


def _tag_accuracy(run: Answers, names: Sequence[str]) -> Sums:
    """Equal tags; those of another scheme are written in that of gold first."""
    scheme, theirs = run.schemes
    answers = run.answers
    if theirs not in (None, scheme):
        answers = [spans_to_tags(tags_to_spans(a, theirs), len(a), scheme or "") for a in answers]
    same = [sum(map(str.__eq__, g, a)) for g, a in zip(run.gold, answers, strict=True)]
    return _mean_of(same, [len(g) for g in run.gold])


def _squared_error(run: Answers, names: Sequence[str]) -> Sums:
    return _mean_of([(g - a) ** 2 for g, a in zip(run.gold, run.answers, strict=True)])


def _pearson(run: Answers, seen: Sequence[float]) -> Sums:
    """Five moments and the number.

    Numbers are standardised first, so that little cancels; answers by those of all runs, which
    keeps runs comparable whose answers are swapped.
    """
    x = _standardised(run.gold, run.gold)
    y = _standardised(run.answers, seen)
    rows = np.column_stack([x * y, x, y, x * x, y * y, np.ones(len(x))])
    return Sums(rows, _correlation)


def _standardised(values: Sequence[float], seen: Sequence[float]) -> np.ndarray:
    return (np.asarray(values, dtype=np.float64) - np.mean(seen)) / (np.std(seen) or 1.0)


def _correlation(sums: np.ndarray) -> np.ndarray:
    xy, x, y, xx, yy, number = np.moveaxis(sums, -1, 0)
    roots = []
    for total, squares in ((x, xx), (y, yy)):
        spread = number * squares - total**2
        rounding = 1e-13 * number * squares  # what is left of a constant side
        roots.append(np.sqrt(np.where(spread > rounding, spread, 0.0)))
    return np.clip(ratio(number * xy - x * y, roots[0] * roots[1]), -1, 1)


def _spearman(run: Answers, names: Sequence[str]) -> Ranks:
    gold, answers = (np.asarray(side, dtype=np.float64) for side in (run.gold, run.answers))
    return Ranks(gold, answers)


def _depth_f1(sums: np.ndarray) -> np.ndarray:
    """F1 of precision (right, answered) and recall (found, gold), as in ``span_ner_scores``."""
    precision, recall = ratio(sums[..., 0], sums[..., 1]), ratio(sums[..., 2], sums[..., 3])
    return ratio(2 * precision * recall, precision + recall)


def _by_depth(run: Answers, names: Sequence[str], inner: bool) -> Sums:
    """Inner or outermost spans: right, answered, found, gold [N, 4]."""
    rows = []
    for gold, answers in zip(map(set, run.gold), map(set, run.answers), strict=True):
        parts = [inner_spans(s) if inner else s - inner_spans(s) for s in (gold, answers)]
        counts = len(parts[1] & gold), len(parts[1]), len(parts[0] & answers), len(parts[0])
        rows.append(counts)
    return Sums(np.array(rows, dtype=np.float64), _depth_f1)


def _has_inner(run: Answers) -> bool:
    return any(inner_spans(spans) for spans in run.gold)


_NESTED = ("span_f1_outermost", "span_f1_inner")
_RATES = {"precision": _precision, "recall": _recall, "f1": _f1}
_READINGS = {"tags": ("conll", "strict"), "spans": ("strict",)}
_PLAIN = {name: (rate, "") for name, rate in _RATES.items()}
_SHARES: dict[str, dict[str, tuple[Any, str]]] = {
    "number": {}, "label": _PLAIN, "labels": _PLAIN, "plain": _PLAIN,
    **{
        kind: {f"span_{name}_{reading}": (rate, reading)
               for reading in readings for name, rate in _RATES.items()}
        for kind, readings in _READINGS.items()
    },
}  # fmt: skip
"""What may be followed by a name, by kind: the rate, and how tags are read."""


def _rates(kind: str) -> dict[str, Callable[..., Sums]]:
    return {
        name: partial(_share, share=rate, reading=reading)
        for name, (rate, reading) in _SHARES[kind].items()
    }


def _positive_f1(run: Answers, names: Sequence[str]) -> Sums:
    """F1 of the positive class of two labels."""
    return _share(run, names, _f1, name=positive_label(names))


_SCORES_BY_NAME = {
    name: partial(_by_name, score=score)
    for name, score in (("macro_f1", _macro_f1), ("weighted_f1", _weighted_f1),
                        ("matthews", _matthews))
}  # fmt: skip
_MICRO = partial(_share, share=_f1)
_ACCURACY = partial(_share, share=_recall)
_WHOLE: dict[str, dict[str, Callable[..., Any]]] = {
    "label": {"accuracy": _ACCURACY, "micro_f1": _MICRO, **_SCORES_BY_NAME, "f1": _positive_f1},
    "labels": {"micro_f1": _MICRO, "macro_f1": _SCORES_BY_NAME["macro_f1"],
               "subset_accuracy": _subset_accuracy, "hamming_loss": _hamming},
    "number": {"pearson": _pearson, "spearman": _spearman, "mse": _squared_error},
    "plain": {"accuracy": _ACCURACY, "macro_f1": _SCORES_BY_NAME["macro_f1"]},
    "tags": {**_rates("tags"), "tag_accuracy": _tag_accuracy},
    "spans": {**_rates("spans"), "span_f1_outermost": partial(_by_depth, inner=False),
              "span_f1_inner": partial(_by_depth, inner=True)},
}  # fmt: skip
"""How each metric is counted, by kind of answers."""
