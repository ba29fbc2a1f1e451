"""Predictions and their gold as tables, and the interface of a prediction type.

Scores, intervals, comparisons, subgroups, lists of errors, calibration and the report are functions
of ``Tables``: ``items`` has a row for each decision, ``examples`` and ``predictions`` one for each
example. A new type is a file in ``prediction_types/``, or a row in ``registry.PREDICTION_TYPES``
for an extension.

Shapes: N examples, I items, G subgroups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finetune.config.values import conforms
from finetune.data import DataError
from finetune.evaluation.decisions import Costs
from finetune.evaluation.metrics import Items, Metric, mean, means
from finetune.types import UserError, noun_of, quantity

if TYPE_CHECKING:
    from finetune.evaluation.training_vocabulary import TrainingVocabulary

TableRows = list[dict[str, Any]]
"""Rows with the same columns; the first column names the row."""


class Wording(NamedTuple):
    """The words of messages and reports for a prediction type."""

    predicted: str
    """The values that a file predicts, in the plural."""
    unit: str
    """The unit that has a prediction, in the singular."""
    confidence: str = ""
    """The units that have a probability, in the plural; empty if none has."""
    without_gold: str = ""
    """What a file of gold lacks if no row of it has gold; empty if each row needs gold."""


class Classes(NamedTuple):
    """The classes of a type, each of which has scores."""

    column: str
    """The table of scores by class, and its first column."""
    forms: Mapping[str, Callable[..., np.ndarray]]
    """The ``item_counts`` of one class by the form of its metrics, such as ``span_{}_strict``."""
    confusions: bool = False
    """Whether gold and predicted classes make a confusion matrix."""
    scored: bool = False
    """Whether scores have the F1 of each class in the first form."""


# --- Tables ---------------------------------------------------------------------------------------


NO_ITEMS = Items.of((), (), ())


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Gold and the predictions of one run for the same examples, in the same order.

    Attributes:
        type: The type of the predictions.
        gold: The gold value of each example, as custom metrics compare it.
        predicted: The predicted value of each example; empty or -1 if the model abstained.
        items: The decisions.
        examples: The examples, with their texts and votes; empty for bare values.
        predictions: The predictions, with all probabilities; empty for bare values.
        names: Sorted labels, tags or span types of all compared runs.
        labels: The labels of the model, if they are known.
        schemes: The tag schemes of gold and predictions.
        positive: The positive class of two labels.
        separator: What divides the levels of labels; None for labels without levels.
        distributions: The distribution of votes over the labels of each text; empty without votes.
        further_metrics: Metrics that these data have besides those of the type.
        vocabulary: The words of the training data, if they are known.
        costs: The costs of mistakes.
        files: The names of the files of predictions and gold; empty in memory.
        aligned_by: How both were aligned, by `id` or `position`; empty for one file with its gold.
        num_without_gold: Rows of gold without a value, which are not scored.
    """

    type: PredictionType
    gold: Sequence[Any]
    predicted: Sequence[Any]
    items: Items = NO_ITEMS
    examples: Sequence[Any] = ()
    predictions: Sequence[Any] = ()
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    schemes: tuple[str | None, str | None] = (None, None)
    positive: str | None = None
    separator: str | None = None
    distributions: Sequence[Mapping[str, float]] = ()
    further_metrics: Mapping[str, Metric] = field(default_factory=dict)
    vocabulary: TrainingVocabulary | None = None
    costs: Costs = field(default_factory=dict)
    files: tuple[str, ...] = ()
    aligned_by: str = ""
    num_without_gold: int = 0

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def unit(self) -> str:
        """The unit that has a prediction, in the singular; two texts are a pair."""
        unit = self.type.wording.unit
        return noun_of(self.examples[0]) if unit == "text" and self.examples else unit

    @property
    def is_rated(self) -> bool:
        """Whether predictions have probabilities, and all of them are known."""
        items = self.type.calibrated(self)
        return len(items) > 0 and not np.isnan(items.score).any()

    @property
    def all_probabilities(self) -> list[Mapping[str, float]]:
        """The probability of every label for each text, 0 for a blank one; empty where one is not
        known."""
        is_labeled = self.type.classes is not None and self.type.classes.column == "label"
        predictions = self.predictions if is_labeled else ()
        is_blank = [p.label is None and p.decided.get("withheld") is None for p in predictions]
        rows = [{} if blank else p.scores for p, blank in zip(predictions, is_blank, strict=True)]
        names: Mapping[str, float] = next(filter(None, rows), {})
        if all(is_blank) or None in rows:
            return []
        return [row or dict.fromkeys(names, 0.0) for row in rows]

    @property
    def documents(self) -> list[str | None]:
        """The document of each example; empty without documents."""
        has_documents = self.type.wording.unit in ("sentence", "target")
        return [example.document for example in self.examples] if has_documents else []

    @property
    def clusters(self) -> np.ndarray:
        """The index of the document of each example, or of its own without documents [N]."""
        documents = self.documents or [None] * len(self)
        keys = [(name,) if name is not None else i for i, name in enumerate(documents)]
        indices = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        return np.array([indices[key] for key in keys], dtype=np.int64)

    def groupings(self) -> Mapping[str, Grouping]:
        """The divisions into subgroups by the name of their table; bare values have none."""
        return self.type.groupings(self) if self.examples else {}

    def part(self, start: int, stop: int) -> Tables:
        """Take the values and items of some examples."""
        items = self.items.take(slice(*np.searchsorted(self.items.example, [start, stop])))
        names = ("gold", "predicted", "examples", "predictions")
        columns = {name: getattr(self, name)[start:stop] for name in names}
        return replace(self, **columns, items=replace(items, example=items.example - start))


