"""Decisions as columns, and metrics of them: counts of each example, and the value of their sum.

Scores sum over all examples; confidence intervals and significance tests (``significance``) take
weighted sums, so values also take batches of sums. A score with nothing to divide by is 0.0. Here
is what several prediction types share; to add a metric, add a ``Metric`` to the ``metrics`` of its
type.

Shapes: N examples, I items, C names (labels, tags or span types).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from finetune.types import Relation, Span

if TYPE_CHECKING:
    from finetune.evaluation.tables import Tables

NUM_BINS = 15
"""Bins of equal width of the expected calibration error, as in Guo et al. 2017."""

_MOST_COUNTS = 1 << 20
"""The most counts of names to hold at a time."""


@dataclass(frozen=True)
class Metric:
    """A metric: ``counts(tables) -> [N, ...]`` of each example, ``value(sums [..., K]) -> [...]``.

    Scores hold the ``reported`` ones that apply, those of an analysis also the ``analyzed`` ones;
    ``finetune compare`` knows all.
    """

    counts: Callable[[Tables], np.ndarray]
    value: Callable[..., np.ndarray]
    applies: Callable[[Tables], Any] | None = None
    reported: bool = True
    analyzed: bool = False
    weighted: bool = False
    """Whether the value is no function of sums: it takes the counts [N, ...], and the weights of
    the examples in each resample [R, N]."""

    def score(self, tables: Tables) -> float:
        """Compute the value of all examples."""
        if self.weighted:
            return float(self.value(self.counts(tables), np.ones((1, len(tables))))[0])
        return float(self.value(total(self.counts, tables)))


# --- Items ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Items:
    """Decisions as columns: a row has a gold and a predicted value; one of them may be None.

    Attributes:
        example: The index of the example [I], in order.
        gold: Gold values [I]: labels, tags, a ``Span``, a ``Relation`` or numbers.
        predicted: Predicted values [I], also if the model abstained; "" for a blank text.
        answer: The same, but "" where the model abstained [I].
        score: Probabilities of the decisions [I], NaN where they are not known.
        credit: Whether predictions are right, or the fraction that is [I].
        correct: The same, but 0 where the model abstained [I].
        abstained: Whether the model abstained [I].
        columns: Further columns of a type [I], such as the ``category`` of errors.
    """

    example: np.ndarray
    gold: np.ndarray
    predicted: np.ndarray
    answer: np.ndarray
    score: np.ndarray
    credit: np.ndarray
    correct: np.ndarray
    abstained: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        example: Any,
        gold: Iterable[Any],
        predicted: Iterable[Any],
        score: Iterable[float | None] = (),
        *,
        predictions: Sequence[Any] = (),
        credit: Any = None,
        abstained: Any = None,
        **columns: np.ndarray,
    ) -> Items:
        """Make columns; by default a prediction is right if it equals gold, and no score known.

        With ``predictions``, one for each item, the scores are theirs, and answers that they
        withhold are those on which the model abstained.
        """
        if predictions:
            score = [prediction.score for prediction in predictions]
            withheld = [prediction.decided.get("withheld") for prediction in predictions]
            pairs = zip(predicted, withheld, strict=True)
            predicted = [answer if other is None else other for answer, other in pairs]
            abstained = [other is not None for other in withheld]
        sides = [np.fromiter(side, dtype=object) for side in (gold, predicted)]
        number, scores = len(sides[0]), list(score)
        if credit is None:
            credit = np.fromiter(map(operator.eq, *sides), bool, number)
        credit = np.asarray(credit)
        abstained = np.zeros(number, bool) if abstained is None else np.asarray(abstained, bool)
        return cls(
            example=np.asarray(example, dtype=np.int64),
            gold=sides[0],
            predicted=sides[1],
            answer=np.where(abstained, "", sides[1]),
            score=np.array(scores, float) if scores else np.full(number, math.nan),
            credit=credit,
            correct=credit * ~abstained,
            abstained=abstained,
            columns=columns,
        )

    def __len__(self) -> int:
        return len(self.example)

    def take(self, rows: Any) -> Items:
        """Take some of the rows."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        common = {name: v[rows] for name, v in vars(self).items() if name != "columns"}
        return Items(**common, columns=columns)

    @property
    def has_sizes(self) -> bool:
        """True if errors have a size, their ``deviation``, and not a category."""
        return "deviation" in self.columns

    def category(self, item: int) -> str:
        """The category of an item that is wrong."""
        if self.abstained[item]:
            return "abstained"
        if "category" in self.columns:
            return str(self.columns["category"][item])
        gold, answer = self.gold[item], self.answer[item]
        if gold is None or answer is None:
            return "false positive" if gold is None else "miss"
        return f"{gold} taken for {answer}" if answer else "blank text"

    @property
    def answered(self) -> Items:
        """The items with a prediction, also if the model abstained."""
        return self.take(np.array([value is not None for value in self.predicted], bool))


