"""Labels of texts or of pairs of texts: one, several, or a number.

One key of a line holds all three: the values of gold and predictions decide which they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.data import DataError
from finetune.data.files import DataFile
from finetune.data.labels import agreement, canonical_names, convert_labels, read_votes
from finetune.data.texts import read_text_file
from finetune.evaluation.confident_learning import probable_label_errors
from finetune.evaluation.kinds.examples import OfTexts, by_length, confidence_of, right_by_group
from finetune.evaluation.kinds.kind import (
    Answer,
    Grouping,
    Items,
    Mistake,
    Scored,
    Shown,
    Table,
    Wording,
    decided_in,
    expected_calibration_error,
    is_number,
    probability,
)
from finetune.evaluation.metrics import (
    Metric,
    class_counts,
    f1,
    item_counts,
    macro_f1,
    matthews,
    mean,
    ratio,
    recall,
    weighted_f1,
    weighted_ranks,
)
from finetune.evaluation.positive import named_positive, positive_label
from finetune.types import TextExample, TextPrediction, UserError, quantity

if TYPE_CHECKING:
    from finetune.evaluation.predictions import Gold, GoldSource, PredictionFile
    from finetune.evaluation.training_vocabulary import TrainingVocabulary

NO_LABEL = ""
"""The prediction for a blank text: no gold label agrees with it, and it is no class."""


class _OfLabels(OfTexts):
    """The base class of the kinds ``label``, ``labels`` and ``number``."""

    without_gold = "no row has a label."

    def gold(self, example: TextExample) -> Any:
        """Return the gold label, labels or number."""
        return example.label

    def value(self, prediction: TextPrediction) -> Any:
        """Return the predicted label, labels or number."""
        return NO_LABEL if prediction.label is None else prediction.label

    def forced(self, prediction: TextPrediction) -> Any:
        """Return the value with the label that is withheld."""
        withheld = prediction.decided.get("withheld")
        return withheld if isinstance(withheld, str) else self.value(prediction)

    def read_gold(self, file: str | DataFile, source: GoldSource) -> Sequence[TextExample]:
        """Return the texts of a file with their labels."""
        examples = list(read_text_file(file, **source.reading))
        return convert_labels({"gold": examples}, typed=False)[0]["gold"]

    def gold_of_row(self, index: int, where: str, row: Mapping[str, Any]) -> TextExample:
        """Return the text of a line with its gold, and with the votes for it if it has some."""
        votes = read_votes(row["votes"], where) if "votes" in row else None
        return replace(super().gold_of_row(index, where, row), votes=votes)

    def parse(self, row: Mapping[str, Any], where: str, example: TextExample) -> TextPrediction:
        """Return a predicted label with the probabilities that are known."""
        label = tuple(row["label"]) if isinstance(row["label"], list) else row["label"]
        label = None if label == NO_LABEL else label
        scores, score, known = row.get("scores"), row.get("score"), None
        if isinstance(scores, dict):
            values = {name: p for name, v in scores.items() if (p := probability(v)) is not None}
            known = values if len(values) == len(scores) else None
        if score is None and isinstance(scores, dict):
            score = scores.get(str(row["label"]))
        return TextPrediction(
            example.id,
            label,
            probability(score),
            known,
            row.get("positive_label"),
            decided=decided_in(row),
        )

    def align(self, file: PredictionFile, gold: Gold) -> Scored:
        """Return labels, sets of labels or numbers with gold."""
        return _settled(file, gold, *self.parsed(file, gold))

    def unified(self, runs: list[Scored]) -> list[Scored]:
        """Return whole numbers, which are names, as numbers next to runs of other numbers."""
        numbers = all(is_number(p.label) for run in runs for p in run.predictions)
        if numbers and {run.kind for run in runs} == {LABEL, NUMBER}:
            return list(map(_as_numbers, runs))
        return runs

    def together(self, runs: Sequence[Scored], positive: str | None) -> tuple[list[Scored], str]:
        """Return runs with the positive class: given, of the models, or by gold.

        The second value is a note if only frequency decided.
        """
        labels: set[str] = set()
        if runs[0].kind is LABEL:
            labels = {name for run in runs for side in (run.gold, run.predicted) for name in side}
            labels.discard(NO_LABEL)
        saved = {p.positive for run in runs for p in run.predictions if p.positive is not None}
        known_names = {*canonical_names([*labels, *saved])}
        if positive is not None and (runs[0].kind is not LABEL or len(known_names) > 2):
            return super().together(runs, positive)
        note = ""
        if len(labels) != 2:
            chosen = positive or next(iter(saved), None) if len(labels) == 1 else None
        else:
            given = positive or (next(iter(saved)) if len(saved) == 1 else "")
            names = canonical_names([*labels, given])
            known = names[-1] if positive or names[-1] in labels else None
            chosen = positive_label(labels, Counter(runs[0].gold), known)
            if not known and not named_positive(labels):
                note = f"f1 scores {chosen!r}, the rarer label of gold; --positive names another."
        return [replace(run, positive=chosen) for run in runs], note

    def probabilities(
        self, predictions: Sequence[TextPrediction]
    ) -> Sequence[Mapping[str, float] | None]:
        """Return the probability of every label for each text; None where it is not known."""
        return [prediction.scores for prediction in predictions]

    def repeatable(self, prediction: TextPrediction) -> Collection[Any] | None:
        """Return the label."""
        return {prediction.label}


def _settled(
    file: PredictionFile,
    gold: Gold,
    examples: Sequence[TextExample],
    predictions: Sequence[TextPrediction],
    by: str,
) -> Scored:
    """Return gold and predictions as names, sets of names, or numbers.

    As in training, whole numbers are names, unless gold or predictions have a decimal point.
    """
    gold_labels: list[Any] = [example.label for example in examples]
    predicted: list[Any] = [NO_LABEL if p.label is None else p.label for p in predictions]
    known = [label for label in predicted if label != NO_LABEL]
    blank = len(predicted) - len(known)
    if blank and known and all(map(is_number, known)) and _is_regression(gold_labels, known):
        raise DataError(
            f"{file.path}: {quantity(blank, 'text is', 'texts are')} blank, and so without a "
            "number: remove them from the data to score numbers."
        )
    facts: dict[str, Any] = {"examples": examples, "predictions": predictions, "by": by}
    if any(isinstance(label, list | tuple) for label in (*predicted, *gold_labels)):
        sides = [[*map(_names, side)] for side in (gold_labels, predicted)]
        return LABELS.pair(*sides, labels=_labels_of_model(predictions), **facts)
    if all(map(is_number, predicted)) and _is_regression(gold_labels, predicted):
        try:
            values = [float(label) for label in gold_labels]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{gold.name}: its labels are not numbers ({error}), but the predictions are."
            ) from error
        return NUMBER.pair(values, [float(label) for label in predicted], **facts)
    decimal = any(isinstance(x, float) and not x.is_integer() for x in gold_labels)
    if decimal and not any(_spells_number(str(label)) for label in predicted):
        raise DataError(
            f"{gold.name}: its labels are numbers, but the predictions are names such as "
            f"{predicted[0]!r}: the files do not belong together."
        )
    forced = [LABEL.forced(each) for each in predictions]
    names = canonical_names(map(_name, (*gold_labels, *predicted, *forced)))  # of all or of none
    size = len(gold_labels)
    return LABEL.pair(names[:size], names[size : 2 * size], forced=names[2 * size :], **facts)


def _labels_of_model(predictions: Sequence[TextPrediction]) -> tuple[str, ...]:
    names = {tuple(p.scores) for p in predictions if p.scores is not None}
    return names.pop() if len(names) == 1 else ()


def _is_regression(gold: Sequence[Any], predicted: Sequence[Any]) -> bool:
    whole = all(float(label).is_integer() for label in predicted)
    if not whole or any(isinstance(label, float) for label in gold):
        return True
    spelled = [label for label in map(str, gold) if _spells_number(label)]
    if len(spelled) == len(gold):
        return any("." in label for label in spelled)  # tables have all labels as text
    return not spelled


def _spells_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _name(label: Any) -> str:
    if isinstance(label, bool):
        return str(label).lower()
    return f"{label:g}" if isinstance(label, float) else str(label)


def _names(label: Any) -> tuple[str, ...]:
    several = label if isinstance(label, list | tuple) else [label]
    return tuple(_name(each) for each in several if each != "")


def all_probabilities(scored: Scored) -> list[Mapping[str, float]]:
    """Return the probability of every label for each text; empty where one is not known."""
    found = scored.kind.probabilities(scored.predictions)
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else []


def _most_probable(prediction: TextPrediction) -> list[tuple[str, float, str]]:
    known = prediction.scores or {}
    return [(*item, "") for item in sorted(known.items(), key=lambda item: -item[1])[:4]]


# --- One label ------------------------------------------------------------------------------------


def positive_counts(scored: Scored) -> np.ndarray:
    """Return the ``item_counts`` of the positive class of two labels [N, 3]."""
    return item_counts(scored, name=scored.positive)


def has_votes(scored: Scored) -> bool:
    """Return whether several annotators labeled some of the texts."""
    return any(example.votes is not None for example in scored.examples)


def has_distributions(scored: Scored) -> bool:
    """Return whether texts have votes, and predictions the probability of each label."""
    known = has_votes(scored) and None not in confidence_of(scored)
    return known and bool(all_probabilities(scored))


def distributions(scored: Scored) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of the votes and the probabilities of each label [N, C], [N, C].

    Probabilities have the digits of prediction files.
    """
    sides = [example.shares() for example in scored.examples], all_probabilities(scored)
    names = list(dict.fromkeys(name for side in sides for each in side for name in each))
    places = dict.fromkeys(canonical_names(names))
    column = dict(zip(names, map(list(places).index, canonical_names(names)), strict=True))
    tables = np.zeros((2, len(scored), len(places)))
    for table, side in zip(tables, sides, strict=True):
        for row, each in zip(table, side, strict=True):
            for name, value in each.items():
                row[column[name]] += value
    rounded = np.round(tables[1], 6)
    sums = np.broadcast_to(rounded.sum(-1, keepdims=True), rounded.shape)
    return tables[0], ratio(rounded, sums)


