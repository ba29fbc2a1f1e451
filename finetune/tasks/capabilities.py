"""Capabilities of tasks: small objects that a task has or has not.

``Task.capability`` finds the object by its class, and None if the task lacks it:

>>> task.capability(Distillable)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finetune.config.tasks import LabelConfig, named_strength
from finetune.data import halved
from finetune.preprocessing.encodings import Array, Encoded, Encodings, Ragged
from finetune.types import (
    Batch,
    Prediction,
    Sequences,
    TextPrediction,
    UserError,
    abbreviated,
    did_you_mean,
)

if TYPE_CHECKING:
    import torch

    from finetune.tasks.base import Gather, Task


class Calibrated(NamedTuple):
    """Result of a calibration: the new task, its predictions, and a note for the log."""

    task: Task
    predictions: Sequence[Prediction]
    note: str


@dataclass(frozen=True)
class Calibration:
    """A temperature or thresholds to fit on the validation split after training."""

    task: Any
    fit: Callable[[Sequence[Any], Sequence[Any]], tuple[dict[str, Any], str]]
    """Return fitted fields of the record for gold and predictions, and a note about them."""
    apply: Callable[[Any, Any], Any]
    """Apply the fitted values of the task to an example's prediction by an uncalibrated model."""

    def calibrate(self, gold: Sequence[Any], predicted: Sequence[Any]) -> Calibrated:
        """Fit the values on the validation split.

        The predictions are cross-fitted: each half of the split has the values that were fitted on
        the other half, so that no example is scored with values fitted on it.
        """
        task, note = self._fitted(gold, predicted)
        pairs = list(zip(gold, predicted, strict=True))
        halves = halved(gold)
        predictions: list[Any] = list(predicted)
        for half in (0, 1):
            others = [pair for pair, own in zip(pairs, halves, strict=True) if own != half]
            fitted, _ = self._fitted([e for e, _ in others], [p for _, p in others])
            apply = fitted.capability(Calibration).apply
            for index in [index for index, own in enumerate(halves) if own == half]:
                predictions[index] = apply(*pairs[index])
        note += "; each half of validation is scored with the value fitted on the other half"
        return Calibrated(task, predictions, note)

    def _fitted(self, gold: Sequence[Any], predicted: Sequence[Any]) -> tuple[Any, str]:
        fitted, note = self.fit(gold, predicted)
        return replace(self.task, record=replace(self.task.record, **fitted)), note


@dataclass(frozen=True)
class Thresholds:
    """Lowest probabilities of labels, which can be changed after training.

    The record of the task has the field ``thresholds``.
    """

    task: Any
    labels: Sequence[str]
    """The labels that have a threshold."""

    def changed(self, thresholds: str | float | Mapping[str, float]) -> Any:
        """Return the task with other thresholds: one for all labels, or `NAME=P,NAME=P`.

        Raises:
            UserError: The model has no such label, or the thresholds are not from 0 to 1.
        """
        record, given = self.task.record, read_thresholds(thresholds, self.labels)
        return replace(self.task, record=replace(record, thresholds={**record.thresholds, **given}))


@dataclass(frozen=True)
class EpochSequences:
    """Training sequences that differ between epochs."""

    make: Callable[[Encodings, int, int, Array | None], Encodings]
    """Return sequences as the model reads them: from all training sequences, the seed, the epoch,
    and the rows to return (None all)."""
    added_ids: Callable[[], Sequence[int]] = tuple
    """Return the ids of subwords that ``make`` adds."""
    encode: Callable[[Sequence[Any], Gather], Encoded] | None = None
    """Encode training examples, without what ``make`` adds; None uses ``Task.encode``."""


def sequences_of_epoch(
    task: Task, sequences: Encodings, seed: int, epoch: int, rows: Array | None = None
) -> Encodings:
    """Return training sequences as the model reads them in an epoch: some rows, or all."""
    if (of_epoch := task.capability(EpochSequences)) is not None:
        return of_epoch.make(sequences, seed, epoch, rows)
    return sequences if rows is None else sequences.take(rows)


@dataclass(frozen=True)
class BalancedSampling:
    """Drawing of rare classes more often (``--sampling``)."""

    strength: float
    """1 gives all classes the same share of an epoch, 0 keeps their frequencies."""
    classes: Callable[[Any], Collection[str]]
    """Return the classes of an example."""


def sampling_of(
    config: LabelConfig, classes: Callable[[Any], Collection[str]]
) -> Iterator[BalancedSampling]:
    """Yield the sampling of a task that predicts labels, if its settings ask for any."""
    if config.sampling != "none":
        _, strength = named_strength(config.sampling)
        yield BalancedSampling(1.0 if strength is None else strength, classes)


@dataclass(frozen=True)
class GroupedSequences:
    """A loss of a micro-batch that needs all sequences of an example: training keeps them together.

    An example of more than ``--max-tokens`` tokens is a micro-batch of its own.
    """


