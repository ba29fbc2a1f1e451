"""Whether files hold names, sets of names or numbers: values of whole lists decide.

As in training, whole numbers are names, unless gold or predictions have a decimal point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finetune.data import DataError
from finetune.data.labels import canonical_names
from finetune.evaluation.items import PredictionType, Tables, is_number
from finetune.evaluation.prediction_types.label import LABEL, NO_LABEL, label_value
from finetune.evaluation.prediction_types.labels import LABELS
from finetune.evaluation.prediction_types.number import NUMBER
from finetune.evaluation.prediction_types.texts import withheld
from finetune.types import TextPrediction, quantity

if TYPE_CHECKING:
    from finetune.evaluation.predictions import Gold, PredictionFile


def align(file: PredictionFile, gold: Gold, type: PredictionType) -> tuple[Tables, str]:
    """Return names, sets of names or numbers with gold, and what aligned them."""
    examples, predictions, by = file.parsed(gold, type)
    gold_labels: list[Any] = [example.label for example in examples]
    predicted = list(map(label_value, predictions))
    known = [label for label in predicted if label != NO_LABEL]
    blank = len(predicted) - len(known)
    if blank and known and all(map(is_number, known)) and _is_regression(gold_labels, known):
        raise DataError(
            f"{file.path}: {quantity(blank, 'text is', 'texts are')} blank, and so without a "
            "number: remove them from the data to score numbers."
        )
    facts: dict[str, Any] = {"examples": examples, "predictions": predictions}
    if any(isinstance(label, list | tuple) for label in (*predicted, *gold_labels)):
        sides = [[*map(_names, side)] for side in (gold_labels, predicted)]
        labels = _labels_of_model(predictions)
        return LABELS.of_values(*sides, labels=labels, **facts), by
    if all(map(is_number, predicted)) and _is_regression(gold_labels, predicted):
        try:
            values = [float(label) for label in gold_labels]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{gold.name}: its labels are not numbers ({error}), but the predictions are."
            ) from error
        return NUMBER.of_values(values, list(map(float, predicted)), **facts), by
    decimal = any(isinstance(x, float) and not x.is_integer() for x in gold_labels)
    if decimal and not any(_spells_number(str(label)) for label in predicted):
        raise DataError(
            f"{gold.name}: its labels are numbers, but the predictions are names such as "
            f"{predicted[0]!r}: the files do not belong together."
        )
    size, kept_back = len(gold_labels), withheld(predictions, len(predictions))
    pairs = zip(kept_back, predicted, strict=True)
    forced = [own if isinstance(own, str) else label for own, label in pairs]
    names = canonical_names(map(_name, (*gold_labels, *predicted, *forced)))  # all names or none
    pairs = zip(kept_back, names[2 * size :], strict=True)
    abstained = [name if isinstance(own, str) else None for own, name in pairs]
    predicted = names[size : 2 * size]
    return LABEL.of_values(names[:size], predicted, abstained=abstained, **facts), by


def unified(runs: list[Tables]) -> list[Tables]:
    """Return whole numbers, which are names, as numbers next to runs of other numbers."""
    numbers = all(is_number(p.label) for run in runs for p in run.predictions)
    if not numbers or {run.type for run in runs} != {LABEL, NUMBER}:
        return runs
    return [
        NUMBER.of_values(
            [float(example.label) for example in run.examples],
            [float(prediction.label) for prediction in run.predictions],
            examples=run.examples,
            predictions=run.predictions,
        )
        for run in runs
    ]


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
