"""Text classification: single label, multi-label, regression, for texts and pairs of texts.

The first token's vector stands for the whole input and goes through the family's own classifier
head, y = softmax(W_C z_CLS) (Jurafsky & Martin, "Masked Language Models", sequence classification;
Devlin et al., 2019).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from finetune.config.tasks import ClassifyConfig, TextConfig
from finetune.data import Dataset, read_text
from finetune.data.nli_labels import ALIASES, NLI_LABELS, canonical_name
from finetune.evaluation.calibration import calibration_scores, fit_on_probabilities, scale
from finetune.evaluation.metrics import classification_scores, multilabel_scores, regression_scores
from finetune.models.heads.sequence_classification import SequenceClassifier
from finetune.preprocessing.encodings import Ragged
from finetune.preprocessing.texts import class_weights, encode_texts, in_one_form, problem_of
from finetune.tasks.base import BaseTask
from finetune.types import (
    Batch,
    Encoding,
    LabelSet,
    Partial,
    TextExample,
    TextPrediction,
    UserError,
)

METRICS = {"single": "accuracy", "multi": "micro_f1", "regression": "pearson"}
"""The metric that selects the best model of each kind of problem."""


class TextClassificationTask(BaseTask):
    """One label, several labels or a number for each text."""

    name = "classify"
    words = False
    config: TextConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._on_device: dict[Any, torch.Tensor] = {}
        if self.problem != "multi" and self.threshold != 0.5:
            raise UserError(
                f"--threshold {self.threshold} goes with several labels for a text (--problem "
                "multi): leave it out."
            )
        if self.problem == "regression" and self.config.calibrate != "none":
            raise UserError(
                f"--calibrate {self.config.calibrate}: the answers are numbers and have no "
                "probabilities: leave --calibrate out."
            )
        if self.data and self.config.overlap is not None and self.config.long_text != "window":
            raise UserError(
                f"--overlap {self.config.overlap} goes with --long-text window: add that, or "
                "leave --overlap out."
            )

    @classmethod
    def open(cls, config: TextConfig) -> Dataset:
        """Read texts or pairs."""
        return read_text(config.data, columns=config.column_map)

    @classmethod
    def prepare(cls, config: TextConfig, data: Dataset) -> Dataset:
        """Drop training and validation rows without a label, and bring labels into one form."""
        return in_one_form(data, problem_of(config, data))

    @classmethod
    def derive(cls, config: TextConfig, data: Dataset) -> tuple[list[str], dict[str, Any]]:
        """The label names in a fixed order; the kind of problem; class weights."""
        problem = problem_of(config, data)
        train = data.splits["train"]
        kinds = {example.pair is not None for example in train}
        extra = {"problem": problem, "pairs": kinds.pop() if len(kinds) == 1 else None}
        if problem == "regression":
            if config.class_weights != "none":
                raise UserError(
                    f"--class-weights {config.class_weights}: the labels of {data.name} are "
                    "numbers, not classes: leave --class-weights out."
                )
            return ["score"], extra
        counts = Counter(
            name
            for example in train
            for name in (example.label if isinstance(example.label, tuple) else [example.label])
        )
        labels = cls.order(counts)
        if len(labels) < 2 and problem == "single":
            raise UserError(
                f"{data.name}: all {len(train):,} training rows have the same label "
                f"({shown(labels)}), so there is nothing to learn. Is the label column right? "
                "Name it with --columns label=COLUMN."
            )
        cls.check_labels(data, labels)
        weights = class_weights(config.class_weights, labels, counts, len(train), problem)
        return labels, {**extra, "class_weights": weights}

    @staticmethod
    def order(labels: Sequence[str] | Counter[str]) -> list[str]:
        """Label names sorted, numbers by value."""
        names = sorted(labels)
        numeric = all(name.lstrip("-").isdecimal() for name in names)
        return sorted(names, key=int) if numeric else names

    @staticmethod
    def check_labels(data: Dataset, labels: Sequence[str]) -> None:
        """Refuse labels that occur in other splits but never in train."""
        known = LabelSet(labels)
        for examples in data.splits.values():
            for example in examples:
                named = example.label if isinstance(example.label, tuple) else [example.label]
                for name in named:
                    if name is not None:
                        known.id(name, example.where)

    @property
    def problem(self) -> str:
        """single, multi or regression."""
        return self.extra["problem"]

    @property
    def metric(self) -> str:
        """The metric that selects the best model."""
        return self.config.metric or METRICS[self.problem]

    def sequences(self, examples: Sequence[TextExample]) -> list[list[Encoding]]:
        """One sequence for each text; several windows where --long-text says so."""
        encoded, cut = encode_texts(
            examples, self.tokenizer, self.max_length, self.config.long_text, self.overlap
        )
        self.num_cut += cut
        return [
            [replace(encoding, target=self._target(example, len(windows))) for encoding in windows]
            for example, windows in zip(examples, encoded, strict=True)
        ]

    def _target(self, example: TextExample, num_windows: int) -> dict[str, list[float]] | None:
        label = example.label
        if label is None:
            return None
        if self.problem == "regression":
            numbers = [float(label)]  # type: ignore[arg-type]
        elif self.problem == "multi":
            assert isinstance(label, tuple)
            numbers = [float(name in label) for name in self.labels]
        else:
            numbers = [self.labels.id(str(label), example.where)]
        return {"label": numbers, "share": [1 / num_windows]}

    def targets_of(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        """``label`` [N] or [N, C], ``share`` [N]: a window's share in its example."""
        label = rows["label"].values
        if self.problem == "single":
            label = label.astype(np.int64)
        elif self.problem == "multi":
            label = label.reshape(-1, len(self.labels))
        share = torch.from_numpy(rows["share"].values)
        return {"label": torch.from_numpy(label), "share": share}

    def head(self, name: str | Path | None = None) -> SequenceClassifier:
        """The family's classifier, fresh on the configured encoder or loaded from a folder."""
        if name is not None:
            return SequenceClassifier.from_pretrained(
                str(name), labels=None, batching=self.config.batching
            )
        with self.beginning() as where:
            return SequenceClassifier.from_pretrained(
                labels=list(self.labels),
                problem=self.problem,
                batching=self.config.batching,
                dropout=self.config.classifier_dropout,
                **where,
            )

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross entropy, binary cross entropy or squared error of logits [N, C], summed."""
        label, share = batch.targets["label"], batch.targets["share"].to(logits.dtype)
        if self.problem == "regression":
            losses = (logits[:, 0] - label.to(logits.dtype)) ** 2
        elif self.problem == "multi":
            losses = functional.binary_cross_entropy_with_logits(
                logits, label.to(logits.dtype), pos_weight=self._weights(logits), reduction="none"
            ).mean(1)
        else:
            losses = functional.cross_entropy(logits, label, reduction="none")
            if (weights := self._weights(logits)) is not None:
                share = share * weights[label]
        return (losses * share).sum(), share.sum()

    def _weights(self, like: torch.Tensor) -> torch.Tensor | None:
        """The class weights [C] in the type and on the device of others: copied once, as a
        copy waits for the device."""
        weights = self.extra.get("class_weights")
        if weights is None:
            return None
        place = (like.dtype, like.device)
        if place not in self._on_device:
            self._on_device[place] = torch.tensor(weights, dtype=like.dtype, device=like.device)
        return self._on_device[place]

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[Partial]:
        """Probabilities [C] (regression: the number) of each sequence."""
        logits = logits.cpu().double()  # some devices have no double precision
        if self.problem == "single":
            logits = logits.softmax(-1)
        elif self.problem == "multi":
            logits = logits.sigmoid()
        rows = logits.numpy()
        return [Partial(*item) for item in zip(batch.example, batch.first_word, rows, strict=True)]

    def finish(self, example: TextExample, partials: Sequence[Partial]) -> TextPrediction:
        """Average the windows and take the best label, those over the threshold, or the number."""
        partials = sorted(partials, key=lambda partial: partial.first_word)  # sums always alike
        values = np.mean([partial.values for partial in partials], axis=0)
        if self.problem == "regression":
            return TextPrediction(example.id, float(values[0]))
        return self._answer(example.id, values)

    def _answer(self, id: int, chances: np.ndarray) -> TextPrediction:
        """Labels, and probabilities under the temperature, from those of the model [C].

        After averaging windows, so that the temperature cannot change which label is best.
        """
        best = int(chances.argmax())
        if "temperature" in self.extra:
            chances = scale(chances, self.extra["temperature"], self.problem == "multi")
        scores = dict(zip(self.labels, map(float, chances), strict=True))
        if self.problem == "multi":
            chosen = tuple(n for n, score in scores.items() if score >= self.threshold)
            return TextPrediction(id, chosen, None, scores)
        return TextPrediction(id, self.labels[best], float(chances[best]), scores)

    def calibrate(
        self, head: Any, gold: Sequence[TextExample], predicted: Sequence[TextPrediction]
    ) -> list[TextPrediction] | None:
        """A temperature fitted on validation, kept in the task."""
        if self.config.calibrate == "none":
            return None
        chances = self._chances(predicted)
        kept = [index for index, example in enumerate(gold) if self.has_gold(example)]
        right = self._right([gold[index] for index in kept])
        self.extra["temperature"], note = fit_on_probabilities(
            chances[kept], right, self.problem == "multi"
        )
        self.notes.append(note)
        pairs = zip(predicted, chances, strict=True)
        return [self._answer(prediction.id, row) for prediction, row in pairs]

    def _chances(self, predicted: Sequence[TextPrediction]) -> np.ndarray:
        """Probabilities [N, C]."""
        rows = [[(p.scores or {})[name] for name in self.labels] for p in predicted]
        return np.array(rows).reshape(len(rows), len(self.labels))

    def _right(self, gold: Sequence[TextExample]) -> np.ndarray:
        """Gold classes [N], or which labels apply [N, C]."""
        if self.problem == "multi":
            applies = [[name in (e.label or ()) for name in self.labels] for e in gold]  # type: ignore[operator]
            return np.array(applies, dtype=bool).reshape(len(gold), len(self.labels))
        return np.array([self.labels.id(str(e.label), e.where) for e in gold], dtype=int)

    @property
    def threshold(self) -> float:
        """Probability from which a label applies (multi-label)."""
        return self.config.threshold if isinstance(self.config, ClassifyConfig) else 0.5

    def has_gold(self, example: TextExample) -> bool:
        """Whether the row has a label."""
        return example.label is not None

    def score(
        self, gold: Sequence[TextExample], predicted: Sequence[TextPrediction]
    ) -> dict[str, float]:
        """Accuracy, F1 and Matthews; or multi-label F1; or correlations."""
        right: list[Any] = [example.label for example in gold]
        answers: list[Any] = [prediction.label for prediction in predicted]
        if self.problem == "regression":
            return regression_scores(right, answers)
        if self.problem == "multi":
            scores = multilabel_scores(right, answers, list(self.labels))
        else:
            scores = classification_scores(right, answers, list(self.labels))
        if "temperature" in self.extra:
            scores |= self._calibration(gold, predicted)
        return scores

    def _calibration(
        self, gold: Sequence[TextExample], predicted: Sequence[TextPrediction]
    ) -> dict[str, float]:
        """Calibration errors with and without the temperature: of the labels that are answered,
        or of the probability of every label."""
        multi = self.problem == "multi"
        after, right = self._chances(predicted), self._right(gold)
        before = scale(after, 1 / self.extra["temperature"], multi)
        if not multi:
            best, rows = after.argmax(1), np.arange(len(after))
            right, after, before = best == right, after[rows, best], before[rows, best]
        return calibration_scores(*(side.ravel().tolist() for side in (right, after, before)))


class NliTask(TextClassificationTask):
    """Classes for pairs of texts: entailment in two or three ways, paraphrase, and the like."""

    name = "nli"

    @classmethod
    def open(cls, config: TextConfig) -> Dataset:
        """Read pairs of texts."""
        return read_text(config.data, columns=config.column_map, pair=True)

    @classmethod
    def prepare(cls, config: TextConfig, data: Dataset) -> Dataset:
        """Map label names to the usual ones where all of them are NLI labels."""
        names = {
            example.label
            for examples in data.splits.values()
            for example in examples
            if isinstance(example.label, str)
        }
        renamed = sorted(name for name in names if canonical_name(name) != name)
        if renamed and all(name.strip().lower() in ALIASES for name in names):
            splits = {
                split: [_canonical(example) for example in examples]
                for split, examples in data.splits.items()
            }
            listed = ", ".join(f"{name!r} is {canonical_name(name)}" for name in renamed)
            notes = [*data.notes, f"labels mapped by name: {listed}"]
            data = replace(data, splits=splits, notes=notes)
        return super().prepare(config, data)

    @staticmethod
    def order(labels: Sequence[str] | Counter[str]) -> list[str]:
        """Entailment, neutral, contradiction first; all other labels sorted."""
        usual = [name for name in (*NLI_LABELS, "not_entailment") if name in labels]
        return usual if len(usual) == len(labels) else TextClassificationTask.order(labels)


def _canonical(example: TextExample) -> TextExample:
    if not isinstance(example.label, str):
        return example
    return replace(example, label=canonical_name(example.label))


def shown(labels: Sequence[str]) -> str:
    """Label names in quotes."""
    return ", ".join(map(repr, labels))
