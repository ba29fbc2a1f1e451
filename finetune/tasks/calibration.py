"""Values of a trained task that are fitted on the validation split: temperatures, thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from typing import Any

from finetune.config.values import numbers_by_label
from finetune.data import halves
from finetune.evaluation.prediction_types import TYPES
from finetune.tasks.base import Task
from finetune.types import UserError


def calibrate(
    task: Task, gold: Sequence[Any], predicted: Sequence[Any]
) -> tuple[Task, list[Any], str]:
    """Fit the values of a task on the validation split.

    Returns the new task, its predictions, and a note for the log.

    The predictions are cross-fitted: each half of the split has the values that were fitted on the
    other half, so that no example is scored with values fitted on it. Blank texts have none.
    """
    is_blank = [task.state.of_blank(example) is not None for example in gold]

    def fitted(indices: Sequence[int]) -> tuple[Task, str]:
        labeled = [n for n in indices if task.gold(gold[n]) is not None and not is_blank[n]]
        fields, note = task.fit([gold[n] for n in labeled], [predicted[n] for n in labeled])
        return replace(task, state=replace(task.state, **fields)), note

    predictions: list[Any] = list(predicted)
    for half, other_half in permutations(halves(gold)):
        of_other_half: Any = fitted(other_half)[0].state
        for index in half:
            if is_blank[index]:
                continue
            predictions[index] = of_other_half.decide(predicted[index])
    calibrated, note = fitted(range(len(gold)))
    note += "; each half of validation is scored with the value fitted on the other half"
    return calibrated, predictions, note


def with_threshold(
    task: Task, threshold: str | float | Mapping[str, float]
) -> tuple[Task, float | None]:
    """Give a task a threshold: one for all, or `NAME=P,NAME=P` by the name of a label.

    Returns:
        The task and None; or, if its predictions have no thresholds, the task and the probability
        below which its model abstains.

    Raises:
        UserError: The predictions have no probability, no label with a threshold has this name,
            or the thresholds are not from 0 to 1.
    """
    state: Any = task.state
    if labels := state.threshold_labels:
        thresholds = {**state.thresholds, **read_thresholds(threshold, labels)}
        return replace(task, state=replace(state, thresholds=thresholds)), None
    type = TYPES[state.prediction_type]
    if not type.wording.confidence:
        raise UserError(
            f"--threshold: predictions of `finetune {task.name}` have no probability: leave it out."
        )
    return task, _probability(threshold, " for all labels, which have no thresholds of their own")


def read_thresholds(
    setting: str | float | Mapping[str, float], labels: Sequence[str]
) -> dict[str, float]:
    """Read the thresholds of labels: one number for all, NAME=P,NAME=P, or a mapping."""
    if isinstance(setting, Mapping) or "=" in str(setting):
        return numbers_by_label("--threshold", setting, labels, 1)  # type: ignore[arg-type]
    return dict.fromkeys(labels, _probability(setting, f", or for instance {labels[0]}=0.3"))


def _probability(value: Any, more: str) -> float:
    with suppress(TypeError, ValueError):
        if 0 <= (number := float(value)) <= 1:
            return number
    raise UserError(f"--threshold {value}: write a number from 0 to 1{more}.")
