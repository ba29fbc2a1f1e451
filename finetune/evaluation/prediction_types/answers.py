"""Answers to questions: texts from a context, or none; the official scores of SQuAD 1.1 and 2.0.

Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text", and Rajpurkar,
Jia & Liang 2018, "Know What You Don't Know". Answers are compared without case, punctuation,
articles and differences of white space. The best of several gold answers counts. A question without
gold answers is right if no answer is predicted. Data with such questions also have the scores of
the questions with an answer (``hasans_exact``, ``hasans_f1``) and without (``noans_exact``,
``noans_f1``).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from finetune.config.values import conforms
from finetune.data.questions import QUESTIONS
from finetune.evaluation.metrics import ECE, Items, Metric, mean, probability, ratio
from finetune.evaluation.prediction_types.labels import TEXT_LENGTHS, num_words
from finetune.evaluation.tables import (
    Grouping,
    PredictionType,
    Tables,
    Wording,
    buckets,
    count,
    wrong_value,
)
from finetune.types import ANSWERABLE, UNANSWERABLE, Answer, AnswerPrediction, FoundAnswer, Question

ANSWER_LENGTHS = (1, 2, 3, 4, 6, 11)


# --- SQuAD ----------------------------------------------------------------------------------------

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=65536)
def normalized_answer(text: str) -> str:
    """Write an answer in lower case, without punctuation, articles and extra white space.

    >>> normalized_answer("The  Bank, of England")
    'bank of england'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(gold: Sequence[str], predicted: str) -> float:
    """1.0 if an answer equals a gold answer, else 0.0; both may be empty."""
    normalized = normalized_answer(predicted)
    return float(any(normalized_answer(answer) == normalized for answer in _scored(gold)))


def word_f1(gold: Sequence[str], predicted: str) -> float:
    """The F1 of the words of an answer and of the best gold answer."""
    words = normalized_answer(predicted).split()
    return max(_f1(normalized_answer(answer).split(), words) for answer in _scored(gold))


def _scored(gold: Sequence[str]) -> Sequence[str]:
    return [answer for answer in gold if normalized_answer(answer)] or [""]


