"""Classification of texts and pairs of texts: one label, several labels, or a number.

The first token's vector represents the whole input and goes through the family's own classifier
head, y = softmax(W_C z_CLS) (Jurafsky & Martin, "Masked Language Models", sequence classification;
Devlin et al., 2019). A pair forms one sequence with a separator between its texts, unless
``pair_encoder`` reads its texts apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finetune.config.tasks import ClassifyConfig, TextConfig
from finetune.data import DataError, Dataset
from finetune.data.labels import voted_names, with_standard_names
from finetune.evaluation.calibration import fit_on_probabilities
from finetune.evaluation.prediction_types.labels import (
    blank_without_number,
    check_paths,
    named_positive,
    positive_label,
)
from finetune.models.heads.pair_classifier import PairClassifier
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.models.heads.task_models import Problem
from finetune.preprocessing.encodings import FlatSequences
from finetune.preprocessing.text_labels import (
    check_text_settings,
    label_order,
    names_of,
    nli_label_order,
    prepare_texts,
    problem_of,
)
from finetune.preprocessing.texts import encode_apart, encode_texts
from finetune.tasks.base import Fitted, Scores, SequencesOfExamples, Task, Windows, WindowTargets
from finetune.tasks.calibration import read_thresholds
from finetune.tasks.class_losses import (
    class_losses,
    class_shift,
    class_weights,
    label_losses,
    loss_targets,
    vote_losses,
)
from finetune.tasks.decoding import TextDecoder
from finetune.tasks.state import TaskState
from finetune.types import Batch, LabelSet, TextExample, TextPrediction

NUM_CODES = 16
"""Codes of a poly-encoder by default."""


@dataclass(frozen=True, kw_only=True)
class TextState(TaskState, TextDecoder):
    """The state of text classification; ``TextDecoder`` explains what decides predictions."""

    config: TextConfig
    problem: Problem
    class_weights: tuple[float, ...] | None = None
    class_shift: tuple[float, ...] | None = None
    """What logit adjustment adds to the logits."""
    votes: bool = False
    """True if the loss compares with the votes of annotators, who disagree on training texts."""
    positive: str | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        read_thresholds(self.thresholds, self.threshold_labels)

    @property
    def threshold_labels(self) -> list[str]:
        """The labels that have a threshold: all of several, or the positive one of two."""
        if self.problem == "multi":
            return list(self.labels)
        return [] if self.positive is None else [self.positive]

    @property
    def prediction_type(self) -> str:
        return {"single": "label", "multi": "labels", "regression": "number"}[self.problem]

    @property
    def long_text(self) -> str:
        return self.config.long_text

    @property
    def separator(self) -> str | None:  # type: ignore[override]  # an attribute of what is restored
        """The separator of the levels of labels; None for labels without levels."""
        return self.config.label_separator if isinstance(self.config, ClassifyConfig) else None


class TextClassificationTask(Task):
    """One label, several labels or a number for each text or pair of texts."""

    state: TextState
    state_class = TextState
    reusable_head = SequenceClassifier

    @classmethod
    def prepare(cls, config: TextConfig, data: Dataset) -> Dataset:
        return prepare_texts(config, data)

    @classmethod
    def derive(cls, config: TextConfig, data: Dataset) -> dict[str, Any]:
        """Derive the problem, the labels in a fixed order, and the class weights."""
        problem = problem_of(config, data)
        check_text_settings(config, problem, data)
        train = data.splits["train"]
        are_pairs = {pair is not None for pair in train.column("pair")}
        fields = {"problem": problem, "pairs": are_pairs.pop() if len(are_pairs) == 1 else None}
        if problem == "regression":
            return {**fields, "labels": LabelSet(["score"])}
        counts = Counter(chain.from_iterable(map(names_of, train.column("label"))))
        votes = any(len(v or ()) > 1 for v in train.column("votes"))
        names = {*counts} | (voted_names([train]) if votes else set())
        labels = LabelSet(cls._label_order(names, data.label_order))
        if isinstance(config, ClassifyConfig) and config.label_separator:
            check_paths(labels, config.label_separator)
        positive = config.positive
        if problem == "single" and len(labels) == 2:
            positive = positive_label(labels, counts, positive)
        weights = class_weights(config.class_weights, list(labels), counts, len(train), problem)
        return {
            **fields,
            "labels": labels,
            "class_weights": weights,
            "class_shift": class_shift(config, labels, counts, len(train), problem == "multi"),
            "positive": positive,
            "votes": votes,
        }

    _label_order = staticmethod(label_order)

    def complete(self, data: Dataset) -> Dataset:
        """Refuse blank texts without a number; add a note on a positive class by frequency."""
        state, rare = self.state, self.state.positive
        if state.problem == "regression":
            scored = chain.from_iterable(data.splits[split] for split in data.scored_splits)
            for example in scored:
                if state.of_blank(example) is not None:
                    raise DataError(blank_without_number(example))
        if rare is None or state.config.positive or named_positive(state.labels):
            return data
        note = f"f1 scores {rare!r}, the rarer label in training; --positive names another"
        return replace(data, notes=[*data.notes, note])

    def _sequences(self, examples: Sequence[TextExample]) -> SequencesOfExamples:
        limits = self.tokenizer, self.state.max_length
        if self.state.config.pair_encoder != "cross":
            return encode_apart(examples, *limits)
        return encode_texts(examples, *limits, self.state.config.long_text, self.state.overlap)

    def _window_targets(self, example: TextExample, windows: Windows) -> WindowTargets:
        label, labels = example.label, self.state.labels
        if self.state.problem == "regression":
            numbers = [float(label or 0.0)]  # type: ignore[arg-type]
        elif self.state.problem == "multi":
            numbers = [float(name in (label or ())) for name in labels]  # type: ignore[operator]
        else:
            numbers = [0 if label is None else labels.id(str(label), example.where)]
        target = {"label": numbers, "weight": [0.0 if label is None else 1 / len(windows)]}
        if self.state.votes:
            distribution = {} if label is None else example.label_distribution()
            target["votes"] = [distribution.get(name, 0.0) for name in labels]
        return [target] * len(windows)

    def _targets(self, sequences: FlatSequences) -> dict[str, torch.Tensor]:
        """``label`` [N] or [N, C], ``weight`` [N], ``votes`` [N, C], and ``loss_targets``."""
        state, targets = self.state, super()._targets(sequences)
        for name in ("votes", "label") if state.problem == "multi" else ("votes",):
            if name in targets:
                targets[name] = targets[name].reshape(-1, len(state.labels))
        return targets | loss_targets(state.class_weights, state.class_shift)

    def model(self, folder: str | Path | None = None) -> Any:
        config = self.state.config
        dropout = config.classifier_dropout
        if not config.description.custom_head(vars(config)):
            load, settings = SequenceClassifier.from_pretrained, {"problem": self.state.problem}
            return self._load(load, folder, dropout=dropout, **settings)
        return self._load(
            PairClassifier.from_pretrained,
            folder,
            kind=config.pair_encoder,
            num_codes=NUM_CODES,
            dropout=dropout or 0.0,
        )

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the summed loss of classes or labels, or squared error, of logits [N, C]."""
        config, targets, weights = self.state.config, batch.targets, torch.ones_like(logits[:, 0])
        if self.state.problem == "regression":
            losses = (logits[:, 0] - targets["label"].to(logits.dtype)) ** 2
        elif self.state.problem == "multi":
            losses = label_losses(config, logits, targets["label"], targets).mean(1)
        elif self.state.votes:
            losses, weights = vote_losses(config, logits, targets["votes"], targets)
        else:
            losses, weights = class_losses(config, logits, targets["label"], targets)
        of_windows = targets["weight"].to(logits.dtype)
        return (losses * of_windows).sum(), (weights * of_windows).sum()

    def decode(self, logits: Any, batch: Batch) -> list[np.ndarray]:
        """Compute the probabilities [C] of each sequence (regression: the number)."""
        return self.state.windows(logits.cpu().numpy())

    def fit(self, gold: Sequence[TextExample], predicted: Sequence[TextPrediction]) -> Fitted:
        labels, multi = self.state.labels, self.state.problem == "multi"
        classes: list[Any]
        if multi:
            classes = [[name in (e.label or ()) for name in labels] for e in gold]  # type: ignore[operator]
        else:
            classes = [labels.id(str(e.label), e.where) for e in gold]
        shape = len(gold), len(labels)
        probabilities = np.array([list((p.scores or {}).values()) for p in predicted])
        temperature, note = fit_on_probabilities(
            probabilities.reshape(shape), np.array(classes).reshape(shape[: 1 + multi]), multi
        )
        return {"temperature": temperature}, note

    def _score(self, gold: Sequence[Any], predicted: Sequence[Any], **fields: Any) -> Scores:
        fields = {"labels": self.state.labels, "positive": self.state.positive}
        return super()._score(gold, predicted, **fields)


class NliTask(TextClassificationTask):
    """One label for each pair of texts."""

    _label_order = staticmethod(nli_label_order)

    @classmethod
    def prepare(cls, config: TextConfig, data: Dataset) -> Dataset:
        """Map label names to the standard ones if all are NLI labels; as for other texts."""
        return prepare_texts(config, with_standard_names(data))
