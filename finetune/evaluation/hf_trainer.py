"""This toolkit's scores in the Trainer of transformers.

>>> from transformers import Trainer  # doctest: +SKIP
>>> Trainer(model, compute_metrics=finetune.compute_metrics(labels))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from finetune.data.tag_schemes import detect_scheme
from finetune.evaluation.metrics import (
    classification_scores,
    multilabel_scores,
    regression_scores,
    tagging_scores,
)
from finetune.types import IGNORED, UserError


def compute_metrics(
    labels: Sequence[str], scheme: str | None = "auto"
) -> Callable[[Any], dict[str, float]]:
    """A function for ``Trainer(compute_metrics=…)``, from the label names in the model's order.

    What it scores follows from the arrays that the Trainer hands over. Tags: logits [N, L, C] (or
    classes [N, L]) against integers [N, L], where -100 marks positions that do not count; with gold
    on each word's first piece these are scores of words. One label: logits [N, C] against integers
    [N]. Several labels: logits [N, C] against zeros and ones as floats [N, C], with a probability
    of 0.5 as the threshold. A number: [N] or [N, 1] against floats [N]. Names of the scores are
    those of ``finetune score``; name one as ``metric_for_best_model``.

    ``scheme`` is that of the tags; ``auto`` takes it from the names of the labels (B and I are
    BIO), and None are tags that spell no spans. Raises ValueError for a scheme that does not fit,
    the function for arrays of other shapes.
    """
    names = list(labels)
    if scheme == "auto":
        scheme = _scheme_of(names)
    elif scheme is not None:
        tagging_scores([names], [names], scheme)  # refuses tags that are not in the scheme

    def compute(evaluated: Any) -> dict[str, float]:
        predictions, gold, *_ = evaluated  # an EvalPrediction, or a pair of arrays
        if isinstance(predictions, tuple):  # logits first, then what else the model answers
            predictions = predictions[0]
        return _scores(np.asarray(predictions), np.asarray(gold), names, scheme)

    return compute


def _scheme_of(names: Sequence[str]) -> str | None:
    scheme = detect_scheme([[name] for name in names])
    # alone, without the tags around it, an I- looks as if it began a span
    return "BIO" if scheme == "IOB1" else scheme


def _scores(
    answers: np.ndarray, gold: np.ndarray, names: Sequence[str], scheme: str | None
) -> dict[str, float]:
    classes = np.issubdtype(gold.dtype, np.integer)
    if classes and gold.ndim == 2 and answers.shape[:2] == gold.shape:
        if answers.ndim == 3:
            answers = _checked(answers, names).argmax(-1)
        return tagging_scores(*_tags(gold, answers, names), scheme)
    if classes and gold.ndim == 1 and answers.shape[:1] == gold.shape:
        if answers.ndim == 2:
            answers = _checked(answers, names).argmax(-1)
        sides = [[names[index] for index in side.tolist()] for side in (gold, answers)]
        return classification_scores(*sides, names)
    if not classes and gold.ndim == 2 and answers.shape == gold.shape:
        sides = [_sets(side, names) for side in (gold > 0.5, _checked(answers, names) >= 0)]
        return multilabel_scores(*sides, names)
    if not classes and gold.ndim == 1 and answers.size == gold.size:
        return regression_scores(gold.tolist(), answers.reshape(-1).tolist())
    raise UserError(
        f"predictions of shape {answers.shape} for labels of shape {gold.shape} and type "
        f"{gold.dtype}: expected tags [N, L], a label [N], labels as floats [N, C], or a number as "
        "float [N]."
    )


def _checked(logits: np.ndarray, names: Sequence[str]) -> np.ndarray:
    if logits.shape[-1] != len(names):
        raise UserError(
            f"the model has {logits.shape[-1]} classes, but compute_metrics was given "
            f"{len(names)} labels: give them all, in the order of the model's id2label."
        )
    return logits


def _tags(gold: np.ndarray, answers: np.ndarray, names: Sequence[str]) -> list[list[list[str]]]:
    """The tags of gold and answers for each sentence, at the positions that count."""
    return [
        [
            [names[index] for index in row[kept].tolist()]
            for row, kept in zip(side, gold != IGNORED, strict=True)
        ]
        for side in (gold, answers)
    ]


def _sets(applies: np.ndarray, names: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(n for n, yes in zip(names, row, strict=True) if yes) for row in applies.tolist()]
