"""Labels of texts or pairs of texts: one, any number of them, or a number.

Averages equal scikit-learn's: of one label over the labels that occur, of several over all. Two
labels also have the ``f1`` of the positive class. Texts with votes of annotators also have the
``VOTE_METRICS``. Ties of numbers share their mean rank, as in scipy. The correlation with a
constant is 0.0.

The values of whole files decide the type. As in training, whole numbers are names, unless gold or
predictions have a decimal point.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, permutations
from operator import attrgetter
from typing import Any

import numpy as np

from finetune.config.values import finite_number
from finetune.data import DataError
from finetune.data.examples import Examples
from finetune.data.labels import agreement, canonical_names, convert_labels, read_votes
from finetune.data.texts import read_text_file
from finetune.evaluation import metrics
from finetune.evaluation.metrics import CLASS_METRICS, ECE, Items, Metric
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
from finetune.types import TextExample, TextPrediction, UserError, abbreviated, did_you_mean

NO_LABEL = ""
"""The prediction for a blank text: no gold label agrees with it, and it is no class."""
_NUMBERS = {int, float}
_NLI_INITIALS = {*"EeNnCc", ""}
"""The letters with which NLI labels begin, which have other spellings; a blank text has none."""


# --- Rows of files --------------------------------------------------------------------------------


def _read_gold(file: str, **reading: Any) -> Sequence[TextExample]:
    examples = Examples(read_text_file(file, **reading))
    return convert_labels({"gold": examples}, typed=False)[0]["gold"]


def text_of_row(index: int, where: str, row: Mapping[str, Any]) -> TextExample:
    """Read the text of a row with its gold."""
    label = None if row["gold"] == NO_LABEL else row["gold"]
    if not isinstance(label, str | None):
        label = _checked(where, "gold", label)
    text, pair = row.get("text", ""), row.get("text_pair")
    votes = read_votes(row["votes"], where) if "votes" in row else None
    where, key = row.get("where", where), row.get("id")
    return TextExample(index, text, pair, label, where, key, votes=votes)


def _parse(row: Mapping[str, Any], where: str, example: TextExample) -> TextPrediction:
    label = None if row["label"] == NO_LABEL else row["label"]
    if not isinstance(label, str | None):
        label = _checked(where, "label", label)
    scores, score = row.get("scores"), row.get("score")
    if label is None and row.get("withheld") is None:  # a blank text
        scores = score = None
    if isinstance(scores, dict):
        score = scores.get(str(label)) if score is None and label is not None else score
        scores = {name: metrics.probability(value, None) for name, value in scores.items()}
    has_all = isinstance(scores, dict) and None not in scores.values()
    return TextPrediction(
        example.id,
        label,
        metrics.probability(score, None),
        scores if has_all else None,
        row.get("positive_label"),
        separator=row.get("label_separator") or None,
        similarity=row.get("similarity"),
    )


def _checked(where: str, key: str, label: Any) -> Any:
    names = label if isinstance(label, list) else [label]
    if not all(isinstance(name, str | float | int) for name in names):
        raise wrong_value(where, key, "a name, a list of names or a number", label)
    return tuple(label) if isinstance(label, list) else label


def _as_files_say(tables: Tables) -> Tables:
    # names, several labels or numbers, as the values of both files say
    gold, predicted, predictions = tables.gold, tables.predicted, tables.predictions
    if any(isinstance(label, list | tuple) for label in (*predicted, *gold)):
        of_model = {tuple(p.scores) for p in predictions if p.scores is not None}
        labels = of_model.pop() if len(of_model) == 1 else ()
        gold, predicted = (list(map(_names, side)) for side in (gold, predicted))
        return replace(tables, type=LABELS, gold=gold, predicted=predicted, labels=labels)
    answers = [label for label in predicted if label != NO_LABEL]
    is_number = {*map(type, answers)} <= _NUMBERS and (answers or not predicted)
    if is_number and _is_regression(gold, answers):
        try:
            return replace(tables, type=NUMBER, gold=[float(label) for label in gold])
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{tables.files[1]}: its labels are not numbers ({error}), but the predictions are."
            ) from error
    if any(isinstance(x, float) and not x.is_integer() for x in gold):
        classes: Any = next((p.scores for p in predictions if p.scores), ())
        label_names = {NO_LABEL, *map(_name, gold), *map(str, classes)}
        if unknown := [label for label in predicted if str(label) not in label_names]:
            raise DataError(
                f"{tables.files[1]}: its labels are numbers, but the predictions are names such as "
                f"{unknown[0]!r}: the files do not belong together, or write numbers without "
                "quotes."
            )
    gold, predicted = (
        [label if isinstance(label, str) else _name(label) for label in side]
        for side in (gold, predicted)
    )
    return replace(tables, gold=gold, predicted=predicted)


def _with_usual_names(tables: Tables) -> Tables:
    # of NLI labels, if all names are such labels
    gold, predicted, predictions = tables.gold, tables.predicted, tables.predictions
    left_out = (prediction.decided.get("withheld") for prediction in predictions)
    abstained = (label for label in left_out if isinstance(label, str))
    classes: Any = next((p.scores for p in predictions if p.scores), ())
    names = {*gold, *predicted, *abstained, *classes} - {NO_LABEL}
    renamed = {NO_LABEL: NO_LABEL} | canonical_names(names)
    if all(name == standard for name, standard in renamed.items()):
        return tables
    gold, predicted = ([renamed[label] for label in side] for side in (gold, predicted))
    predictions = list(map(partial(_with_names, renamed=renamed), predictions))
    return replace(tables, gold=gold, predicted=predicted, predictions=predictions)


def _with_names(prediction: TextPrediction, renamed: Mapping[str, str]) -> TextPrediction:
    label, scores, decided = prediction.label, prediction.scores, dict(prediction.decided)
    if isinstance(decided.get("withheld"), str):
        decided["withheld"] = renamed[decided["withheld"]]
    label = renamed[label] if isinstance(label, str) else label
    scores = scores and {renamed.get(name, name): value for name, value in scores.items()}
    return replace(prediction, label=label, scores=scores, decided=decided)


def _is_regression(gold: Sequence[Any], predicted: Sequence[Any]) -> bool:
    is_whole = all(float(label).is_integer() for label in predicted)
    if not is_whole or any(isinstance(label, float) for label in gold):
        return True
    spelled = [label for label in map(str, gold) if finite_number(label) is not None]
    if len(spelled) == len(gold):
        return any("." in label for label in spelled)  # tables have all labels as text
    return not spelled


def _name(label: Any) -> str:
    if isinstance(label, bool):
        return str(label).lower()
    return f"{label:g}" if isinstance(label, float) else str(label)


def _names(label: Any) -> tuple[str, ...]:
    several = label if isinstance(label, list | tuple) else [label]
    return tuple(_name(name) for name in several if name != NO_LABEL)


OPPOSITES = frozenset(
    tuple(pair.split("/"))
    for pair in (
        "yes/no y/n true/false t/f positive/negative pos/neg 1/0 label_1/label_0 1/-1 +1/-1 +/-"
    ).split()
)
"""Pairs of labels in lower case; the first is positive."""


def positive_label(
    labels: Collection[str], counts: Mapping[str, int], chosen: str | None = None
) -> str:
    """Choose the positive class of two labels: ``chosen``, else by name, else the rarer.

    ``counts`` counts the gold labels. If both labels are equally frequent, the alphabetically last
    one is positive.

    >>> positive_label(["spam", "ham"], {"spam": 20, "ham": 80})
    'spam'

    Raises:
        UserError: There are not two labels, or ``chosen`` is not among them.
    """
    names = sorted(set(labels))
    if chosen is not None and chosen not in names:
        listed = " and ".join(map(repr, names))
        raise UserError(
            f"--positive {chosen}: the labels are {listed}.{did_you_mean(chosen, names)}"
        )
    if len(names) != 2:
        raise UserError(f"a positive class is one of two labels, not of {len(names)}.")
    rarest = min(reversed(names), key=lambda name: counts.get(name, 0))
    return chosen or named_positive(names) or rarest


def metric_title(name: str, positive: str | None) -> str:
    """Name a metric; ``f1`` of two labels with its class.

    >>> metric_title("f1", "spam")
    'f1 (spam)'
    """
    return f"{name} ({positive})" if name == "f1" and positive is not None else name


def named_positive(labels: Collection[str]) -> str | None:
    """Find the positive class of two labels by their names; None if these do not tell it.

    With X and its negation (not_X, non-X, unX, no X), X is positive: ``equivalent`` in MRPC and
    ``duplicate`` in QQP, as GLUE computes F1 (Wang et al. 2018). With a pair of ``OPPOSITES``, the
    first label is positive.

    >>> named_positive(["not_equivalent", "equivalent"])
    'equivalent'
    """
    for label, other in permutations(labels):
        name, negated = label.strip().casefold(), other.strip().casefold()
        negation = rf"(not|non|un|no)[-_ ]*{re.escape(name)}"
        if (name, negated) in OPPOSITES or (name and re.fullmatch(negation, negated)):
            return label
    return None


def all_as_numbers(runs: list[Tables]) -> list[Tables]:
    """Read whole numbers, which are names, as numbers if other runs have other numbers."""
    labels = (prediction.label for run in runs for prediction in run.predictions)
    if {run.type for run in runs} != {LABEL, NUMBER} or not {*map(type, labels)} <= _NUMBERS:
        return runs
    numbers = []
    for run in runs:
        fields = {name: getattr(run, name) for name in ("files", "aligned_by", "num_without_gold")}
        numbers.append(NUMBER.tables_of(run.examples, run.predictions, **fields))
    return numbers


def choose_positive(runs: Sequence[Tables], chosen: str | None) -> tuple[str | None, str]:
    """Choose the positive class of two labels for all runs, with a note if their gold decides.

    It is that of the user, who has ``chosen`` it, or of the model, else by name, else the rarer.
    """
    of_labels = runs if {run.type for run in runs} == {LABEL} else []
    labels = {name for run in of_labels for name in run.labels or run.names}
    saved = {p.positive for run in of_labels for p in run.predictions if p.positive is not None}
    several = not of_labels or len({*canonical_names([*labels, *saved]).values()}) > 2
    if chosen is not None and several:
        raise UserError(f"--positive {chosen}: it applies to texts with one of two labels.")
    if len(labels) != 2:
        positive = chosen or next(iter(saved), None)
        return (positive if len(labels) == 1 else None), ""
    of_runs = chosen or (next(iter(saved)) if len(saved) == 1 else "")
    name = canonical_names([*labels, of_runs])[of_runs]
    in_files = name if chosen or name in labels else None
    positive = positive_label(labels, Counter(runs[0].gold), in_files)
    note = f"f1 scores {positive!r}, the rarer label of gold; --positive names another."
    return positive, "" if in_files or named_positive(labels) else note


def positive_of(tables: Tables) -> str | None:
    """The positive class, whose F1 is ``f1``; None without one."""
    return tables.positive or choose_positive([tables], None)[0]


TEXT_LENGTHS = (1, 11, 26, 51, 101, 201)
"""The first value of each subgroup of lengths in words."""


def num_words(example: TextExample) -> int:
    """The length of a text, or of both texts of a pair, in words."""
    return len(example.text.split()) + len((example.pair or "").split())


def by_length(tables: Tables, unit: str) -> Grouping:
    """Group texts, or pairs of texts, by length."""
    lengths = buckets(map(num_words, tables.examples), TEXT_LENGTHS)
    return right_by_group(tables.items, *lengths, unit)


_SHARED: dict[str, Any] = {
    "gold": attrgetter("label"),
    "parse": _parse,
    "read_gold": _read_gold,
    "gold_of_row": text_of_row,
}
WITHOUT_LABELS = (
    "no row has a label, and scores and thresholds need gold labels: add them to the data, or name "
    "their column with --columns label=NAME."
)


# --- Votes of annotators --------------------------------------------------------------------------


def _cross_entropies(tables: Tables, of_votes: bool) -> np.ndarray:
    # of the votes with themselves or with the probabilities
    sides = [tables.distributions, tables.distributions if of_votes else tables.all_probabilities]
    # in order, so that sums do not depend on the hashes of names
    names = canonical_names(dict.fromkeys(name for side in sides for row in side for name in row))
    columns = {name: index for index, name in enumerate(dict.fromkeys(names.values()))}
    votes, probabilities = np.zeros((2, len(tables), len(columns)))
    for array, side in zip((votes, probabilities), sides, strict=True):
        for row, values in zip(array, side, strict=True):
            for name, value in values.items():
                row[columns[names[name]]] += value
    if not of_votes:
        probabilities = np.round(probabilities, 6)  # the digits of prediction files
    sums = np.broadcast_to(probabilities.sum(-1, keepdims=True), probabilities.shape)
    # 1e-6 is the least probability of prediction files that is not 0
    logs = np.log(np.maximum(metrics.ratio(probabilities, sums), 1e-6))
    return metrics.means(0.0 - (votes * logs).sum(-1))


def _majority_shares(tables: Tables) -> np.ndarray:
    votes = (example.votes for example in tables.examples)
    return np.array([(agreement(of_text)[1], 1) if of_text else (0, 0) for of_text in votes])


VOTE_METRICS = {
    "soft_cross_entropy": Metric(
        partial(_cross_entropies, of_votes=False),
        metrics.mean,
        lambda tables: tables.distributions and tables.all_probabilities,
    ),
    "agreement": Metric(_majority_shares, metrics.mean, attrgetter("distributions")),
    "votes_entropy": Metric(
        partial(_cross_entropies, of_votes=True), metrics.mean, attrgetter("distributions")
    ),
}
"""The metrics of texts with votes (soft labels; Uma, Fornaciari, Hovy, Paun, Plank & Poesio 2021,
"Learning from Disagreement: A Survey"). What bounds the scores: ``agreement``, the expected
accuracy of one vote, and ``votes_entropy``."""


# --- Levels of labels -----------------------------------------------------------------------------
#
# Hierarchical precision, recall and F1 count a label such as ``sport/football`` together with its
# ancestors, the root left out, so that ``sport/tennis`` in its place is half right (Kiritchenko,
# Matwin & Famili 2005, "Functional Annotation of Genes Using Hierarchical Text Categorization";
# Kiritchenko, Matwin, Nock & Famili 2006).


def check_paths(labels: Collection[str], separator: str) -> None:
    """Raise UserError unless labels are paths with this separator."""
    empty = [label for label in labels if not all(map(str.strip, label.split(separator)))]
    if empty:
        raise UserError(
            f"--label-separator {separator}: the label {empty[0]!r} has an empty level: correct "
            "the label, or choose another separator."
        )
    if not any(separator in label for label in labels):
        raise UserError(
            f"--label-separator {separator}: no label has levels ({abbreviated(sorted(labels))}): "
            "leave it out, or name the separator of the labels."
        )


def _with_ancestors(labels: str | Collection[str], separator: str) -> set[str]:
    names = [labels] if isinstance(labels, str) else labels
    return {
        path
        for name in names
        if name  # a blank text has none
        for path in accumulate(name.split(separator), lambda *parts: separator.join(parts))
    }


def _ancestor_counts(tables: Tables) -> np.ndarray:
    with_ancestors = partial(_with_ancestors, separator=tables.separator or "")
    return metrics.set_counts(tables.gold, tables.predicted, with_ancestors)


HIERARCHICAL_METRICS = {
    f"hierarchical_{name}": Metric(_ancestor_counts, value, attrgetter("separator"))
    for name, value in metrics.RATES.items()
}
"""Precision, recall and F1 over labels and their ancestors: micro averages."""


def _level_counts(tables: Tables, metric: Metric, level: int) -> np.ndarray:
    separator = tables.separator or ""

    def cut(labels: Any) -> Any:
        if isinstance(labels, str):
            return separator.join(labels.split(separator)[:level])
        return tuple(dict.fromkeys(map(cut, labels)))

    sides = tables.gold, tables.predicted, tables.labels, tables.names
    gold, predicted, labels, names = (list(map(cut, side)) for side in sides)
    levels = tables.type.of_values(gold, predicted, labels=list(dict.fromkeys(labels)))
    return metric.counts(replace(levels, names=tuple(sorted({*levels.names, *names}))))


def _with_levels(tables: Tables, separator: str) -> Tables:
    # Adds the metrics of each level: those of labels that are cut after a level, where a label with
    # fewer levels stays as it is.
    names = {*tables.labels, *tables.items.gold, *tables.items.answer} - {None}
    of_type = tables.type.metrics
    levels = {
        f"{name}_level:{level + 1}": replace(
            of_type[name], counts=partial(_level_counts, metric=of_type[name], level=level + 1)
        )
        for level in range(1 + max(name.count(separator) for name in names))
        for name in (tables.type.default, "macro_f1")
    }
    return replace(tables, separator=separator, further_metrics=levels)


# --- One label ------------------------------------------------------------------------------------


def _cost_counts(tables: Tables) -> np.ndarray:
    # a text without a label, as a blank one, costs as much as the dearest label
    rows = zip((tables.costs[gold] for gold in tables.gold), tables.predicted, strict=True)
    costs = [of_gold.get(predicted, max(of_gold.values())) for of_gold, predicted in rows]
    return metrics.means(costs)


def _label_tables(tables: Tables) -> Tables:
    names = {*tables.gold, *tables.predicted}
    if None in names:
        answers = [NO_LABEL if label is None else label for label in tables.predicted]
        tables, names = replace(tables, predicted=answers), names - {None}
    if tables.files and {*map(type, names)} != {str}:
        tables = _as_files_say(tables)
        if tables.type is not LABEL:
            return tables.type.tables(tables)
        names = {*tables.gold, *tables.predicted}
    if tables.files and all(name.strip()[:1] in _NLI_INITIALS for name in names):
        tables = _with_usual_names(tables)
    gold, predicted, predictions = tables.gold, tables.predicted, tables.predictions
    items = Items.of(range(len(gold)), gold, predicted, predictions=predictions)
    labels = {*tables.labels, *items.gold, *items.answer} - {NO_LABEL}
    tables = replace(tables, items=items, names=tuple(sorted(labels)))
    if any(example.votes is not None for example in tables.examples):
        distributions = [example.label_distribution() for example in tables.examples]
        tables = replace(tables, distributions=distributions)
    separator = next((p.separator for p in predictions), tables.separator)
    return tables if separator is None else _with_levels(tables, separator)


LABEL = PredictionType(
    name="label",
    wording=Wording("a label", "text", "labels", WITHOUT_LABELS),
    metrics={
        "accuracy": Metric(metrics.item_counts, metrics.recall),
        **CLASS_METRICS,
        "f1": Metric(
            lambda tables: metrics.item_counts(tables, positive_of(tables)),
            metrics.f1,
            positive_of,
        ),
        "micro_f1": Metric(metrics.item_counts, metrics.f1, reported=False),
        "mean_cost": Metric(_cost_counts, metrics.mean, attrgetter("costs")),
        **ECE,
        **VOTE_METRICS,
        **HIERARCHICAL_METRICS,
    },
    default="accuracy",
    answer=attrgetter("label"),  # None for a blank text
    tables=_label_tables,
    groupings=lambda tables: {"text length": by_length(tables, "texts")},
    calibrated=lambda tables: tables.items.take(tables.items.predicted != NO_LABEL),
    classes=Classes("label", {"{}": metrics.item_counts}, confusions=True),
    one_class=True,
    **_SHARED,
)


def unpredicted_note(tables: Tables) -> str:
    """Say that no gold label is ever predicted, as where labels are spelled in another way."""
    if tables.type is not LABEL:
        return ""
    gold, predicted = sorted({*tables.gold}), sorted({*tables.predicted} - {NO_LABEL})
    if not predicted or not {*predicted}.isdisjoint(gold):
        return ""
    listed = f"{abbreviated(gold, 5)}; predicted are {abbreviated(predicted, 5)}"
    return f"No gold label is ever predicted: gold has {listed}."


# --- Several labels -------------------------------------------------------------------------------


def set_class_counts(tables: Tables) -> np.ndarray:
    """Compute the ``class_counts``, and 1 for the labels of the model [N, C, 4].

    Averages include all of these, as in scikit-learn.
    """
    counts = metrics.class_counts(tables)
    of_model = np.isin(tables.names, tables.labels).astype(np.int64)[:, None]
    ones = np.broadcast_to(of_model, (*counts.shape[:2], 1))
    return np.concatenate([counts, ones], axis=-1)


def _num_wrong(tables: Tables) -> np.ndarray:
    return np.bincount(tables.items.example[~tables.items.credit], minlength=len(tables))


def _hamming_counts(tables: Tables) -> np.ndarray:
    wrong = _num_wrong(tables)
    occurs = set_class_counts(tables)[..., 1:].sum(axis=-1)
    return np.column_stack([wrong, np.ones_like(wrong), occurs])


def _hamming_loss(sums: np.ndarray) -> np.ndarray:
    # the fraction of wrong decisions [..., 2 + C] -> [...] (Tsoumakas & Katakis 2007)
    return metrics.ratio(sums[..., 0], sums[..., 1] * (sums[..., 2:] > 0).sum(axis=-1))


def _with_label_items(tables: Tables) -> Tables:
    scores = [prediction.scores or {} for prediction in tables.predictions]
    items = metrics.set_items(tables.gold, tables.predicted, scores)
    if scores and all(prediction.scores is not None for prediction in tables.predictions):
        missed = np.array([label is None for label in items.predicted], bool)
        sides = zip(items.example[missed], items.gold[missed], strict=True)
        items.score[missed] = [1 - scores[index].get(label, math.nan) for index, label in sides]
    tables = replace(tables, items=items, names=metrics.item_names(items, tables.labels))
    separator = next((p.separator for p in tables.predictions), tables.separator)
    return tables if separator is None else _with_levels(tables, separator)


def _every_label(tables: Tables) -> Items:
    rows = list(enumerate(zip(tables.all_probabilities, tables.gold, strict=False)))
    flat = [(i, name, p, name in gold) for i, (row, gold) in rows for name, p in row.items()]
    example, names, scores, right = zip(*flat, strict=True) if flat else ((), (), (), ())
    return Items.of(example, names, names, scores, credit=np.array(right, bool))


LABELS = PredictionType(
    name="labels",
    wording=Wording("sets of labels", "text", "labels that may apply", WITHOUT_LABELS),
    metrics={
        "micro_f1": Metric(metrics.item_counts, metrics.f1),
        "macro_f1": Metric(set_class_counts, metrics.macro_f1),
        "weighted_f1": Metric(set_class_counts, metrics.weighted_f1),
        "subset_accuracy": Metric(
            lambda tables: metrics.means(_num_wrong(tables) == 0), metrics.mean
        ),
        "hamming_loss": Metric(_hamming_counts, _hamming_loss),
        **ECE,
        **HIERARCHICAL_METRICS,
    },
    default="micro_f1",
    tables=_with_label_items,
    calibrated=_every_label,
    classes=Classes("label", {"{}": metrics.item_counts}),
    **_SHARED,
)


# --- A number -------------------------------------------------------------------------------------


def _pairs(tables: Tables) -> np.ndarray:
    return np.array([tables.gold, tables.predicted], dtype=np.float64).T


def _on_scale_of_gold(tables: Tables) -> bool:
    return not any(prediction.similarity for prediction in tables.predictions)


def blank_without_number(example: TextExample) -> str:
    """The message of a blank text, which has no number to score."""
    return (
        f"{example.where}: the text is blank, and so without a number: remove it from the data to "
        "score numbers."
    )


def _as_numbers(tables: Tables) -> Tables:
    for example, number in zip(tables.examples, tables.predicted, strict=False):
        if number == NO_LABEL:
            raise DataError(blank_without_number(example))
    sides = [np.array(side, dtype=np.float64) for side in (tables.gold, tables.predicted)]
    for name, side in zip(("gold", "predicted"), sides, strict=True):
        for index in np.flatnonzero(~np.isfinite(side)):
            raise UserError(
                f"{name} value {index} is {side[index]}: only finite numbers have a score"
            )
    gold, predicted = (side.tolist() for side in sides)
    category, further = "error", dict[str, Metric]()
    if not _on_scale_of_gold(tables):  # their ranks are compared, as fractions
        category = "difference of ranks"
        for name, metric in NUMBER.metrics.items():
            if metric.weighted:  # cosines are reported by the names that `sentence` gives them
                further[name] = replace(metric, reported=name.endswith("_all"))
        weights = np.ones((1, len(gold)))
        sides = [metrics.weighted_ranks(side, weights)[0] / len(gold) for side in sides]
    deviation = np.abs(sides[0] - sides[1])
    nothing = np.zeros(len(gold), bool)  # no number is exactly right
    columns: Any = {"deviation": deviation, "category": np.full(len(gold), category, object)}
    items = Items.of(range(len(gold)), gold, predicted, credit=nothing, **columns)
    return replace(tables, gold=gold, predicted=predicted, items=items, further_metrics=further)


NUMBER = PredictionType(
    name="number",
    wording=Wording("numbers", "text", without_gold=WITHOUT_LABELS),
    metrics={
        "pearson": Metric(_pairs, metrics.pearson, weighted=True),
        "spearman": Metric(_pairs, metrics.spearman, weighted=True),
        "mse": Metric(
            lambda tables: metrics.means(tables.items.columns["deviation"] ** 2),
            metrics.mean,
            _on_scale_of_gold,
        ),
        "pearson_all": Metric(_pairs, metrics.pearson, reported=False, weighted=True),
        "spearman_all": Metric(_pairs, metrics.spearman, reported=False, weighted=True),
    },
    default="pearson",
    tables=_as_numbers,
    **_SHARED,
)
