"""The metrics of this toolkit in the Trainer of transformers.

>>> from transformers import Trainer  # doctest: +SKIP
>>> Trainer(model, compute_metrics=finetune.compute_metrics(labels))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import numpy as np

from finetune.data.tag_schemes import detect_scheme
from finetune.evaluation.prediction_types import scores_of
from finetune.evaluation.prediction_types.labels import positive_label
from finetune.types import IGNORED, LabelSet, UserError


def compute_metrics(
    labels: Sequence[str], scheme: str | None = "auto", positive: str | None = None
) -> Callable[[Any], dict[str, float]]:
    """Make a function for ``Trainer(compute_metrics=…)``.

    The shapes of the arrays decide which metrics it computes, with the names of ``finetune score``:
    logits [N, L, C] or classes [N, L] with integers [N, L] are tags (-100 does not count); logits
    [N, C] are a label with integers [N], several labels (threshold 0.5) with floats 0 and 1 [N, C];
    and [N] or [N, 1] with floats [N] are numbers.

    Args:
        labels: The label names, in the order of the model's classes.
        scheme: The scheme of the tags, None if they spell no spans; "auto": found from the labels.
        positive: The positive class of two labels, whose F1 is ``f1``; by default by name, else the
            rarer in gold.

    Raises:
        UserError: The scheme does not fit the labels; the function raises it for other shapes.
    """
    names = list(LabelSet(labels))
    if positive is not None:
        positive_label(names, {}, positive)  # raises for a label that is not among them
    if scheme == "auto":
        scheme = detect_scheme([[name] for name in names])
        if scheme == "IOB1":  # an I- without tags around it looks like IOB1
            scheme = "BIO"
    elif scheme is not None:
        # raises for tags that are not in it
        scores_of("tags", [names], [names], schemes=(scheme, None))

    def compute(evaluated: Any) -> dict[str, float]:
        predictions, gold, *_ = evaluated  # an EvalPrediction, or a pair of arrays
        if isinstance(predictions, tuple):  # logits first, then the other outputs of the model
            predictions = predictions[0]
        return _scores(np.asarray(predictions), np.asarray(gold), names, scheme, positive)

    return compute


def _scores(
    predicted: np.ndarray,
    gold: np.ndarray,
    names: Sequence[str],
    scheme: str | None,
    positive: str | None,
) -> dict[str, float]:
    are_classes, shape = np.issubdtype(gold.dtype, np.integer), predicted.shape
    if are_classes and shape[:-1] == gold.shape:
        predicted = _checked(predicted, names).argmax(-1)
    are_alike = np.issubdtype(predicted.dtype, np.integer if are_classes else np.floating)
    is_aligned = are_alike and predicted.shape == gold.shape
    if are_classes and is_aligned and gold.ndim == 2:
        tags = [
            [
                [names[index] for index in _classes(row[counts], names)]
                for row, counts in zip(side, gold != IGNORED, strict=True)
            ]
            for side in (gold, predicted)
        ]
        return scores_of("tags", *tags, schemes=(scheme, None))
    if are_classes and is_aligned and gold.ndim == 1:
        labels = [[names[index] for index in _classes(side, names)] for side in (gold, predicted)]
        return scores_of("label", *labels, labels=names, positive=positive)
    if not are_classes and is_aligned and gold.ndim == 2 and np.isin(gold, (0, 1)).all():
        sets = [
            [tuple(compress(names, row)) for row in side.tolist()]
            for side in (gold > 0.5, _checked(predicted, names) >= 0)
        ]
        return scores_of("labels", *sets, labels=names)
    if not are_classes and gold.ndim == 1 and predicted.size == gold.size:
        return scores_of("number", gold.tolist(), predicted.reshape(-1).tolist())
    raise UserError(
        f"predictions of shape {shape} for labels of shape {gold.shape} and type "
        f"{gold.dtype}: expected tags [N, L], a label [N], labels as floats 0 and 1 [N, C], or a "
        "number as float [N]; logits are floats, classes integers."
    )


def _classes(numbers: np.ndarray, names: Sequence[str]) -> list[int]:
    for number in numbers[(numbers < 0) | (numbers >= len(names))][:1].tolist():
        raise UserError(
            f"class {number} is none of the {len(names)} labels, which are numbered from 0: leave "
            f"out examples without gold; the {IGNORED} of a word without a tag alone is ignored."
        )
    classes: list[int] = numbers.tolist()
    return classes


def _checked(logits: np.ndarray, names: Sequence[str]) -> np.ndarray:
    if logits.shape[-1] != len(names):
        raise UserError(
            f"the model has {logits.shape[-1]} classes, but compute_metrics was given "
            f"{len(names)} labels: give them all, in the order of the model's id2label."
        )
    if np.isnan(logits).any():
        raise UserError("logits are NaN: lower the learning rate, or train in float32.")
    return logits
