"""Extractive question answering: the answer to a question is a span of its context.

A question and a window of its context form one sequence. The score of a span is the sum of the
start logit of its first token and the end logit of its last one; the score of no answer is the
first token's (Devlin et al., 2019, sections 4.2 and 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finetune.config.tasks import QAConfig
from finetune.data import Dataset
from finetune.data.examples import WARNING
from finetune.data.questions import misplaced, too_many_misplaced
from finetune.evaluation.prediction_types.answers import best_no_answer_threshold, gold_answers
from finetune.models.heads.pretrained import ANSWER_ENDS, QuestionAnswerer, position_losses
from finetune.preprocessing.encodings import EncodedExamples, FlatSequences
from finetune.preprocessing.preparation import with_gold
from finetune.preprocessing.questions import encode_questions, tokens_of
from finetune.tasks.answer_decoding import NO_ANSWER, AnswerDecoder
from finetune.tasks.base import Fitted, SequencesOfExamples, Task
from finetune.tasks.calibration import read_thresholds
from finetune.tasks.state import TaskState
from finetune.types import (
    AnswerPrediction,
    Batch,
    LabelSet,
    Question,
    UserError,
    WindowOutput,
    quantity,
)

FEWEST_QUESTIONS = 5
"""Least number of questions with and without an answer to choose a threshold on."""


@dataclass(frozen=True, kw_only=True)
class AnswerState(TaskState, AnswerDecoder):
    """The state of question answering; ``AnswerDecoder`` explains the fields of decoding."""

    config: QAConfig
    unanswerable: bool
    thresholds: Mapping[str, float] = field(default_factory=dict)

    prediction_type = "answers"

    def __post_init__(self) -> None:
        read_thresholds(self.thresholds, [NO_ANSWER])

    @property
    def overlap(self) -> int:
        """Number of tokens that neighboring windows of a context share."""
        overlap, largest = self.config.overlap, self.max_length // 2
        if overlap is not None and overlap > largest:
            raise UserError(
                f"--overlap {overlap} is over half of --max-length {self.max_length}: write "
                f"{largest} or less."
            )
        return min(128, largest) if overlap is None else overlap  # 128 as in BERT

    @property
    def max_answer(self) -> int:  # type: ignore[override]  # an attribute of what is restored
        return self.config.max_answer

    @property
    def threshold_labels(self) -> Sequence[str]:
        """The name of no answer, if it may be predicted."""
        return [NO_ANSWER] if self.unanswerable else []


class QuestionAnsweringTask(Task):
    """The answer to a question in its context."""

    state: AnswerState
    state_class = AnswerState
    reusable_head = QuestionAnswerer
    gold = attrgetter("answers")

    @classmethod
    def prepare(cls, config: QAConfig, data: Dataset) -> Dataset:
        """Drop questions without gold, and training questions whose answers have no place.

        Raises:
            UserError: A split but test has no gold.
        """
        missing = "gold answers: name their column, --columns answers=NAME."
        data = with_gold(data, "answers", "question", missing, "gold answers")
        if (train := data.splits.get("train")) is None:
            return data
        reasons = misplaced(train)
        if not reasons or too_many_misplaced(len(reasons), train):  # then an error of the checks
            return data
        problem = next(iter(reasons.values()))
        if number := len(reasons) - 1:
            problem += f" (and so {quantity(number, 'other')} of train)"
        note = f"{WARNING}{problem}: left out of training"
        train = train.keep(index not in reasons for index in range(len(train)))
        return replace(data, splits={**data.splits, "train": train}, notes=[*data.notes, note])

    @classmethod
    def derive(cls, config: QAConfig, data: Dataset) -> dict[str, Any]:
        """Derive whether questions may have no answer."""
        unanswerable = not all(data.splits["train"].column("answers"))
        return {"labels": LabelSet(ANSWER_ENDS), "pairs": True, "unanswerable": unanswerable}

    def complete(self, data: Dataset) -> Dataset:
        """Add a note on questions without an answer."""
        train, notes = data.splits["train"], list(data.notes)
        if number := sum(not example.answers for example in train):
            notes.append(
                f"{number:,} of {quantity(len(train), 'training question')} have no answer"
            )
            return replace(data, notes=notes)
        for split, examples in data.splits.items():
            if count := sum(example.answers == () for example in examples):
                notes.append(
                    f"warning: {split}: {quantity(count, 'question')} without an answer, which a "
                    "model trained on answers alone always misses"
                )
        return replace(data, notes=notes)

    @property
    def calibrated(self) -> bool:
        return self.state.unanswerable

    def _sequences(self, examples: Sequence[Question]) -> SequencesOfExamples:
        state = self.state
        return encode_questions(examples, self.tokenizer, state.max_length, state.overlap)

    def _encoding_notes(self, examples: Sequence[Question], encoded: EncodedExamples) -> list[str]:
        notes = super()._encoding_notes(examples, encoded)
        targets = encoded.sequences.targets
        if targets is None:
            return notes
        answered = np.array([bool(example.answers) for example in examples])
        if not answered.any():
            return notes
        in_window = np.add.reduceat(targets["start"].values > 0, encoded.offsets[:-1]) > 0
        if lost := int((answered & ~in_window).sum()):
            notes.append(
                f"{quantity(lost, 'answer is', 'answers are')} in no window, or without a place in "
                "the context: the model cannot learn them"
            )
        return notes

    def _targets(self, sequences: FlatSequences) -> dict[str, torch.Tensor]:
        positions = super()._targets(sequences)
        weight = (positions["start"] >= 0).float()
        return {name: row.clamp(min=0) for name, row in positions.items()} | {"weight": weight}

    def model(self, folder: str | Path | None = None) -> QuestionAnswerer:
        return self._load(QuestionAnswerer.from_pretrained, folder)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the summed loss of start and end of the windows, and their number."""
        start, end = (batch.targets[name] for name in ANSWER_ENDS)
        weight = batch.targets["weight"].to(logits.dtype)
        return (position_losses(logits, batch, start, end) * weight).sum(), weight.sum()

    def decode(self, logits: torch.Tensor, batch: Batch) -> list[np.ndarray]:
        """Decode the start and end logits of the first token and the context tokens [1 + m, 2]."""
        columns = batch.cu_seqlens[:-1], batch.words, batch.words + batch.word_lengths
        return self.state.windows(logits.cpu().numpy(), torch.stack(columns, 1).tolist())

    def postprocess(self, example: Question, outputs: Sequence[WindowOutput]) -> AnswerPrediction:
        tokens = tokens_of(self.tokenizer, example.pair or "")
        return self.state.postprocess(example, outputs, tokens)

    def fit(self, gold: Sequence[Question], predicted: Sequence[AnswerPrediction]) -> Fitted:
        number = sum(bool(example.answers) for example in gold)
        if min(number, len(gold) - number) < FEWEST_QUESTIONS:
            return {"thresholds": {}}, "too few questions to choose a threshold of no answer"
        threshold = best_no_answer_threshold(
            [gold_answers(example) or () for example in gold],
            [p.best[0].text if p.best else "" for p in predicted],
            [prediction.no_answer_score or 0.0 for prediction in predicted],
        )
        note = f"no answer is predicted from a probability of {threshold:.3f}, chosen on validation"
        return {"thresholds": {NO_ANSWER: threshold}}, note
