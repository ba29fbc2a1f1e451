"""Classification of texts and pairs of texts: one label, several labels, or a number.

The first token's vector represents the whole input and goes through the family's own classifier
head, y = softmax(W_C z_CLS) (Jurafsky & Martin, "Masked Language Models", sequence classification;
Devlin et al., 2019). A pair forms one sequence with a separator between its texts, unless
``pair_encoder`` reads its texts apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from finetune.config.tasks import TextConfig
from finetune.data import Dataset
from finetune.data.labels import with_standard_names
from finetune.data.text_labels import nli_label_order, prepare_texts
from finetune.evaluation.calibration import calibration_scores, fit_on_probabilities
from finetune.evaluation.positive import named_positive
from finetune.models.heads.pair_classifier import PairClassifier
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.models.heads.task_models import Problem
from finetune.preprocessing.encodings import FlatSequences, Ragged
from finetune.preprocessing.texts import TextSequences
from finetune.tasks.base import Task, labeled_model
from finetune.tasks.calibration import check_thresholds
from finetune.tasks.class_losses import (
    class_losses,
    label_losses,
    loss_targets,
    vote_losses,
)
from finetune.tasks.decoding import TextDecoder
from finetune.tasks.explained import Explained, ExplainedTexts
from finetune.tasks.soft_losses import SoftLoss, SoftTextLoss
from finetune.tasks.state import TaskState
from finetune.tasks.text_fields import derive_texts
from finetune.types import (
    Batch,
    TextExample,
    TextPrediction,
    TokenSequence,
    WindowOutput,
)

NUM_CODES = 16
"""Codes of a poly-encoder by default."""
CUSTOM_HEAD = (
    "the model reads the texts of a pair apart, which a graph of one sequence does not: use "
    "`finetune predict`, or train without --pair-encoder"
)
"""The reason why a model with a head of this project is not exported."""


@dataclass(frozen=True, kw_only=True)
class TextState(TaskState, TextDecoder):
    """The state of text classification; ``TextDecoder`` explains what decides predictions."""

    config: TextConfig
    problem: Problem
    class_weights: tuple[float, ...] | None = None
    class_frequencies: tuple[float, ...] | None = None
    """Fraction of the training examples with each label, for a loss that needs it."""
    votes: bool = False
    """True if the loss compares with the votes of annotators, who disagree on training texts."""
    positive: str | None = None
    temperature: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_thresholds(self.thresholds, self.threshold_labels)

    @property
    def threshold_labels(self) -> list[str]:
        """The labels that have a threshold: all of several, or the positive one of two."""
        if self.problem == "multi":
            return list(self.labels)
        return [] if self.positive is None else [self.positive]

    @property
    def kind(self) -> str:
        """The kind of predictions."""
        return {"single": "label", "multi": "labels", "regression": "number"}[self.problem]

    @property
    def long_text(self) -> str:
        """The treatment of whole texts that are too long."""
        return self.config.long_text

    @property
    def threshold(self) -> float:  # type: ignore[override]  # an attribute of what is restored
        """Lowest probability of a predicted label (several labels)."""
        return 0.5


class TextClassificationTask(Task):
    """One label, several labels or a number for each text or pair of texts."""

    state: TextState
    state_class = TextState
    reusable_head = SequenceClassifier
    gold = attrgetter("label")
    explained: ClassVar[type[Explained]] = ExplainedTexts
    soft_loss: ClassVar[type[SoftLoss] | None] = SoftTextLoss

    @classmethod
    def prepare(cls, config: TextConfig, data: Dataset) -> Dataset:
        """Drop rows without a label; convert all labels for the problem."""
        return prepare_texts(config, data)

    @classmethod
    def derive(cls, config: TextConfig, data: Dataset) -> dict[str, Any]:
        """Return the kind of problem, the labels in a fixed order, and the class weights."""
        return derive_texts(config, data)

    def complete(self, data: Dataset) -> Dataset:
        """Add a note on the positive class where its name does not tell it."""
        state, rare = self.state, self.state.positive
        if rare is None or state.config.positive or named_positive(state.labels):
            return data
        note = f"f1 scores {rare!r}, the rarer label in training; --positive names another"
        return replace(data, notes=[*data.notes, note])

    @property
    def graph_refusal(self) -> str:
        """The reason why an exported graph cannot replace the model; empty if it can."""
        return CUSTOM_HEAD if self.state.config.custom_head else ""

    @property
    def calibrated(self) -> bool:
        """True if a temperature is fitted."""
        return self.state.config.calibrate != "none"

    @cached_property
    def _text_sequences(self) -> TextSequences:
        state = self.state
        return TextSequences(
            self.tokenizer, state.max_length, state.config.long_text, state.overlap
        )

    def _sequences(self, examples: Sequence[TextExample]) -> tuple[list[list[TokenSequence]], int]:
        config = self.state.config
        if config.pair_encoder != "cross":
            encoded, num_cut = self._text_sequences.encode_apart(examples)
        else:
            encoded, num_cut = self._text_sequences.encode(examples)
        targets = [
            [replace(encoding, target=self._target(example, len(windows))) for encoding in windows]
            for example, windows in zip(examples, encoded, strict=True)
        ]
        return targets, num_cut

    def _target(self, example: TextExample, num_windows: int) -> dict[str, list[float]] | None:
        label, labels = example.label, self.state.labels
        if label is None:
            return None
        if self.state.problem == "regression":
            numbers = [float(label)]  # type: ignore[arg-type]
        elif self.state.problem == "multi":
            assert isinstance(label, tuple)
            numbers = [float(name in label) for name in labels]
        else:
            numbers = [labels.id(str(label), example.where)]
        target = {"label": numbers, "fraction": [1 / num_windows]}
        if self.state.votes:
            shares = example.shares()
            target["votes"] = [shares.get(name, 0.0) for name in labels]
        return target

    def _targets(
        self, rows: Mapping[str, Ragged], sequences: FlatSequences
    ) -> dict[str, torch.Tensor]:
        """Return ``label`` [N] or [N, C], ``weight`` [N] of the window, and ``loss_targets``.

        Of annotators who disagree, also the shares of their ``votes`` [N, C].
        """
        label = rows["label"].values
        if self.state.problem == "multi":
            label = label.reshape(-1, len(self.state.labels))
        elif self.state.problem == "single":
            label = label.astype(np.int64)
        targets = {"label": label, "weight": rows["fraction"].values}
        if self.state.votes:
            targets["votes"] = rows["votes"].values.reshape(len(label), -1)
        state = self.state
        return {name: torch.from_numpy(each) for name, each in targets.items()} | loss_targets(
            state.config,
            state.class_weights,
            state.class_frequencies,
            independent=state.problem == "multi",
        )

    def model(self, folder: str | Path | None = None) -> Any:
        """Make a new classifier on the configured encoder, or load one from a folder."""
        config = self.state.config
        if not config.custom_head:
            return labeled_model(
                self,
                SequenceClassifier.from_pretrained,
                folder,
                problem=self.state.problem,
                dropout=config.classifier_dropout,
            )
        return labeled_model(
            self,
            PairClassifier.from_pretrained,
            folder,
            kind=config.pair_encoder,
            num_codes=NUM_CODES,
            dropout=config.classifier_dropout or 0.0,
        )

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed loss of classes or labels, or squared error, of [N, C]."""
        label, weight = batch.targets["label"], batch.targets["weight"].to(logits.dtype)
        config = self.state.config
        if self.state.problem == "regression":
            losses = (logits[:, 0] - label.to(logits.dtype)) ** 2
        elif self.state.problem == "multi":
            losses = label_losses(config, logits, label, batch.targets).mean(1)
        elif self.state.votes:
            losses, of_votes = vote_losses(config, logits, batch.targets["votes"], batch.targets)
            return (losses * weight).sum(), (of_votes * weight).sum()
        else:
            losses, of_class = class_losses(config, logits, label, batch.targets)
            weight = weight * of_class
        return (losses * weight).sum(), weight.sum()

    def decode(self, logits: Any, batch: Batch) -> list[WindowOutput]:
        """Return the probabilities [C] of each sequence (regression: the number)."""
        rows = self.state.windows(logits.cpu().numpy())
        return batch.window_outputs(rows)

    def fit(
        self, gold: Sequence[TextExample], predicted: Sequence[TextPrediction]
    ) -> tuple[dict[str, Any], str]:
        """Fit a temperature to labels."""
        known = [index for index, example in enumerate(gold) if example.label is not None]
        temperature, note = fit_on_probabilities(
            self._probabilities([predicted[index] for index in known]),
            self._gold_classes([gold[index] for index in known]),
            self.state.problem == "multi",
        )
        return {"temperature": temperature}, note

    def apply_fitted(self, example: TextExample, prediction: TextPrediction) -> TextPrediction:
        """Apply the fitted values to a prediction."""
        return self.state.decide(example.id, self._probabilities([prediction])[0])

    def _probabilities(self, predicted: Sequence[TextPrediction]) -> np.ndarray:
        labels = self.state.labels
        rows = [[(p.scores or {})[name] for name in labels] for p in predicted]
        return np.array(rows).reshape(len(rows), len(labels))

    def _gold_classes(self, gold: Sequence[TextExample]) -> np.ndarray:
        labels = self.state.labels
        if self.state.problem == "multi":
            applies = [[name in (e.label or ()) for name in labels] for e in gold]  # type: ignore[operator]
            return np.array(applies, dtype=bool).reshape(len(gold), len(labels))
        return np.array([labels.id(str(e.label), e.where) for e in gold], dtype=int)

    def _score(
        self, gold: Sequence[TextExample], predicted: Sequence[TextPrediction], **facts: Any
    ) -> dict[str, float]:
        facts = {"labels": self.state.labels, "positive": self.state.positive}
        scores = super()._score(gold, predicted, **facts)
        if self.state.temperature is not None:
            scores |= self._calibration_errors(gold, predicted)
        return scores

    def _calibration_errors(
        self, gold: Sequence[TextExample], predicted: Sequence[TextPrediction]
    ) -> dict[str, float]:
        multi = self.state.problem == "multi"
        after, correct = self._probabilities(predicted), self._gold_classes(gold)
        before = self._probabilities([replace(p, scores=p.uncalibrated) for p in predicted])
        if not multi:
            best, rows = after.argmax(1), np.arange(len(after))
            correct, after, before = best == correct, after[rows, best], before[rows, best]
        return calibration_scores(*(side.ravel().tolist() for side in (correct, after, before)))


class NliTask(TextClassificationTask):
    """One label for each pair of texts."""

    @classmethod
    def prepare(cls, config: TextConfig, data: Dataset) -> Dataset:
        """Map label names to the standard ones if all are NLI labels; as for other texts."""
        return prepare_texts(config, with_standard_names(data))

    @classmethod
    def derive(cls, config: TextConfig, data: Dataset) -> dict[str, Any]:
        """Return the fields of the state, with the NLI labels in their order."""
        return derive_texts(config, data, nli_label_order)
