"""Multiple choice: the right one of several choices, which are counted from 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from finetune.data import DataError
from finetune.data.choices import CHOICES
from finetune.evaluation.items import (
    Grouping,
    PredictionType,
    Tables,
    Wording,
    abstained_in,
    known_or_nan,
    right_by_group,
)
from finetune.evaluation.metrics import Metric, expected_calibration_error, mean
from finetune.evaluation.prediction_types.texts import by_length, decided_items, text_of_row
from finetune.evaluation.training_vocabulary import TrainingVocabulary
from finetune.types import ChoicePrediction, ChoiceQuestion

NO_CHOICE = -1
"""The value of a question without a prediction."""


def _choice_counts(tables: Tables) -> np.ndarray:
    correct = tables.items.correct
    return np.column_stack([correct, np.ones(len(correct))]).astype(np.int64)


def choice_text(example: ChoiceQuestion, index: int) -> str:
    """The text of a choice; its number if the texts are not known."""
    if index == NO_CHOICE:
        return ""
    return example.choices[index] if example.choices else f"choice {index}"


def _sides(tables: Tables, item: int) -> tuple[str, str]:
    example = tables.examples[item]
    return choice_text(example, tables.gold[item]), choice_text(example, tables.predicted[item])


def _ranked(tables: Tables, index: int) -> list[tuple[str, float, str]]:
    example, scores = tables.examples[index], tables.predictions[index].scores
    marks = {tables.predicted[index]: "wrong", tables.gold[index]: "right"}
    if len(scores) != len(example.choices):
        return []
    pairs = enumerate(zip(example.choices, scores, strict=True))
    return [(text, score, marks.get(number, "")) for number, (text, score) in pairs]


def _with_items(tables: Tables) -> Tables:
    items = decided_items(tables.gold, tables.predicted, tables.predictions)
    category = np.full(len(items), "wrong choice", object)
    return replace(tables, items=replace(items, columns={"category": category}))


def _value(prediction: ChoicePrediction) -> int:
    return NO_CHOICE if prediction.choice is None else prediction.choice


def _question_of_row(index: int, where: str, row: Mapping[str, Any]) -> ChoiceQuestion:
    example, gold = text_of_row(index, where, row), row["gold"]
    choices = tuple(row.get("choices", ()))
    last = len(choices) - 1
    if gold is not None and (type(gold) is not int or gold < 0 or 0 <= last < gold):
        legal = f"from 0 to {last}" if last >= 0 else "from 0"
        raise DataError(
            f"{where}: next to `choice`, `gold` must be the number of the right choice, "
            f"{legal}, not {gold!r:.60}; or name a file with --gold FILE."
        )
    texts = example.text, example.pair
    return ChoiceQuestion(index, *texts, gold, example.where, example.key, choices=choices)


def _parse(row: Mapping[str, Any], where: str, example: ChoiceQuestion) -> ChoicePrediction:
    decided = abstained_in(row)
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
    text = "" if shown is None else row.get("choice_text") or choice_text(example, choice)
    probabilities = [known_or_nan(value) for value in scores] if isinstance(scores, list) else []
    is_complete = choice < len(probabilities) and not math.isnan(probabilities[choice])
    return ChoicePrediction(
        example.id,
        shown,
        text,
        tuple(probabilities) if is_complete else (),
        only_score=math.nan if is_complete else only,
        decided=decided,
    )


def _groupings(tables: Tables, vocabulary: TrainingVocabulary | None) -> dict[str, Grouping]:
    numbers = [len(example.choices) for example in tables.examples]
    columns = {"number of choices": numbers, "right choice": tables.gold}
    return {"text length": by_length(tables, "questions")} | {
        name: right_by_group(
            tables.items, map(str, values), [str(n) for n in sorted({*values})], "questions"
        )
        for name, values in columns.items()
    }


CHOICE = PredictionType(
    name="choice",
    key="choice",
    wording=Wording("a choice", "text", "choices"),
    metrics={"accuracy": Metric(_choice_counts, mean), "ece": expected_calibration_error()},
    default="accuracy",
    gold=lambda example: example.label,
    value=_value,
    complete=_with_items,
    parse=_parse,
    read_gold=lambda file, source: list(CHOICES.stream(file, gold=True, **source.reading)),
    gold_of_row=_question_of_row,
    groupings=_groupings,
    sides=_sides,
    ranked=_ranked,
    one_class=True,
    without_gold="no row has a label.",
    pairs_of_labels=True,
)
