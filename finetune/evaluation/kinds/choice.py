"""Multiple choice: the index of one of the choices of a question."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.data import DataError
from finetune.data.choices import CHOICES
from finetune.data.files import DataFile
from finetune.evaluation.kinds.examples import OfTexts, by_length, confidence_of, right_by_group
from finetune.evaluation.kinds.kind import (
    Grouping,
    Mistake,
    Scored,
    Shown,
    Wording,
    decided_in,
    expected_calibration_error,
    known_or_nan,
)
from finetune.evaluation.metrics import Metric, mean
from finetune.types import ChoicePrediction, ChoiceQuestion

if TYPE_CHECKING:
    from finetune.evaluation.predictions import GoldSource
    from finetune.evaluation.training_vocabulary import TrainingVocabulary

NO_CHOICE = -1
"""The prediction of a question whose answer is withheld."""


def choice_counts(scored: Scored) -> np.ndarray:
    """Return for each question whether the right choice is predicted, and 1 [N, 2]."""
    equal = np.array(scored.gold, dtype=np.int64) == np.array(scored.predicted, dtype=np.int64)
    return np.column_stack([equal, np.ones(len(equal))]).astype(np.int64)


class Choice(OfTexts):
    """The right one of several choices, which are counted from 0."""

    name = key = "choice"
    wording = Wording("a choice", "text", "choices")
    metrics: ClassVar = {
        "accuracy": Metric(choice_counts, mean),
        "ece": expected_calibration_error(),
    }
    default = "accuracy"
    one_class = True
    without_gold = "no row has a label."
    pairs_of_labels = True

    def gold(self, example: ChoiceQuestion) -> Any:
        """Return the index of the right choice."""
        return example.label

    def value(self, prediction: ChoicePrediction) -> int:
        """Return the index of the predicted choice."""
        return NO_CHOICE if prediction.choice is None else prediction.choice

    def forced(self, prediction: ChoicePrediction) -> int:
        """Return the index with the choice that is withheld."""
        withheld = prediction.decided.get("withheld")
        return self.value(prediction) if withheld is None else int(withheld)

    def read_gold(self, file: str | DataFile, source: GoldSource) -> list[ChoiceQuestion]:
        """Return the questions of a file with their choices."""
        return list(CHOICES.stream(file, gold=True, **source.reading))

    def gold_of_row(self, index: int, where: str, row: Mapping[str, Any]) -> ChoiceQuestion:
        """Return the question of a line with its gold."""
        found, gold = super().gold_of_row(index, where, row), row["gold"]
        choices = tuple(row.get("choices", ()))
        last = len(choices) - 1
        if gold is not None and (type(gold) is not int or gold < 0 or 0 <= last < gold):
            legal = f"from 0 to {last}" if last >= 0 else "from 0"
            raise DataError(
                f"{where}: next to `choice`, `gold` must be the number of the right choice, "
                f"{legal}, not {gold!r:.60}; or name a file with --gold FILE."
            )
        texts = found.text, found.pair
        return ChoiceQuestion(index, *texts, gold, found.where, found.key, choices=choices)

    def parse(
        self, row: Mapping[str, Any], where: str, example: ChoiceQuestion
    ) -> ChoicePrediction:
        """Return a predicted choice with the probabilities that are known."""
        decided = decided_in(row)
        shown = row["choice"]
        choice = decided.get("withheld") if shown is None else shown
        if choice is None:
            return ChoicePrediction(example.id, None, "", ())
        if not 0 <= choice < (len(example.choices) or choice + 1):
            raise DataError(
                f"{where}: choice {choice} is outside of the {len(example.choices)} choices "
                f"of {example.where}, which are counted from 0."
            )
        scores, only = row.get("scores"), known_or_nan(row.get("score"))
        text = "" if shown is None else row.get("choice_text") or choice_texts(example, choice)[0]
        known = [known_or_nan(each) for each in scores] if isinstance(scores, list) else []
        whole = choice < len(known) and not math.isnan(known[choice])
        return ChoicePrediction(
            example.id,
            shown,
            text,
            tuple(known) if whole else (),
            only_score=math.nan if whole else only,
            decided=decided,
        )

    def groupings(
        self, scored: Scored, vocabulary: TrainingVocabulary | None
    ) -> dict[str, Grouping]:
        """Divide questions by length, by the number of choices, and by the right choice."""
        if not scored.examples:
            return {}
        numbers = [len(example.choices) for example in scored.examples]
        indices = [example.label for example in scored.examples]
        groups: dict[str, tuple[list[list[str]], list[str]]] = {
            "text length": by_length(scored.examples),
            **{
                name: ([[str(n)] for n in values], [str(n) for n in sorted({*values})])
                for name, values in (("number of choices", numbers), ("right choice", indices))
            },
        }
        return {
            name: right_by_group(*each, "questions", single=True) for name, each in groups.items()
        }

    def mistakes(self, scored: Scored) -> Iterator[tuple[int, Mistake]]:
        """Yield every wrong choice; gold and prediction are the texts of choices."""
        rows = zip(scored.sides, confidence_of(scored), strict=True)
        for index, ((gold, choice), sure) in enumerate(rows):
            if gold != choice:
                right, chosen = choice_texts(scored.examples[index], gold, choice)
                yield index, Mistake("wrong choice", right, chosen, sure)

    def shown(self, scored: Scored, index: int, mistakes: Sequence[Any]) -> Shown:
        """Return both choices, and the probabilities of all."""
        example, scores = scored.examples[index], scored.predictions[index].scores
        gold, choice = scored.gold[index], scored.predicted[index]
        marks, known = {choice: "wrong", gold: "right"}, []
        if len(scores) == len(example.choices):
            known = [
                (text, scores[number], marks.get(number, ""))
                for number, text in enumerate(example.choices)
            ]
        sure = mistakes[0].confidence if gold != choice else None
        right, chosen = choice_texts(example, gold, choice)
        return Shown([right], [chosen], known, sure)


def choice_texts(example: ChoiceQuestion, *indices: int) -> list[str]:
    """Return the texts of choices; their numbers where the texts are not known."""
    texts = [example.choices[n] if example.choices else f"choice {n}" for n in indices]
    return ["" if n == NO_CHOICE else text for n, text in zip(indices, texts, strict=True)]


CHOICE = Choice()
