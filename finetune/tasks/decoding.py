"""From the logits of sequences to predictions: the base of all decoders, and texts.

Numpy alone, as exported models decode with this file and its neighbors too (``tag_decoding``,
``span_decoding``, ``answer_decoding``). The state of a task is a decoder, and an export holds the
attributes of the state that decoding reads. ``windows`` makes one value of each sequence of a
batch, and ``postprocess`` makes the prediction of an example from the values of its sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from finetune.evaluation.temperature import log_softmax, scale
from finetune.types import (
    LabelSet,
    Prediction,
    TextExample,
    TextPrediction,
    TokenExample,
    WindowOutput,
)


class Decoder:
    """Makes predictions from logits: the state of a task, or the part of it in an export."""

    labels: LabelSet
    all_subwords: bool = False
    """Whether all subwords of a word have logits."""

    def of_blank(self, example: Any) -> Prediction | None:
        """Make the prediction for an example without text; None for other examples."""
        return None

    @classmethod
    def attributes(cls) -> list[str]:
        """The names of the attributes that decoding reads."""
        return ["labels", *cls.__annotations__]

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> Self:
        """Make a decoder that is no state from the values of its attributes."""
        decoder = cls()
        vars(decoder).update(values, labels=LabelSet(values["labels"]))
        return decoder


class TextDecoder(Decoder):
    """Decodes one label, several labels or a number for a text."""

    problem: str
    positive: str | None
    """The positive class of two labels."""
    temperature: float | None
    """Divides the logits before the softmax (Guo et al., 2017)."""
    thresholds: Mapping[str, float]
    """Lowest probability of each label, or of the positive one of two, in place of ``threshold``
    and of the more probable one (``finetune thresholds``)."""
    threshold: float = 0.5
    """Lowest probability of a predicted label (several labels)."""
    separator: str | None = None
    """What divides the levels of labels; None for labels without levels."""

    def windows(self, logits: np.ndarray) -> list[np.ndarray]:
        """Compute the probabilities [C] of each sequence (regression: the number)."""
        logits = logits.astype(np.float64)
        if self.problem == "single":
            logits = np.exp(log_softmax(logits))
        elif self.problem == "multi":
            logits = sigmoid(logits)
        return list(logits)

    def postprocess(self, example: TextExample, outputs: Sequence[WindowOutput]) -> TextPrediction:
        """Average the windows; take the best label, those over the threshold, or the number."""
        values = np.mean([output.values for output in outputs], axis=0)
        if self.problem == "regression":
            return TextPrediction(example.id, float(values[0]))
        scores = dict(zip(self.labels, values.tolist(), strict=True))
        return self.decide(TextPrediction(example.id, None, scores=scores))

    def of_blank(self, example: TextExample) -> TextPrediction | None:
        """Predict no label if no text of the example has a character to read."""
        if any(map(str.strip, example.texts())):
            return None
        scores = None if self.problem == "regression" else dict.fromkeys(self.labels, np.nan)
        return TextPrediction(
            example.id, None, scores=scores, positive=self.positive, separator=self.separator
        )

    def decide(self, prediction: TextPrediction) -> TextPrediction:
        """Decide by the probabilities of the model, averaged over windows, in a prediction."""
        multi, scores, before = self.problem == "multi", prediction.scores or {}, None
        best = max(scores, key=scores.__getitem__)
        if self.temperature is not None:
            before, values = scores, np.array([*scores.values()])
            scores = dict(zip(scores, scale(values, self.temperature, multi).tolist(), strict=True))
        decided = replace(prediction, scores=scores, uncalibrated=before, separator=self.separator)
        if multi:
            least = {name: self.thresholds.get(name, self.threshold) for name in scores}
            return replace(decided, label=tuple(n for n, p in scores.items() if p >= least[n]))
        if self.positive is not None and self.positive in self.thresholds:
            index = self.labels.id(self.positive)
            is_positive = scores[self.positive] >= self.thresholds[self.positive]
            best = self.labels[index if is_positive else 1 - index]
        return replace(decided, label=best, score=scores[best], positive=self.positive)


def check_complete(example: TokenExample, number: int) -> None:
    """Raise RuntimeError unless every word has a prediction."""
    if number != len(example.words):
        raise RuntimeError(f"{example.where}: {number} predictions for {len(example.words)} words")


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Compute probabilities of logits."""
    with np.errstate(over="ignore"):  # 1 / inf is the right 0
        probabilities: np.ndarray = 1 / (1 + np.exp(-logits))
    return probabilities
