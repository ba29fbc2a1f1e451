"""Multiple choice: which of its choices answers a question, or continues a text.

Each choice makes a sequence of the context, and of the question with the choice. The model gives
each sequence a score, and the softmax is over the sequences of a question (Radford et al., 2018,
"Improving Language Understanding by Generative Pre-Training", section 3.3). Questions may have
different numbers of choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from finetune.config.tasks import ChoiceConfig
from finetune.data import Dataset
from finetune.data.choices import CHOICES
from finetune.evaluation.calibration import fit_on_probabilities
from finetune.evaluation.temperature import log_softmax, scale
from finetune.models.heads.pretrained import SCORE, ChoiceScorer
from finetune.preprocessing.encodings import FlatSequences
from finetune.preprocessing.text_labels import labeled
from finetune.preprocessing.texts import check_prepared_characters
from finetune.tasks.base import Fitted, SequencesOfExamples, Task, Windows, WindowTargets
from finetune.tasks.state import TaskState
from finetune.types import (
    IGNORED,
    Batch,
    ChoicePrediction,
    ChoiceQuestion,
    Example,
    LabelSet,
    TokenSequence,
    UserError,
    WindowOutput,
)

_BLANK = re.compile(r"(?<!\w)_+(?!\w)")
"""A blank in a question, which each choice fills in, as in the cloze questions of RACE."""


@dataclass(frozen=True, kw_only=True)
class ChoiceState(TaskState):
    """The state of a task of multiple choice."""

    config: ChoiceConfig

    prediction_type = "choice"

    @property
    def input_keys(self) -> tuple[str, ...]:
        return tuple(role for role in CHOICES.roles if role != "label")

    def example(self, index: int, item: Any, where: str = "") -> Example:
        where = where or f"input {index}"
        if not isinstance(item, Mapping):
            raise UserError(
                f"{where}: {item!r:.60} is no example of this model: give --file with the columns "
                f"{', '.join(self.input_keys)}; in Python a dict of them."
            )
        example: Example = CHOICES.example(index, item, where)
        check_prepared_characters(example.texts(), where)
        return example

    def postprocess(
        self, example: ChoiceQuestion, outputs: Sequence[WindowOutput]
    ) -> ChoicePrediction:
        """Predict the most probable choice."""
        probabilities = np.exp(log_softmax(np.array([output.values for output in outputs])))
        best = int(probabilities.argmax())
        scores = tuple(probabilities.tolist())
        return self.decide(ChoicePrediction(example.id, best, example.choices[best], scores))

    def decide(self, prediction: ChoicePrediction) -> ChoicePrediction:
        """Apply the temperature to the probabilities of a prediction."""
        if self.temperature is None:
            return prediction
        scaled = scale(np.array(prediction.scores), self.temperature, False)
        return replace(prediction, scores=tuple(scaled.tolist()), uncalibrated=prediction.scores)


class ChoiceTask(Task):
    """The most probable choice of each question."""

    state: ChoiceState
    state_class = ChoiceState
    reusable_head = ChoiceScorer

    @classmethod
    def prepare(cls, config: ChoiceConfig, data: Dataset) -> Dataset:
        return labeled(data)

    @classmethod
    def derive(cls, config: ChoiceConfig, data: Dataset) -> dict[str, Any]:
        """Name the one label of the model: the score of a choice."""
        return {"labels": LabelSet([SCORE])}

    def _sequences(self, examples: Sequence[ChoiceQuestion]) -> SequencesOfExamples:
        max_length = self.state.max_length
        subwords = self._subwords(examples)
        encoded, num_cut = [], 0
        for example in examples:
            sequences, longest = [], 0
            for number, (context, second) in enumerate(texts_of_choices(example)):
                first = subwords[context, False]
                last = [] if second is None else subwords[second, True]
                room = self.tokenizer.room(max_length, pair=second is not None)
                size = len(first) + len(last)
                longest = max(longest, size - room)
                # the context is cut; a question that is too long without any keeps its end
                keep, last = max(0, room - len(last)), last[max(0, len(last) - room) :]
                pair = None if second is None else last
                ids, token_types = self.tokenizer.build(first[:keep], pair)
                sequences.append(TokenSequence(example.id, ids, token_types, window=number))
            encoded.append(sequences)
            num_cut += longest > 0
        return encoded, num_cut

    def _window_targets(self, example: ChoiceQuestion, windows: Windows) -> WindowTargets:
        return [{"right": [number == example.label]} for number in range(len(windows))]

    def _subwords(self, examples: Sequence[ChoiceQuestion]) -> dict[tuple[str, bool], list[int]]:
        pairs = [texts for example in examples for texts in texts_of_choices(example)]
        subwords: dict[tuple[str, bool], list[int]] = {}
        for second in (False, True):
            texts = {text: None for pair in pairs if (text := pair[second]) is not None}
            ids = self.tokenizer.first_subwords(list(texts), self.state.max_length, last=second)
            subwords |= dict(zip(((text, second) for text in texts), ids, strict=True))
        return subwords

    def _targets(self, sequences: FlatSequences) -> dict[str, torch.Tensor]:
        """``rows`` [Q, C] are the sequences of the choices, -1 where a question has fewer."""
        _, question = np.unique(sequences.example, return_inverse=True)
        choices = np.full((question.max() + 1, sequences.window.max() + 1), -1)
        choices[question, sequences.window] = np.arange(len(sequences))
        if ((choices[:, :-1] < 0) & (choices[:, 1:] >= 0)).any():
            raise UserError(
                "a batch has only some choices of a question: make batches of whole questions, as "
                "task.encode(examples).sequences of some examples are."
            )
        right = super()._targets(sequences)["right"].numpy()
        label = np.full(len(choices), IGNORED)
        label[question[right]] = sequences.window[right]
        return {"rows": torch.from_numpy(choices), "label": torch.from_numpy(label)}

    def model(self, folder: str | Path | None = None) -> ChoiceScorer:
        dropout = self.state.config.classifier_dropout
        return self._load(ChoiceScorer.from_pretrained, folder, dropout=dropout)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the summed cross entropy of the right choices, and the number of questions."""
        label = batch.targets["label"]
        scores = by_question(logits, batch)
        losses = functional.cross_entropy(scores, label, ignore_index=IGNORED, reduction="sum")
        return losses, (label != IGNORED).sum().to(logits.dtype)

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[float]:
        """Decode the score of each sequence."""
        return logits[:, 0].cpu().double().tolist()

    def fit(self, gold: Sequence[ChoiceQuestion], predicted: Sequence[ChoicePrediction]) -> Fitted:
        most = max((len(p.scores) for p in predicted), default=1)
        table = np.zeros((len(gold), most))  # further choices have the probability 0
        for row, prediction in zip(table, predicted, strict=True):
            row[: len(prediction.scores)] = prediction.scores
        labels = np.array([example.label for example in gold], dtype=int)
        temperature, note = fit_on_probabilities(table, labels, False)
        return {"temperature": temperature}, note


def by_question(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Gather the scores of sequences [N, 1] by question: [Q, C].

    The probability of a choice that a question does not have is 0.
    """
    rows = batch.targets["rows"]
    lowest = torch.finfo(logits.dtype).min
    return logits[rows.clamp_min(0), 0].masked_fill(rows < 0, lowest)


def texts_of_choices(example: ChoiceQuestion) -> Iterator[tuple[str, str | None]]:
    """Yield the one or two texts of the sequence of each choice.

    The first text is the context, the second the question and the choice. Without a context they
    are the question and the choice. A choice fills in the blanks of a question: ``It is _ .``
    """
    question, has_context = example.pair, bool(example.text.strip())
    for choice in example.choices:
        if question is None:
            yield (example.text, choice) if has_context else (choice, None)
        elif _BLANK.search(question):
            filled = choice.join(_BLANK.split(question))
            yield (example.text, filled) if has_context else (filled, None)
        else:
            answered = f"{question} {choice}"
            yield (example.text, answered) if has_context else (question, choice)