def _entropies(rows: np.ndarray) -> np.ndarray:
    logs = np.log(rows, out=np.zeros_like(rows), where=rows > 0)
    found: np.ndarray = 0.0 - (rows * logs).sum(-1)
    return found


def _means(values: np.ndarray) -> np.ndarray:
    return np.column_stack([values, np.ones(len(values))])


def soft_cross_entropies(scored: Scored) -> np.ndarray:
    """Return the cross entropy of the probabilities against the votes in nats, and 1 [N, 2].

    A probability below 1e-6 counts as this, the least of prediction files that is not 0.
    """
    shares, probabilities = distributions(scored)
    return _means(0.0 - (shares * np.log(np.maximum(probabilities, 1e-6))).sum(-1))


def divergences(scored: Scored) -> np.ndarray:
    """Return the Jensen-Shannon divergence of votes and probabilities in bits, and 1 [N, 2].

    It is 0 for equal distributions, and 1 for those without a common label (Lin 1991).
    """
    sides = distributions(scored)
    both = _entropies((sides[0] + sides[1]) / 2)
    return _means((both - sum(map(_entropies, sides)) / 2).clip(0) / math.log(2))


def majority_shares(scored: Scored) -> np.ndarray:
    """Return the share of the majority in the votes of a text, and 1; 0, 0 without votes [N, 2]."""
    votes = [example.votes for example in scored.examples]
    return np.array([(0, 0) if each is None else (agreement(each)[1], 1) for each in votes])


