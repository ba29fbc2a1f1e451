"""The official scores of SQuAD 1.1 and 2.0.

Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text", and Rajpurkar,
Jia & Liang 2018, "Know What You Don't Know". Answers are compared without case, punctuation,
articles and differences of white space. The best of several gold answers counts. A question without
gold answers is right if no answer is predicted.

Shapes: N questions.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

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
