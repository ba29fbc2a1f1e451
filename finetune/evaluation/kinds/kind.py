"""The interface of a kind of predictions: reading, counting, subgroups and display.

Everything else is generic: scores in training, `finetune score`, intervals, `compare`, subgroups,
lists of errors, calibration and the report take a ``Scored`` and ask its kind. A new kind is a
file beside this one and a row in ``KINDS``, or in ``registry.PREDICTION_KINDS`` for an extension.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from finetune.data import DataError
from finetune.evaluation.decisions import Costs
from finetune.evaluation.metrics import (
    RATES,
    Metric,
    calibration_error,
    class_counts,
    confidence_counts,
    item_counts,
    name_of,
    total,
)
from finetune.types import Span, UserError, quantity

if TYPE_CHECKING:
    from finetune.data.files import DataFile
    from finetune.evaluation.predictions import Gold, GoldSource, PredictionFile
    from finetune.evaluation.training_vocabulary import TrainingVocabulary

Items = Sequence[Collection[Any]]
"""The unit that metrics count in an example: a label, a tag, a ``Span`` or a ``Relation``."""
Table = list[dict[str, Any]]
"""Rows with the same columns; the first column names the row."""
NOTHING = "(nothing)"
"""In a confusion matrix of spans: no span corresponds."""


class Wording(NamedTuple):
    """The words of messages and reports for a kind of predictions."""

    predicted: str
    """The values that a file predicts, in the plural."""
    example: str
    """The unit that has a prediction, in the singular."""
    rated: str = ""
    """The units that have a probability, in the plural; empty if none has."""


class Mistake(NamedTuple):
    """A wrong or missed item; gold and prediction are JSON values, None for nothing.

    ``words`` is the range to show of a sentence, None for a text. The confidence is the probability
    of the prediction, None if it is not known.
    """

    category: str
    gold: Any
    predicted: Any
    confidence: float | None = None
    words: tuple[int, int] | None = None


class Shown(NamedTuple):
    """An example with errors, as a report shows it.

    A text has ``gold`` and ``predicted`` in words, and ``probabilities``: a name, its probability,
    and its mark, ``right``, ``wrong`` or none. A sentence has ``spans`` of gold and of predictions;
    None shows the wrong ones alone. ``context`` is the text that an answer is in.
    """

    gold: Sequence[Any] = ()
    predicted: Sequence[Any] = ()
    probabilities: Sequence[tuple[str, float, str]] = ()
    confidence: float | None = None
    deviation: float | None = None
    spans: tuple[set[Span], set[Span]] | None = None
    context: str | None = None


class Answer(NamedTuple):
    """A prediction that can be withheld: its probability, whether it is right, and its class."""

    confidence: float
    right: bool
    name: str = ""


@dataclass(frozen=True)
class Scored:
    """Gold and the predictions of one run, for the same examples in the same order.

    ``gold`` and ``predicted`` are the values that metrics compare; ``predictions`` are the
    objects of ``types`` that hold the probabilities, where they are known. ``names`` are the sorted
    labels, tags or types of all compared runs, ``labels`` the labels of the model, if known.
    ``schemes`` are the tag schemes of gold and predictions, ``positive`` is the positive class.
    ``characters`` are the gold and predicted spans of each text in characters, for gold in
    characters. ``scale`` are the numbers that all compared runs predict. Lines of a file were
    aligned ``by`` id or position. ``costs`` are the costs of mistakes, if they are given.
    ``forced`` are the predicted values with the answers that are withheld, if these are known.
    """

    kind: Kind
    gold: Sequence[Any]
    predicted: Sequence[Any]
    examples: Sequence[Any] = ()
    predictions: Sequence[Any] = ()
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    schemes: tuple[str | None, str | None] = (None, None)
    positive: str | None = None
    characters: Sequence[tuple[set[Span], set[Span]]] = ()
    scale: Sequence[float] = ()
    by: str = ""
    costs: Costs = field(default_factory=dict)
    forced: Sequence[Any] = ()

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.gold)

    @property
    def sides(self) -> Iterator[tuple[Any, Any]]:
        """Gold and prediction of each example."""
        return zip(self.gold, self.predicted, strict=True)


@dataclass(frozen=True)
class Grouping:
    """A division of what is counted into subgroups; a row of its table is a metric.

    ``cells`` yields the index of an example, a subgroup, and ``num_counts`` counts of it there.
    ``row`` makes the row of a table from their sum, ``value`` the metric ``score``.
    """

    cells: Callable[[Scored], Iterable[tuple[int, str, Sequence[float]]]]
    num_counts: int
    order: Sequence[str]
    row: Callable[[np.ndarray], Mapping[str, Any]]
    score: str
    value: Callable[[np.ndarray], np.ndarray]

    def table(self, name: str, scored: Scored) -> Table:
        """Return a row for each subgroup that occurs."""
        sums: dict[str, Any] = {}
        for _, group, counts in self.cells(scored):
            sums[group] = sums.get(group, 0) + np.asarray(counts)
        return [
            {name: group} | dict(self.row(sums[group])) for group in self.order if group in sums
        ]

    def counts(self, group: str, scored: Scored) -> np.ndarray:
        """Return the counts of a subgroup in each example [N, K]."""
        found = np.zeros((len(scored), self.num_counts))
        for index, own, counts in self.cells(scored):
            if own == group:
                found[index] += counts
        return found


def expected_calibration_error() -> Metric:
    """Return the metric ``ece``, which applies where all probabilities are known."""
    return Metric(
        lambda scored: confidence_counts(scored.kind.confidences(scored) or ()),
        calibration_error,
        lambda scored: bool(scored.kind.confidences(scored)),
        reported=False,
    )


def rates(form: str, strict: bool = False, reported: bool = True) -> dict[str, Metric]:
    """Return precision, recall and F1 of items, by names such as ``span_{}_strict``."""
    counts = partial(item_counts, strict=strict) if strict else item_counts
    return {
        form.format(name): Metric(counts, value, reported=reported) for name, value in RATES.items()
    }


class Kind(ABC):
    """A kind of predictions."""

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """Its name in the JSON of an analysis, where this differs."""
    key: ClassVar[str] = ""
    """The key of a line that predicts this kind; empty if the values decide it."""
    wording: ClassVar[Wording]
    metrics: ClassVar[Mapping[str, Metric]]
    default: ClassVar[str]
    """The metric that selects models."""
    takes_thresholds: ClassVar[bool] = False
    """Whether `finetune thresholds` can choose from which probability a label is predicted."""
    named: ClassVar[Sequence[tuple[str, bool]]] = ()
    """The forms of the metrics of one name, such as ``span_{}_strict``, and if they are strict."""
    one_class: ClassVar[bool] = False
    """Whether exactly one of the classes that have a probability is right for an example."""
    classes: ClassVar[str] = ""
    """The table of scores by class, and its first column; empty without classes."""
    without_gold: ClassVar[str] = ""
    """What a file of gold lacks if no row of it has gold."""
    needs_training: ClassVar[bool] = True
    """Whether training data tell anything of the predictions."""
    tells_seen: ClassVar[bool] = False
    """Whether tables tell what is seen in training data."""
    may_leave_out: ClassVar[bool] = False
    """Whether files may lack predictions for some examples."""
    has_categories: ClassVar[bool] = True
    """Whether errors are of several categories."""
    lists_errors: ClassVar[bool] = True
    """Whether an analysis lists errors."""
    pairs_of_labels: ClassVar[bool] = False
    """Whether the category of an error is a pair of labels, which says all of it."""

    @property
    def shown_name(self) -> str:
        """Its name in the JSON of an analysis."""
        return self.title or self.name

    # --- Read ---

    @abstractmethod
    def gold(self, example: Any) -> Any:
        """Return the gold of an example; None without."""

    @abstractmethod
    def value(self, prediction: Any) -> Any:
        """Return what is compared with gold."""

    def forced(self, prediction: Any) -> Any:
        """Return what is compared with gold if no answer is withheld."""
        return self.value(prediction)

    @abstractmethod
    def parse(self, row: Mapping[str, Any], where: str, example: Any) -> Any:
        """Return the line of a file as a prediction: the inverse of its ``record()``.

        Raises:
            DataError: The line does not fit the example, whose gold may have other words.
        """

    @abstractmethod
    def read_gold(self, file: str | DataFile, source: GoldSource) -> Sequence[Any]:
        """Return the examples of a file with gold, as ``source`` reads it."""

    @abstractmethod
    def gold_of_row(self, index: int, where: str, row: Mapping[str, Any]) -> Any:
        """Return the example that a line of predictions holds with its gold."""

    def document(self, example: Any) -> str | None:
        """Return the name of the document that an example is from."""
        return None

    @abstractmethod
    def asked(self, example: Any) -> object:
        """Return the content of an example without its gold."""

    def uncertainty(self, prediction: Any) -> float | None:
        """Return the uncertainty of a prediction (``predict --out``); None without a measure."""
        return None

    def align(self, file: PredictionFile, gold: Gold) -> Scored:
        """Return the predictions of a file with gold; examples without gold are left out."""
        examples, predictions, by = self.parsed(file, gold)
        return self.scored(examples, predictions, by=by)

    def parsed(self, file: PredictionFile, gold: Gold) -> tuple[list[Any], list[Any], str]:
        """Return examples with gold, their predictions, and what aligned them: id or position."""
        if self.without_gold and all(self.gold(each) is None for each in gold.examples):
            raise DataError(f"{gold.name}: {self.without_gold}")
        pairs, by = file.pairs(gold, self)
        known = [pair for pair in pairs if self.gold(pair[1]) is not None]
        predictions = [self.parse(row, where, example) for (where, row), example in known]
        return [example for _, example in known], predictions, by

    def unified(self, runs: list[Scored]) -> list[Scored]:
        """Return runs as one kind, if values of one file alone did not tell the kind."""
        return runs

    def together(self, runs: Sequence[Scored], positive: str | None) -> tuple[list[Scored], str]:
        """Return runs with what is decided over all of them, and a note on it for the reader."""
        if positive is not None:
            raise UserError(f"--positive {positive}: it applies to texts with one of two labels.")
        return list(runs), ""

    # --- Count ---

    def scored(self, examples: Sequence[Any], predictions: Sequence[Any], **facts: Any) -> Scored:
        """Return gold and predictions of examples that all have gold."""
        gold, predicted = list(map(self.gold, examples)), list(map(self.value, predictions))
        facts |= {"forced": list(map(self.forced, predictions))}
        return self.pair(gold, predicted, examples=examples, predictions=predictions, **facts)

    def pair(
        self,
        gold: Sequence[Any],
        predicted: Sequence[Any],
        *,
        labels: Iterable[str] = (),
        **facts: Any,
    ) -> Scored:
        """Return gold and predicted values, one of each for each example.

        Raises:
            UserError: The numbers of examples or of words differ, or a number is not finite.
        """
        self.check(gold, predicted)
        scored = Scored(self, gold, predicted, labels=tuple(labels), **facts)
        if not self.named:
            return scored
        distinct = {*chain.from_iterable(chain(*self.items(scored)[1:]))}
        names = set(map(name_of, distinct))
        return replace(scored, names=tuple(sorted({*scored.labels, *names})))

    def check(self, gold: Sequence[Any], predicted: Sequence[Any]) -> None:
        """Raise UserError for other numbers of examples, or of words, on both sides."""
        if len(gold) != len(predicted):
            unit = f"predicted {self.wording.example}"
            raise UserError(
                f"{len(gold)} gold and {quantity(len(predicted), unit)}: every one needs exactly "
                "one prediction"
            )

    def items(self, scored: Scored, strict: bool = False) -> tuple[Items, Items, Items]:
        """Return the correct, the predicted and the gold items of each example."""
        sets = [(set(gold), set(predicted)) for gold, predicted in scored.sides]
        return [g & p for g, p in sets], [p for _, p in sets], [g for g, _ in sets]

    def rated(self, scored: Scored) -> list[list[Answer]]:
        """Return the predictions of each example, with NaN for a probability that is not known."""
        return [[] for _ in scored.gold]

    def answers(self, scored: Scored) -> list[list[Answer]]:
        """Return the answers of each example whose probability is known."""
        rows = self.rated(scored)
        return [[each for each in row if not math.isnan(each.confidence)] for row in rows]

    def confidences(self, scored: Scored) -> list[list[tuple[float, bool]]] | None:
        """Return the probability of each prediction, and whether it is right, for each example.

        None if a probability is not known.
        """
        rows = self.rated(scored)
        known = [not math.isnan(each.confidence) for row in rows for each in row]
        return [[each[:2] for each in row] for row in rows] if known and all(known) else None

    def probabilities(self, predictions: Sequence[Any]) -> Sequence[Mapping[str, float] | None]:
        """Return the probability of every label for each text; None where it is not known."""
        return [None] * len(predictions)

    def further_scores(self, scored: Scored) -> Mapping[str, float]:
        """Return scores besides the metrics, such as the F1 of each type."""
        return {}

    # --- Analyze ---

    def confusions(self, scored: Scored) -> Counter[tuple[str, str]] | None:
        """Count the pairs of gold and predicted classes; None if there are no such pairs."""
        return None

    def groupings(
        self, scored: Scored, vocabulary: TrainingVocabulary | None
    ) -> Mapping[str, Grouping]:
        """Return the divisions into subgroups by the name of their table."""
        return {}

    def tables(self, scored: Scored, vocabulary: TrainingVocabulary | None) -> dict[str, Table]:
        """Return the tables of an analysis by name."""
        found: dict[str, Table] = {}
        if self.classes:
            found[self.classes] = [
                {self.classes: name} | dict(row) for name, row in class_scores(scored).items()
            ]
        if (confusions := self.confusions(scored)) is not None:
            found |= confusion_tables(confusions)
        groupings = self.groupings(scored, vocabulary)
        return found | {name: each.table(name, scored) for name, each in groupings.items()}

    def subgroup_metrics(
        self, scored: Scored, vocabulary: TrainingVocabulary | None
    ) -> dict[str, Metric]:
        """Return a metric for each row of the tables of subgroups.

        Their names join the score, the table and the subgroup, with ``_`` for spaces:
        ``span_f1_length:3``, ``span_f1_in_training:unseen``, ``accuracy_position:1``.
        """
        return {
            f"{each.score}_{name}:{group}".replace(" ", "_"): Metric(
                partial(each.counts, group), each.value
            )
            for name, each in self.groupings(scored, vocabulary).items()
            for group in each.order
        }

    def scores_of_tables(
        self, scores: Mapping[str, float], tables: Mapping[str, Table]
    ) -> Mapping[str, float]:
        """Return further scores of an analysis, from its scores and its tables."""
        return {}

    def mistakes(self, scored: Scored) -> Iterator[tuple[int, Mistake]]:
        """Yield the index of an example and what is wrong, in the order to list it."""
        yield from ()

    def doubts(self, scored: Scored) -> Iterator[tuple[int, Mistake]] | None:
        """Yield predictions whose gold may be wrong; None if probabilities do not tell."""
        return None

    def shown(self, scored: Scored, index: int, mistakes: Sequence[Any]) -> Shown:
        """Return what a report shows of an example with errors."""
        return Shown()

    def repeatable(self, prediction: Any) -> Collection[Any] | None:
        """Return what of a prediction may be the same for all examples; None if nothing may."""
        return None

    nothing: ClassVar[str] = "no spans at all"
    """The predictions of a run that finds nothing anywhere."""


def class_scores(scored: Scored) -> dict[str, dict[str, float]]:
    """Return ``precision``, ``recall``, ``f1`` and ``support`` (gold count) of each name in order.

    Names are the labels, plain tags or span types that occur.
    """
    return {
        name: {rate: float(value(row)) for rate, value in RATES.items()} | {"support": int(row[2])}
        for name, row in zip(scored.names, total(class_counts, scored, True), strict=True)
    }


def confusion_tables(pairs: Counter[Any]) -> dict[str, Table]:
    """Tabulate the confusion matrix of (gold, predicted) pairs, and the most frequent errors."""
    found = {name for pair in pairs for name in pair}
    names = sorted(found, key=lambda name: (name == NOTHING, name))
    matrix = [
        {"gold": gold, "predicted": {name: pairs[gold, name] for name in names}} for gold in names
    ]
    confused = [
        {"gold": gold, "predicted": predicted, "number": number}
        for (gold, predicted), number in pairs.most_common()
        if gold != predicted and NOTHING not in (gold, predicted)
    ]
    return {"confusion": matrix, "confused": confused}


# --- Values in the lines of prediction files ------------------------------------------------------


def check_names(where: str, key: str, value: Any, tags: bool = False) -> None:
    """Raise DataError for labels, or for ``tags`` of words, of another type."""
    names = value if isinstance(value, list) else [value]
    if tags and not (isinstance(value, list) and all(isinstance(t, str | None) for t in value)):
        legal = "a list with one string for each word"
    elif not tags and not all(isinstance(name, str | float | int) for name in names):
        legal = "a name, a list of names or a number"
    else:
        return
    raise DataError(f"{where}: {key} must be {legal}, not {value!r:.60}.")


def probability(value: Any) -> float | None:
    """Return a value of a line as a probability; None for anything else."""
    return float(value) if type(value) in (float, int) and 0 <= value <= 1 + 1e-6 else None


def known_or_nan(value: Any) -> float:
    """Return a value of a line as a probability; NaN for anything else."""
    known = probability(value)
    return math.nan if known is None else known


def decided_in(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decisions withheld from the prediction of a line."""
    return {} if row.get("withheld") is None else {"withheld": row["withheld"]}


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and no truth value."""
    return type(value) in (float, int)