def entropies_of_votes(scored: Scored) -> np.ndarray:
    """Return the entropy of the votes in nats, and 1 [N, 2]: the least soft cross entropy."""
    shares = [np.array([list(example.shares().values())]) for example in scored.examples]
    return _means(np.concatenate([_entropies(each) for each in shares]))


def by_agreement(examples: Sequence[TextExample]) -> Grouping:
    """Return the grouping of texts by the agreement of their annotators."""
    names = ("unanimous", "majority", "tied", "without votes")
    groups = [[names[3] if each.votes is None else agreement(each.votes)[0]] for each in examples]
    return right_by_group(groups, names, "texts", single=True)


def cost_counts(scored: Scored) -> np.ndarray:
    """Return the cost of each prediction, and 1 [N, 2].

    A text without a label, as a blank one, costs as much as the dearest label.
    """
    costs = [
        scored.costs[gold].get(predicted, max(scored.costs[gold].values()))
        for gold, predicted in scored.sides
    ]
    return np.column_stack([costs, np.ones(len(costs))])


class Label(_OfLabels):
    """One label for each text.

    Averages equal scikit-learn's, over the labels that occur. Two labels also have the ``f1`` of
    the positive class. Texts with votes of annotators also have scores against their distribution
    (Uma, Fornaciari, Hovy, Paun, Plank & Poesio 2021, "Learning from Disagreement: A Survey"), with
    what bounds them: ``agreement``, the expected accuracy of one vote, and ``votes_entropy``.
    """

    name = key = "label"
    wording = Wording("a label", "text", "labels")
    metrics: ClassVar = {
        "accuracy": Metric(item_counts, recall),
        "macro_f1": Metric(class_counts, macro_f1, by_class=True),
        "weighted_f1": Metric(class_counts, weighted_f1, by_class=True),
        "matthews": Metric(class_counts, matthews, by_class=True),
        "f1": Metric(positive_counts, f1, lambda scored: scored.positive is not None),
        "micro_f1": Metric(item_counts, f1, reported=False),
        "mean_cost": Metric(cost_counts, mean, lambda scored: bool(scored.costs)),
        "ece": expected_calibration_error(),
        "soft_cross_entropy": Metric(soft_cross_entropies, mean, has_distributions),
        "jensen_shannon": Metric(divergences, mean, has_distributions),
        "agreement": Metric(majority_shares, mean, has_votes),
        "votes_entropy": Metric(entropies_of_votes, mean, has_votes),
    }
    default = "accuracy"
    named = (("{}", False),)
    takes_thresholds = one_class = True
    classes = "label"
    pairs_of_labels = True

    def pair(
        self,
        gold: Sequence[Any],
        predicted: Sequence[Any],
        *,
        positive: str | None = None,
        **facts: Any,
    ) -> Scored:
        """Return gold and predicted labels; of two labels with the positive one."""
        scored = super().pair(gold, predicted, **facts)
        names = scored.labels or scored.names
        if positive is None and len(names) == 2:
            positive = positive_label(names, Counter(gold))
        return replace(scored, positive=positive)

    def items(self, scored: Scored, strict: bool = False) -> tuple[Items, Items, Items]:
        """Return the label of each text; a blank text has none."""
        correct = [(gold,) if gold == label else () for gold, label in scored.sides]
        predicted = [() if label == NO_LABEL else (label,) for label in scored.predicted]
        return correct, predicted, list(zip(scored.gold))

    def name_of(self, predicted: str) -> str:
        """Return the label."""
        return predicted

    def confusions(self, scored: Scored) -> Counter[tuple[str, str]]:
        """Count the pairs of labels."""
        return Counter(scored.sides)

    def groupings(
        self, scored: Scored, vocabulary: TrainingVocabulary | None
    ) -> dict[str, Grouping]:
        """Divide texts by length, and by the agreement of their annotators if they have votes."""
        if not scored.examples:
            return {}
        found = {"text length": right_by_group(*by_length(scored.examples), "texts", single=True)}
        return found | ({"votes": by_agreement(scored.examples)} if has_votes(scored) else {})

    def scores_of_tables(
        self, scores: Mapping[str, float], tables: Mapping[str, Table]
    ) -> dict[str, float]:
        """Return the micro average, which is the accuracy where each text has one label."""
        return {"micro_f1": scores["accuracy"]}

    def uncertainty(self, prediction: TextPrediction) -> float | None:
        """Return 1 less the margin between the two best labels (Scheffer et al. 2001)."""
        if prediction.scores is None or prediction.label is None:
            return None
        values = sorted(prediction.scores.values(), reverse=True)
        return 1 - (values[0] - values[1]) if len(values) > 1 else 0.0

    def mistakes(self, scored: Scored) -> Iterator[tuple[int, Mistake]]:
        """Yield every wrong label; the category names the gold and the predicted label."""
        rows = zip(scored.sides, confidence_of(scored), strict=True)
        for index, ((gold, label), sure) in enumerate(rows):
            if gold != label:
                yield index, Mistake(f"{gold} taken for {label}", gold, label, sure)

    def doubts(self, scored: Scored) -> Iterator[tuple[int, Mistake]] | None:
        """Yield the texts whose gold label may be wrong, the most confident prediction first.

        There are none (``probable_label_errors``) if texts have probabilities of different labels,
        or lack the probability of a gold label.
        """
        known = all_probabilities(scored)
        return _contradictions(scored, known) if known else None

    def shown(self, scored: Scored, index: int, mistakes: Sequence[Any]) -> Shown:
        """Return both labels and the most probable ones."""
        gold, label = scored.gold[index], scored.predicted[index]
        sure = mistakes[0].confidence if gold != label else None
        return Shown([gold], [label], _most_probable(scored.predictions[index]), sure)