def _equal_pairs(gold: set[Any], predicted: set[Any]) -> list[tuple[Any, Any]]:
    of_gold = [(value, value if value in predicted else None) for value in sorted(gold)]
    return [*of_gold, *((None, value) for value in sorted(predicted - gold))]


def set_items(
    gold: Iterable[Collection[Any]],
    predicted: Iterable[Collection[Any]],
    scores_by_example: Sequence[Mapping[Any, float]] = (),
    pairs_of: Callable[[set[Any], set[Any]], Iterable[tuple[Any, Any]]] = _equal_pairs,
) -> Items:
    """Make an item of each pair of the two sets of each example, with the scores of the example.

    By default gold is paired with the equal prediction, and other predictions follow alone.
    """
    sides = enumerate(zip(map(set, gold), map(set, predicted), strict=True))
    rows = [(index, *pair) for index, both in sides for pair in pairs_of(*both)]
    example, of_gold, answers = list(zip(*rows, strict=True)) or ((), (), ())
    pairs = zip(example, answers, strict=True) if scores_by_example else ()
    scores = (scores_by_example[index].get(value, math.nan) for index, value in pairs)
    return Items.of(example, of_gold, answers, scores)


def name_of(item: str | Span | Relation) -> str:
    """The label, the tag, or the type of a span or relation."""
    return item if isinstance(item, str) else item.label


def item_names(items: Items, labels: Iterable[str] = ()) -> tuple[str, ...]:
    """Sort the labels, tags or types of items, and the ``labels`` of their model."""
    values = {*items.gold, *items.answer} - {None, ""}
    return tuple(sorted({*labels, *map(name_of, values)}))


def probability(value: Any, unknown: Any = math.nan) -> Any:
    """Read a value of a row as the probability of an item; ``unknown`` for anything else."""
    return float(value) if type(value) in (float, int) and 0 <= value <= 1 + 1e-6 else unknown


# --- Counts of each example -----------------------------------------------------------------------


def item_counts(tables: Tables, name: str | None = None) -> np.ndarray:
    """Count the correct, predicted and gold items of each example [N, 3].

    With ``name``, count one label, tag or span type only.
    """
    items, sides = tables.items, (tables.items.gold, tables.items.answer)
    values = {*sides[0], *sides[1]} - {None, ""}  # a million labels have few
    counted = {value for value in values if name is None or name_of(value) == name}
    gold, predicted = (np.fromiter(map(counted.__contains__, s), bool, len(s)) for s in sides)
    columns = items.correct if name is None else items.correct * gold, predicted, gold
    sums = [np.bincount(items.example, column, len(tables.gold)) for column in columns]
    counts = np.stack(sums, axis=-1)
    return counts if columns[0].dtype.kind == "f" else counts.astype(np.int64)


def set_counts(
    gold: Iterable[Any], predicted: Iterable[Any], set_of: Callable[[Any], set[Any]] = set
) -> np.ndarray:
    """Count the common, predicted and gold members of the two sets of each example [N, 3]."""
    sides = zip(map(set_of, gold), map(set_of, predicted), strict=True)
    counts = [(len(g & p), len(p), len(g)) for g, p in sides]
    return np.array(counts, np.int64).reshape(len(counts), 3)


def means(values: npt.ArrayLike) -> np.ndarray:
    """Make the counts of a ``mean``: the value of each example [N], and 1 [N, 2]."""
    return np.column_stack([values, np.ones(len(np.asarray(values)))])


def class_counts(tables: Tables) -> np.ndarray:
    """Compute the ``item_counts`` of every name [N, C, 3]."""
    items, number = tables.items, {name: index for index, name in enumerate(tables.names)}
    shape, sides = (len(tables), len(number), 3), (items.gold, items.answer)
    values = {*sides[0], *sides[1]} - {None}
    index = {value: number.get(name_of(value), -1) for value in values} | {None: -1}
    gold, predicted = (np.fromiter(map(index.__getitem__, s), int, len(s)) for s in sides)
    correct = np.where(items.correct, gold, -1)
    counts = np.zeros(math.prod(shape), dtype=np.int64)
    for count, classes in enumerate((correct, predicted, gold)):
        is_named = classes >= 0
        cells = (items.example[is_named] * len(number) + classes[is_named]) * 3 + count
        counts += np.bincount(cells, minlength=len(counts))
    return counts.reshape(shape)


