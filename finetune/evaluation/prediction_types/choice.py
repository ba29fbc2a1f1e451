"""Multiple choice: the right one of several choices, which are counted from 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from finetune.data import DataError
from finetune.data.choices import CHOICES
from finetune.evaluation.metrics import ECE, Items, Metric, mean, means, probability
from finetune.evaluation.prediction_types.labels import WITHOUT_LABELS, by_length, text_of_row
from finetune.evaluation.tables import PredictionType, Tables, Wording, wrong_value
from finetune.types import ChoicePrediction, ChoiceQuestion


def choice_text(example: ChoiceQuestion, index: int) -> str:
    """The text of a choice; its number if the texts are not known, and nothing for -1."""
    if index == -1:
        return ""
    return example.choices[index] if example.choices else f"choice {index}"


def _sides(tables: Tables, item: int) -> tuple[str, str]:
    example = tables.examples[item]
    return choice_text(example, tables.gold[item]), choice_text(example, tables.predicted[item])


def _question_of_row(index: int, where: str, row: Mapping[str, Any]) -> ChoiceQuestion:
    example, gold = text_of_row(index, where, row), row["gold"]
    choices = tuple(row.get("choices", ()))
    last = len(choices) - 1
    if gold is not None and (type(gold) is not int or gold < 0 or 0 <= last < gold):
        legal = f"from 0 to {last}" if last >= 0 else "from 0"
        raise wrong_value(where, "gold", f"the number of the right choice, {legal}", gold)
    texts = example.text, example.pair
    return ChoiceQuestion(index, *texts, gold, example.where, example.key, choices=choices)


def _parse(row: Mapping[str, Any], where: str, example: ChoiceQuestion) -> ChoicePrediction:
    shown = row["choice"]
    choice = row.get("withheld") if shown is None else shown
    if choice is None:
        return ChoicePrediction(example.id, None, "", ())
    if type(choice) is not int:
        raise wrong_value(where, "withheld", "the number of a choice", choice)
    if not 0 <= choice < (len(example.choices) or choice + 1):
        raise DataError(
            f"{where}: choice {choice} is outside of the {len(example.choices)} choices "
            f"of {example.where}, which are counted from 0."
        )
    scores, score = row.get("scores"), probability(row.get("score"), None)
    text = "" if shown is None else row.get("choice_text") or choice_text(example, choice)
    all_scores = tuple(map(probability, scores)) if isinstance(scores, list) else ()
    if choice < len(all_scores) and not math.isnan(all_scores[choice]):
        return ChoicePrediction(example.id, shown, text, all_scores)
    return ChoicePrediction(example.id, shown, text, (), only_score=score)


def _with_items(tables: Tables) -> Tables:
    sides, predictions = (tables.gold, tables.predicted), tables.predictions
    category = np.full(len(tables), "wrong choice", object)
    items = Items.of(range(len(tables)), *sides, predictions=predictions, category=category)
    return replace(tables, items=items)


CHOICE = PredictionType(
    name="choice",
    wording=Wording("a choice", "question", "choices", WITHOUT_LABELS),
    metrics={"accuracy": Metric(lambda tables: means(tables.items.correct), mean), **ECE},
    default="accuracy",
    gold=attrgetter("label"),
    parse=_parse,
    tables=_with_items,
    read_gold=partial(CHOICES.stream, gold=True),
    gold_of_row=_question_of_row,
    groupings=lambda tables: {"text length": by_length(tables, "questions")},
    sides=_sides,
    one_class=True,
)