# --- Subgroups ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """A division of decisions into subgroups; a row of its table is a metric.

    Row r adds ``counts[r]`` [K] to the subgroup ``names[r]`` of an ``example``, if it is in
    ``order``. A function of ``cells`` makes each column of the table from their sum; that of
    ``rate`` is a metric, whose name begins with ``prefix``.
    """

    example: np.ndarray
    names: Iterable[str]
    counts: np.ndarray
    order: Sequence[str]
    cells: Mapping[str, Callable[[np.ndarray], np.ndarray]]
    rate: str
    prefix: str = ""
    shown: bool = True

    @property
    def group(self) -> np.ndarray:
        """The index in ``order`` of each row, -1 for none."""
        number = {name: index for index, name in enumerate(self.order)}
        return np.fromiter((number.get(name, -1) for name in self.names), np.int64)

    def table(self, name: str) -> TableRows:
        """Make a row for each subgroup that occurs."""
        groups, rows = self.group, []
        for group in np.unique(groups[groups >= 0]).tolist():
            sums = self.counts[groups == group].sum(axis=0)
            cells = {column: cell(sums).item() for column, cell in self.cells.items()}
            rows.append({name: self.order[group]} | cells)
        return rows


def count(column: int) -> Callable[[np.ndarray], np.ndarray]:
    """Make a cell of the sum of one column of counts."""
    return lambda sums: sums[..., column].astype(int)


def buckets(values: Iterable[int | None], starts: Sequence[int]) -> tuple[list[str], list[str]]:
    """Name the subgroup of each number, "" for None, and all subgroups in order.

    The subgroups begin at ``starts``.

    >>> buckets([7, None], (1, 2, 11))
    (['2-10', ''], ['1', '2-10', '11+'])
    """
    ranges = [(start, after - 1) for start, after in pairwise(starts)]
    order = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    order.append(f"{starts[-1]}+")
    return ["" if v is None else order[max(0, bisect_right(starts, v) - 1)] for v in values], order


def right_by_group(items: Items, names: Iterable[str], order: Sequence[str], unit: str) -> Grouping:
    """Group items by names; the table counts the right answers of each subgroup."""
    return Grouping(
        example=items.example,
        names=list(names),
        counts=means(items.correct),
        order=order,
        cells={unit: count(1), "correct": count(0), "accuracy": mean},
        rate="accuracy",
    )


# --- The interface of a type ----------------------------------------------------------------------

_Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictionType:
    """A prediction type: how rows become predictions, and whole lists of them ``Tables``."""

    name: str
    wording: Wording
    metrics: Mapping[str, Metric]
    default: str
    """The metric that selects models."""
    gold: Callable[[Any], Any]
    """From an example to its gold; None without."""
    parse: Callable[[_Row, str, Any], Any]
    """From a row, its location and its example to the prediction, as ``to_dict()`` wrote it."""
    tables: Callable[[Tables], Tables]
    """Adds to gold and predicted values the decisions, the names of classes, and what whole lists
    decide, such as the positive class; in values of ``files`` it finds labels, tags of a scheme, or
    numbers."""
    read_gold: Callable[..., Iterable[Any]]
    """From a file to its examples with gold; ``columns``, ``usual_columns`` and ``encoding`` are
    options."""
    gold_of_row: Callable[[int, str, _Row], Any]
    """From the index, the location and the content of a row to the example that it holds."""
    answer: Callable[[Any], Any] = attrgetter("value")
    """From a prediction to its predicted value."""
    calibrated: Callable[[Tables], Items] = lambda tables: tables.items.answered
    """The decisions whose probabilities are compared with how often they are right."""
    groupings: Callable[[Tables], Mapping[str, Grouping]] = lambda _: {}
    """The divisions into subgroups by the name of their table."""
    sides: Callable[[Tables, int], tuple[Any, Any]] | None = lambda tables, item: (
        tables.items.gold[item],
        tables.items.answer[item],
    )
    """From the index of an item to its gold and its prediction as JSON values, None for nothing;
    None if errors are not listed."""
    classes: Classes | None = None
    one_class: bool = False
    """Whether exactly one of the classes that have a probability is right for an example."""
    in_words: bool = False
    """Whether examples are sentences; sides then have the words where they stand."""
    may_leave_out: bool = False
    """Whether files, which then have ids, may lack predictions for some examples."""

    def tables_of(
        self, examples: Sequence[Any], predictions: Sequence[Any], **fields: Any
    ) -> Tables:
        """Make the tables of predictions for examples that all have gold."""
        gold = list(map(self.gold, examples))
        predicted = list(map(self.answer, predictions))
        return self.of_values(gold, predicted, examples=examples, predictions=predictions, **fields)

    def of_values(
        self,
        gold: Sequence[Any],
        predicted: Sequence[Any],
        *,
        labels: Iterable[str] = (),
        **fields: Any,
    ) -> Tables:
        """Make the tables of gold and predicted values, one of each for each example."""
        if len(gold) != len(predicted):
            unit = f"predicted {self.wording.unit}"
            raise UserError(
                f"{len(gold)} gold and {quantity(len(predicted), unit)}: every one needs exactly "
                "one prediction"
            )
        sides: dict[str, Any] = {"gold": gold, "predicted": predicted}
        return self.tables(Tables(type=self, **sides, labels=tuple(labels), **fields))


def read_names(row: _Row, key: str, where: str) -> tuple[str, ...]:
    """Read a list of names in a row; None gives none."""
    names = row[key]
    if not conforms(names, list[str] | None):
        raise wrong_value(where, key, "a list of names", names)
    return tuple(names or ())


def wrong_value(where: str, key: str, legal: str, value: Any) -> DataError:
    """Make the error of a value of a row that is not legal."""
    return DataError(f"{where}: {key} must be {legal}, not {value!r:.60}.")