def _f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    if not gold or not predicted:
        return float(gold == predicted)
    common = (Counter(gold) & Counter(predicted)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def best_no_answer_threshold(
    gold: Sequence[Sequence[str]], best: Sequence[str], no_answer: Sequence[float]
) -> float:
    """Choose the least probability of no answer with which none is predicted, for the best F1.

    It is in the middle between the probabilities of two questions.

    Args:
        gold: The gold answers of each question.
        best: The most probable answer to each question, also where none is predicted.
        no_answer: The probabilities of no answer.
    """
    f1 = np.array([word_f1(*sides) for sides in zip(gold, best, strict=True)], dtype=np.float64)
    none = np.array([float(not answers) for answers in gold])
    wrong = np.array([float(bool(text)) for text in best])  # an answer where there is none
    probabilities = np.asarray(no_answer, dtype=np.float64)
    order = np.argsort(probabilities, kind="stable")
    # the sums of F1 if the questions with the K lowest probabilities are answered, K from 0 to N
    totals = none.sum() + np.append(0.0, np.cumsum(np.where(none > 0, -wrong, f1)[order]))
    thresholds = np.append(0.0, probabilities[order])
    upper = np.append(thresholds[1:], max(1.0, thresholds[-1]))
    possible = upper > thresholds  # no threshold is between equal probabilities, or above 1
    possible[0] = True  # a threshold of 0 answers no question
    chosen = int(np.where(possible, totals, -np.inf).argmax())
    return float((thresholds[chosen] + upper[chosen]) / 2)


# --- The type -------------------------------------------------------------------------------------


def gold_answers(example: Question) -> tuple[str, ...] | None:
    """List the texts of the gold answers; one is enough. None without gold."""
    answers = example.answers
    return None if answers is None else tuple(answer.text for answer in answers)


def _with_items(tables: Tables) -> Tables:
    answers = tables.gold, tables.predicted
    items = Items.of(range(len(tables)), *answers, predictions=tables.predictions)
    sides = list(zip(tables.gold, items.predicted, strict=True))
    f1 = np.array([word_f1(*pair) for pair in sides])
    has_answer = np.array([bool(answers) for answers in tables.gold], bool)
    categories = {
        "no answer predicted": items.predicted == "",
        "answered without gold": ~has_answer,
        "partly right": f1 > 0,
    }
    category = np.select(list(categories.values()), list(categories), "wrong answer")
    columns = {"f1": f1, "has_answer": has_answer, "category": category}
    credit = np.array([exact_match(*pair) for pair in sides])
    correct = credit * ~items.abstained
    return replace(tables, items=replace(items, credit=credit, correct=correct, columns=columns))


def _question_counts(tables: Tables, exact: bool, has_answer: bool | None = None) -> np.ndarray:
    items = tables.items
    score = items.credit if exact else items.columns["f1"]
    has = items.columns["has_answer"]
    counted = np.ones(len(items)) if has_answer is None else (has == has_answer).astype(float)
    return np.column_stack([score * ~items.abstained * counted, counted])


def _question_of_row(index: int, where: str, row: Mapping[str, Any]) -> Question:
    gold, answers = row["gold"], None
    if gold is not None:
        if not conforms(gold, list[dict[str, int | str | None]]) or not all(
            isinstance(answer.get("text"), str) for answer in gold
        ):
            raise wrong_value(where, "gold", 'a list such as [{"text": "Oslo", "start": 12}]', gold)
        answers = tuple(Answer(answer.get("start"), answer["text"]) for answer in gold)
    text, pair = row.get("text", ""), row.get("text_pair")
    where, key = row.get("where", where), row.get("id")
    return Question(index, text, pair, where=where, key=key, answers=answers)


def _parse(row: Mapping[str, Any], where: str, example: Question) -> AnswerPrediction:
    def read(answer: Any, text: str, score: Any) -> FoundAnswer:
        ends: Any = [x if type(x) is int else None for x in map(answer.get, ("start", "end"))]
        return FoundAnswer(ends[0], ends[1], text, score)

    if not isinstance(row.get("withheld", ""), str | None):
        raise wrong_value(where, "withheld", "an answer", row["withheld"])
    score, best = probability(row.get("score")), row.get("best")
    answer = read(row, row["answer"], score) if row["answer"] else None
    if best is not None:
        best = tuple(read(x, str(x.get("text", "")), x.get("score")) for x in best)
    decided = {"withheld": ""} if row["answer"] is None else {}
    no_answer = row.get("no_answer_score")
    shown: Any = best
    return AnswerPrediction(example.id, answer, score, no_answer, shown, decided=decided)


def _groupings(tables: Tables) -> dict[str, Grouping]:
    sizes = (len(gold[0].split()) if gold else None for gold in tables.gold)
    answers, order = buckets(sizes, ANSWER_LENGTHS)
    groups = {
        "answer length": ([name or UNANSWERABLE for name in answers], [UNANSWERABLE, *order]),
        "text length": buckets(map(num_words, tables.examples), TEXT_LENGTHS),
    }
    columns = [_question_counts(tables, exact) for exact in (False, True)]
    return {
        name: Grouping(
            example=tables.items.example,
            names=names,
            counts=np.column_stack([columns[0], columns[1][:, 0]]),
            order=order,
            cells={
                "questions": count(1),
                "exact_match": lambda sums: ratio(sums[..., 2], sums[..., 1]),
                "f1": mean,
            },
            rate="f1",
        )
        for name, (names, order) in groups.items()
    }


def _sides(tables: Tables, index: int) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    answer, predicted = tables.predictions[index].answer, tables.predicted[index]
    answers = tables.examples[index].answers
    nearest = max(answers, key=lambda gold: word_f1([gold.text], predicted), default=None)
    return nearest and _side(*nearest), answer and _side(answer.start, predicted)


def _side(start: int | None, text: str) -> dict[str, Any]:
    end = None if start is None else start + len(text)
    return {"start": start, "end": end, "label": ANSWERABLE, "text": text}


ANSWERS = PredictionType(
    name="answers",
    wording=Wording("answers", "question", "answers", "no question has gold answers."),
    metrics={
        "exact_match": Metric(partial(_question_counts, exact=True), mean),
        "f1": Metric(partial(_question_counts, exact=False), mean),
        **{
            f"{part}_{name}": Metric(
                partial(_question_counts, exact=exact, has_answer=has_answer),
                mean,
                lambda tables: not all(tables.gold),
            )
            for part, has_answer in (("hasans", True), ("noans", False))
            for name, exact in (("exact", True), ("f1", False))
        },
        **ECE,
    },
    default="f1",
    gold=gold_answers,
    parse=_parse,
    tables=_with_items,
    read_gold=partial(QUESTIONS.stream, gold=True),
    gold_of_row=_question_of_row,
    groupings=_groupings,
    sides=_sides,
)