def _contradictions(
    scored: Scored, known: Sequence[Mapping[str, float]]
) -> Iterator[tuple[int, Mistake]]:
    names = sorted(known[0])
    if any({*each} != {*names} for each in known) or not {*scored.gold} <= {*names}:
        return
    table = np.array([[each[name] for name in names] for each in known])
    classes = np.array([names.index(name) for name in scored.gold], dtype=int)
    for i, j in probable_label_errors(table, classes):
        yield i, Mistake("contradicts gold", scored.gold[i], names[j], float(table[i, j]))


# --- Several labels -------------------------------------------------------------------------------


def set_class_counts(scored: Scored) -> np.ndarray:
    """Return the ``class_counts``, and 1 for the labels of the model [N, C, 4].

    Averages include all of these, as in scikit-learn.
    """
    counts = class_counts(scored)
    of_model = np.isin(scored.names, scored.labels).astype(np.int64)[:, None]
    ones = np.broadcast_to(of_model, (*counts.shape[:2], 1))
    return np.concatenate([counts, ones], axis=-1)


def label_set_counts(scored: Scored) -> np.ndarray:
    """Return for each label set whether it is exactly right, and 1 [N, 2]."""
    equal = [set(gold) == set(predicted) for gold, predicted in scored.sides]
    return np.column_stack([np.array(equal, dtype=np.int64), np.ones(len(equal), dtype=np.int64)])