def weighted_ranks(values: npt.ArrayLike, weights: np.ndarray) -> np.ndarray:
    """Compute mean ranks, from 1, where value n occurs ``weights[r, n]`` times: [R, N]."""
    if weights.shape[1] == 0:
        return np.zeros_like(weights)
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 1))
    number = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks: np.ndarray = (np.cumsum(number, axis=1) - (number - 1) / 2)[:, group]
    return ranks


def confidence_counts(tables: Tables) -> np.ndarray:
    """Compute the ``bin_counts`` of the predictions of each example [N, 3, bins]."""
    items = tables.type.calibrated(tables)
    return bin_counts(items.score, items.credit, items.example, len(tables))


def bin_counts(
    confidences: npt.ArrayLike,
    correct: npt.ArrayLike,
    group: npt.ArrayLike = 0,
    num_groups: int = 1,
) -> np.ndarray:
    """Count the predictions of each bin, and sum their confidence and correctness [G, 3, bins].

    A bin includes its upper end, the first one also 0. Each ``group`` of predictions has its own.
    """
    index = np.ceil(np.asarray(confidences) * NUM_BINS - 1e-9).astype(int) - 1
    index = np.clip(index, 0, NUM_BINS - 1) + np.asarray(group) * NUM_BINS
    sides, number = (np.ones(len(index)), confidences, correct), num_groups * NUM_BINS
    counts = [np.bincount(index, weights=side, minlength=number) for side in sides]
    return np.stack([count.reshape(num_groups, NUM_BINS) for count in counts], axis=1)


# --- Values of sums -------------------------------------------------------------------------------


def ratio(dividend: npt.ArrayLike, divisor: npt.ArrayLike) -> np.ndarray:
    """Divide; 0 where there is nothing to divide by."""
    divisor = np.asarray(divisor)
    quotient: np.ndarray = np.divide(
        dividend, divisor, out=np.zeros(divisor.shape), where=divisor != 0
    )
    return quotient


def mean(sums: np.ndarray) -> np.ndarray:
    """The first count over the second [..., K] -> [...]."""
    return ratio(sums[..., 0], sums[..., 1])


precision = mean
"""Correct over predicted, from correct, predicted and gold [..., 3] -> [...]."""


def recall(sums: np.ndarray) -> np.ndarray:
    """Correct over gold, from correct, predicted and gold [..., 3] -> [...]."""
    return ratio(sums[..., 0], sums[..., 2])


def f1(sums: np.ndarray) -> np.ndarray:
    """The harmonic mean of precision and recall, ``2 tp / (2 tp + fp + fn)`` [..., 3].

    van Rijsbergen 1979; Jurafsky & Martin, "Evaluation: precision, recall, F-measure".
    """
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def macro_f1(sums: np.ndarray) -> np.ndarray:
    """The mean F1 of the names that occur [..., C, 3] -> [...]."""
    occurs = (sums[..., 1:] > 0).any(axis=-1)
    return ratio(f1(sums).sum(axis=-1), occurs.sum(axis=-1))


def weighted_f1(sums: np.ndarray) -> np.ndarray:
    """The mean F1 of names, weighted by their gold count [..., C, 3] -> [...]."""
    weighted = f1(sums) * sums[..., 2]
    return ratio(sum(np.moveaxis(weighted, -1, 0)), sums[..., 2].sum(axis=-1))


def matthews(sums: np.ndarray) -> np.ndarray:
    """The Matthews correlation of any number of classes [..., C, 3] -> [...].

    ``(c n - sum_k g_k p_k) / sqrt((n² - sum_k g_k²) (n² - sum_k p_k²))`` (Matthews 1975; Gorodkin
    2004) of n examples, c correct, g_k and p_k of class k; 0 where a side has one class only.
    """
    correct, predicted, gold = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    n = gold.sum(axis=-1)
    covariance = correct.sum(axis=-1) * n - (gold * predicted).sum(axis=-1)
    spread = [n * n - (side * side).sum(axis=-1) for side in (gold, predicted)]
    spread[1] -= (n - predicted.sum(axis=-1)) ** 2  # predictions of no class are a class, too
    return ratio(covariance, np.sqrt(spread[0] * spread[1]))


def calibration_error(sums: np.ndarray) -> np.ndarray:
    """The expected calibration error from ``bin_counts`` [..., 3, bins] -> [...].

    The mean distance of confidence and accuracy over bins, weighted by the number of predictions
    (Naeini, Cooper & Hauskrecht 2015). Resamples, which repeat examples, have a larger error.
    """
    number, confidence, correct = np.moveaxis(sums, -2, 0)
    gaps = number * np.abs(ratio(correct, number) - ratio(confidence, number))
    return ratio(gaps.sum(axis=-1), number.sum(axis=-1))