@dataclass(frozen=True)
class CoupledLoss:
    """A loss that depends on all sequences of an optimizer batch, in place of ``Task.loss``.

    The head returns a named tuple with ``vectors``, one row for each sequence.
    """

    loss: Callable[[Any, torch.Tensor, Sequences], tuple[torch.Tensor, torch.Tensor]]
    """Return the sum of the losses of an optimizer batch, and the number to divide it by, from the
    head, the vectors [N, H] and their sequences. Weights of the head that the loss uses itself are
    trained too."""


@dataclass(frozen=True)
class SeveralLosses:
    """K losses, each divided by its own count: ``Task.loss`` returns K sums and K numbers."""

    counts: Callable[[Batch], torch.Tensor]
    """Return the counts [K] for a batch on the CPU."""


@dataclass(frozen=True)
class FittedHead:
    """Weights of the head that are fitted to predictions for the training examples."""

    reader: Task
    """The task that predicts the input of ``fit``."""
    fit: Callable[[Any, Sequence[Any], Sequence[Any]], None]
    """Fit weights of the head in place, to gold and predictions, before each evaluation."""


@dataclass(frozen=True)
class Distillable:
    """Training on the outputs of a teacher."""

    soft_loss: Callable[[Any, torch.Tensor, Batch, float], torch.Tensor]
    """Return the sum of the losses of a batch against the logits of a teacher, from the logits, the
    teacher's, the batch and the temperature.

    It is to be divided by the number of words, or of sequences of texts. For a CRF the logits are
    the emissions, with the rest of the teacher's scores in the targets of the batch."""
    num_logits: Callable[[Encodings], Array]
    """Return the number of rows of the logits of each sequence: [N]."""
    targets_without_gold: Callable[[Encodings], Mapping[str, Ragged]]
    """Return targets of sequences without gold, which add nothing to the loss."""
    per_subword: bool = False
    """Whether a word has a row of logits for each of its subwords."""


def one_row(sequences: Encodings) -> Array:
    """Return the number of rows of the logits of each sequence: one."""
    return np.ones(len(sequences), dtype=np.int64)


@dataclass(frozen=True)
class Export:
    """An exported graph that predicts in place of the model."""

    decoder: Any = None
    """Makes predictions from logits without torch (``finetune.tasks.decoding``)."""
    long_text: str | None = None
    """What is done with whole texts that are too long; None for words."""
    refusal: str = ""
    """Why a graph cannot replace this model; empty if it can."""


@dataclass(frozen=True)
class ComparedValues:
    """Gold and predictions in the form that metrics of users compare."""

    gold: Callable[[Any], Any]
    """Return the gold of an example, None if it has none."""
    predicted: Callable[[Any], Any]
    """Return what a prediction says about gold."""

    def values(
        self, gold: Sequence[Any], predicted: Sequence[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return gold, predictions and the probabilities of labels.

        Examples without gold are left out. Probabilities are None if a task has none.
        """
        pairs = [
            pair for pair in zip(gold, predicted, strict=True) if self.gold(pair[0]) is not None
        ]
        return (
            [self.gold(example) for example, _ in pairs],
            [self.predicted(prediction) for _, prediction in pairs],
            [p.scores if isinstance(p, TextPrediction) else None for _, p in pairs],
        )


@dataclass(frozen=True)
class BlankPredictions:
    """Predictions of examples without text, which the model does not read."""

    predict: Callable[[Any], Prediction | None]
    """Return the empty prediction of an example without text; None for other examples."""


@dataclass(frozen=True)
class TextVectors:
    """Vectors of whole texts, as the model was trained to make them."""

    limited: Callable[[int, int | None], Task]
    """Return the task with another --max-length and --max-tokens."""


def read_thresholds(
    given: str | float | Mapping[str, float], labels: Sequence[str]
) -> dict[str, float]:
    """Return the threshold of each label that is given one: one number for all, or NAME=P."""
    items: Any = given
    if isinstance(given, str) and "=" in given:
        items = {name: value for name, _, value in (i.rpartition("=") for i in given.split(","))}
    elif not isinstance(given, Mapping):
        items = dict.fromkeys(labels, given)
    found = {}
    for name, value in items.items():
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise UserError(
                f"--threshold {given!r}: write a number, or for instance {labels[0]}=0.3."
            ) from None
    check_thresholds(found, labels)
    return found


def check_thresholds(thresholds: Mapping[str, float], labels: Sequence[str]) -> None:
    """Raise UserError for a label that has no threshold, or one that is not a probability."""
    for name, value in thresholds.items():
        if name not in labels:
            raise UserError(
                f"--threshold: {name!r} has none; legal are {abbreviated(labels)}."
                f"{did_you_mean(name, labels)}"
            )
        if not 0 <= value <= 1:
            raise UserError(f"--threshold {name}={value:g}: it must be from 0 to 1.")