def hamming_counts(scored: Scored) -> np.ndarray:
    """Return the wrong decisions of each example, 1, and the labels that occur [N, 2 + C]."""
    counts = set_class_counts(scored)
    wrong = (counts[..., 1] + counts[..., 2] - 2 * counts[..., 0]).sum(axis=-1)
    return np.column_stack([wrong, np.ones_like(wrong), counts[..., 1:].sum(axis=-1)])


def hamming_loss(sums: np.ndarray) -> np.ndarray:
    """Return the fraction of wrong decisions [..., 2 + C] -> [...] (Tsoumakas & Katakis 2007)."""
    return ratio(sums[..., 0], sums[..., 1] * (sums[..., 2:] > 0).sum(axis=-1))


class Labels(_OfLabels):
    """Any number of labels for each text; averages equal scikit-learn's, over all labels."""

    name = "labels"
    wording = Wording("sets of labels", "text", "labels that may apply")
    metrics: ClassVar = {
        "micro_f1": Metric(item_counts, f1),
        "macro_f1": Metric(set_class_counts, macro_f1, by_class=True),
        "weighted_f1": Metric(set_class_counts, weighted_f1, by_class=True),
        "subset_accuracy": Metric(label_set_counts, mean),
        "hamming_loss": Metric(hamming_counts, hamming_loss, by_class=True),
        "ece": expected_calibration_error(),
    }
    default = "micro_f1"
    named = (("{}", False),)
    takes_thresholds = True
    classes = "label"

    def uncertainty(self, prediction: TextPrediction) -> float | None:
        """Return the mean of 1 - |2p - 1| over labels."""
        if prediction.scores is None:
            return None
        return float(np.mean([1 - abs(2 * p - 1) for p in prediction.scores.values()]))

    def confidences(self, scored: Scored) -> list[list[tuple[float, bool]]] | None:
        """Return the probability of every label, and whether gold has it."""
        rows = zip(all_probabilities(scored), scored.gold, strict=False)
        found = [[(p, name in gold) for name, p in known.items()] for known, gold in rows]
        return found if any(found) else None

    def rated(self, scored: Scored) -> list[list[Answer]]:
        """Return the predicted labels of each text."""
        return [
            [
                Answer(p.scores.get(name, math.nan), name in gold, name)
                for name in predicted
                if p.scores
            ]
            for p, (gold, predicted) in zip(scored.predictions, scored.sides, strict=True)
        ]

    def mistakes(self, scored: Scored) -> Iterator[tuple[int, Mistake]]:
        """Yield every label of a text that was missed or is a false positive."""
        known = all_probabilities(scored) or [{}] * len(scored)
        for index, (gold, predicted) in enumerate(scored.sides):
            for name in sorted({*gold} ^ {*predicted}):
                p = known[index].get(name)
                if name not in gold:
                    yield index, Mistake("false positive", None, name, p)
                else:
                    yield index, Mistake("miss", name, None, None if p is None else 1 - p)

    def shown(self, scored: Scored, index: int, mistakes: Sequence[Any]) -> Shown:
        """Return both sets and the most probable labels."""
        known = _most_probable(scored.predictions[index])
        return Shown(scored.gold[index], scored.predicted[index], known)