def pearson(pairs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The Pearson correlation of pairs [N, 2] with weights [R, N] -> [R]; 0 for a constant side."""
    x, y = np.zeros((2, len(pairs)))
    for centered, side in ((x, pairs[:, 0]), (y, pairs[:, 1])):
        if len({*side.tolist()}) > 1:
            centered += side - math.fsum(side) / len(side)
            centered /= np.abs(centered).max()  # no square underflows
    moments = np.column_stack([x * y, x, y, x * x, y * y, np.ones(len(x))])
    return _correlation(*(weights @ moments).T)


def spearman(pairs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The correlation of ranks, which change with the weights; the shapes are as in ``pearson``."""
    number = weights.sum(axis=1)
    center = (number[:, None] + 1) / 2  # the mean of all ranks, exactly
    x, y = (weighted_ranks(side, weights) - center for side in pairs.T)
    xy, xx, yy = (np.einsum("rn,rn,rn->r", weights, *sides) for sides in ((x, y), (x, x), (y, y)))
    zero = np.zeros_like(number)
    return _correlation(xy, zero, zero, xx, yy, number)


def _correlation(xy: Any, x: Any, y: Any, xx: Any, yy: Any, number: Any) -> np.ndarray:
    spreads = []
    for total, squares in ((x, xx), (y, yy)):
        spread = squares - ratio(total * total, number)
        spreads.append(np.where(spread > 1e-13 * squares, spread, 0.0))  # 0 but for rounding
    covariance, root = xy - ratio(x * y, number), np.sqrt(spreads[0] * spreads[1])
    return ratio(covariance, root).clip(-1.0, 1.0)


RATES = {"precision": precision, "recall": recall, "f1": f1}
"""The rates of correct, predicted and gold items."""


# --- Scores ---------------------------------------------------------------------------------------


def total(counts: Callable[[Tables], np.ndarray], tables: Tables) -> np.ndarray:
    """Sum the counts of all examples; sums of floats are rounded once.

    Where there are many names, counts are made for some examples at a time.
    """
    number = len(tables.gold)
    size = max(1, _MOST_COUNTS // len(tables.names) if tables.names else number)
    rows = []
    for start in range(0, max(1, number), size):
        of_part = counts(tables if size >= number else tables.part(start, start + size))
        rows.append(of_part.sum(axis=0, keepdims=True) if of_part.dtype.kind == "i" else of_part)
    sums = np.concatenate(rows)
    return sums.sum(axis=0) if sums.dtype.kind == "i" else np.apply_along_axis(math.fsum, 0, sums)


def score(tables: Tables, *, analysis: bool = False) -> dict[str, float]:
    """Compute the reported metrics of gold and predictions by name; an ``analysis`` has more."""
    sums: dict[Callable[[Tables], np.ndarray], np.ndarray] = {}
    scores = {}
    for name, metric in {**tables.type.metrics, **tables.further_metrics}.items():
        is_wanted = metric.reported or (analysis and metric.analyzed)
        if not is_wanted or (metric.applies and not metric.applies(tables)):
            continue
        if metric.weighted:
            scores[name] = metric.score(tables)
            continue
        if metric.counts not in sums:
            sums[metric.counts] = total(metric.counts, tables)
        scores[name] = metric.value(sums[metric.counts]).item()  # counts are whole numbers
    if (classes := tables.type.classes) and classes.scored:
        form = next(iter(classes.forms)).format("f1")
        scores |= {f"{form}:{name}": row["f1"] for name, row in class_scores(tables).items()}
    return scores


def rates(form: str) -> dict[str, Metric]:
    """Make the metrics precision, recall and F1 of items, by names such as ``span_{}_strict``."""
    return {form.format(name): Metric(item_counts, value) for name, value in RATES.items()}


ECE = {"ece": Metric(confidence_counts, calibration_error, attrgetter("is_rated"), reported=False)}
"""The expected calibration error, which applies if all probabilities are known."""
CLASS_METRICS = {
    "macro_f1": Metric(class_counts, macro_f1),
    "weighted_f1": Metric(class_counts, weighted_f1),
    "matthews": Metric(class_counts, matthews),
}
"""The metrics of one label or tag, besides its accuracy."""


def class_scores(tables: Tables) -> dict[str, dict[str, float]]:
    """Compute ``precision``, ``recall``, ``f1`` and ``support`` (gold count) of each name."""
    return {
        name: {rate: float(value(row)) for rate, value in RATES.items()} | {"support": int(row[2])}
        for name, row in zip(tables.names, total(class_counts, tables), strict=True)
    }