# --- Numbers --------------------------------------------------------------------------------------


def squared_errors(scored: Scored) -> np.ndarray:
    """Return the squared error of each number, and 1 [N, 2]."""
    difference = np.asarray(scored.gold) - np.asarray(scored.predicted)
    return np.column_stack([difference * difference, np.ones(len(difference))])


def moments(scored: Scored) -> np.ndarray:
    """Return the moments of gold x and predicted y: xy, x, y, xx, yy, 1 [N, 6].

    Both sides are centered and scaled, by the values of all runs: no square underflows.
    """
    x = _centered(scored.gold, scored.gold)
    y = _centered(scored.predicted, scored.scale)
    return np.column_stack([x * y, x, y, x * x, y * y, np.ones(len(x))])


def _centered(values: Sequence[float], all_values: Sequence[float]) -> np.ndarray:
    if len(set(all_values)) < 2:
        return np.zeros(len(values))
    mean = math.fsum(all_values) / len(all_values)
    return (np.asarray(values) - mean) / (np.abs(np.asarray(all_values) - mean).max() or 1.0)


def rank_moments(scored: Scored) -> np.ndarray:
    """Return the ``moments`` of ranks. In a resample ranks change: see ``significance.Counts``."""
    one = np.ones((1, len(scored)))
    gold, predicted = (weighted_ranks(side, one)[0] for side in (scored.gold, scored.predicted))
    return moments(Scored(NUMBER, gold, predicted, scale=predicted))


def correlation(sums: np.ndarray) -> np.ndarray:
    """Return the Pearson correlation from ``moments`` [..., 6] -> [...], 0 for a constant side."""
    xy, x, y, xx, yy, n = np.moveaxis(sums, -1, 0)
    deviations = []
    for total, squares in ((x, xx), (y, yy)):
        spread = squares - ratio(total * total, n)
        rounding = 1e-13 * squares  # a constant side leaves no more than this
        deviations.append(np.sqrt(np.where(spread > rounding, spread, 0.0)))
    return ratio(xy - ratio(x * y, n), deviations[0] * deviations[1]).clip(-1.0, 1.0)


class Number(_OfLabels):
    """A number for each text.

    Ties share their mean rank, as in scipy. The correlation with a constant is 0.0.
    """

    name = "number"
    wording = Wording("numbers", "text")
    metrics: ClassVar = {
        "pearson": Metric(moments, correlation),
        "spearman": Metric(rank_moments, correlation),
        "mse": Metric(squared_errors, mean),
        "pearson_all": Metric(moments, correlation, reported=False),
        "spearman_all": Metric(rank_moments, correlation, reported=False),
    }
    default = "pearson"
    has_categories = False

    def pair(self, gold: Sequence[Any], predicted: Sequence[Any], **facts: Any) -> Scored:
        """Return gold and predicted numbers, which must be finite."""
        scored = super().pair(gold, predicted, **facts)
        numbers = [np.array(side, dtype=np.float64) for side in (gold, predicted)]
        for name, side in zip(("gold", "predicted"), numbers, strict=True):
            for index in np.flatnonzero(~np.isfinite(side)):
                raise UserError(
                    f"{name} value {index} is {side[index]}: only finite numbers have a score"
                )
        gold, predicted = (side.tolist() for side in numbers)
        return replace(scored, gold=gold, predicted=predicted, scale=predicted)

    def mistakes(self, scored: Scored) -> Iterator[tuple[int, Mistake]]:
        """Yield all texts, the largest error first."""
        found = [(i, Mistake("error", *sides)) for i, sides in enumerate(scored.sides)]
        yield from sorted(found, key=lambda each: -abs(each[1].gold - each[1].predicted))

    def shown(self, scored: Scored, index: int, mistakes: Sequence[Any]) -> Shown:
        """Return both numbers and their distance."""
        gold, predicted = scored.gold[index], scored.predicted[index]
        known = _most_probable(scored.predictions[index])
        return Shown([gold], [predicted], known, deviation=abs(gold - predicted))


def _as_numbers(run: Scored) -> Scored:
    values = [float(example.label) for example in run.examples]
    facts: dict[str, Any] = {"examples": run.examples, "predictions": run.predictions, "by": run.by}
    return NUMBER.pair(values, [float(each.label) for each in run.predictions], **facts)


LABEL, LABELS, NUMBER = Label(), Labels(), Number()
