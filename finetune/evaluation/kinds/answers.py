"""Answers to questions: texts from a context, or none.

Scores equal the scores of the official evaluation of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016,
"SQuAD: 100,000+ Questions for Machine Comprehension of Text", and Rajpurkar, Jia & Liang, 2018,
"Know What You Don't Know"). Answers are compared without case, punctuation, articles and
differences of white space. The best of several gold answers counts. A question without gold answers
is right if no answer is predicted.

Shapes: N questions.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finetune.config.values import conforms
from finetune.data import DataError
from finetune.data.files import DataFile
from finetune.data.questions import QUESTIONS
from finetune.evaluation.kinds.examples import OfTexts, bucket, buckets, by_length, confidence_of
from finetune.evaluation.kinds.kind import (
    Grouping,
    Mistake,
    Scored,
    Shown,
    Wording,
    expected_calibration_error,
    known_or_nan,
)
from finetune.evaluation.metrics import Metric, mean
from finetune.types import (
    ANSWERABLE,
    UNANSWERABLE,
    Answer,
    AnswerPrediction,
    FoundAnswer,
    Question,
)

if TYPE_CHECKING:
    from finetune.evaluation.predictions import GoldSource
    from finetune.evaluation.training_vocabulary import TrainingVocabulary

WITHHELD = "\ufffc"
"""The value of an answer that is withheld: no gold answer equals it, nor does no answer."""
ANSWER_LENGTHS = (1, 2, 3, 4, 6, 11)
QUESTION_WORDS = ("what", "who", "whom", "whose", "when", "where", "which", "why", "how")
OTHER_QUESTIONS = "other"


_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=65536)
def normalized_answer(text: str) -> str:
    """Return an answer in lower case, without punctuation, articles and extra white space.

    >>> normalized_answer("The  Bank, of England")
    'bank of england'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(gold: Sequence[str], predicted: str) -> float:
    """Return 1.0 if an answer equals a gold answer, else 0.0; both may be empty."""
    found = normalized_answer(predicted)
    return float(any(normalized_answer(answer) == found for answer in _scored(gold)))


def word_f1(gold: Sequence[str], predicted: str) -> float:
    """Return the F1 of the words of an answer, of the best gold answer."""
    found = normalized_answer(predicted).split()
    return max(_f1(normalized_answer(answer).split(), found) for answer in _scored(gold))


def _scored(gold: Sequence[str]) -> Sequence[str]:
    return [answer for answer in gold if normalized_answer(answer)] or [""]


def _f1(gold: Sequence[str], found: Sequence[str]) -> float:
    if not gold or not found:
        return float(gold == found)
    common = (Counter(gold) & Counter(found)).total()
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def best_scores(
    gold: Sequence[Sequence[str]], best: Sequence[str], no_answer: Sequence[float]
) -> dict[str, float]:
    """Return the scores with the best threshold of the probability of no answer on these data.

    As in the official evaluation, they bound the scores of a threshold that is chosen on other
    data. ``best_exact_thresh`` and ``best_f1_thresh`` are the probabilities above which no answer
    is predicted. Of questions with equal probabilities, the first ones may be answered alone.

    Args:
        gold: The gold answers of each question.
        best: The most probable answer to each question, also where none is predicted.
        no_answer: The probabilities of no answer.
    """
    found = {}
    for name, exact in (("exact", True), ("f1", False)):
        totals, thresholds = _totals(gold, best, no_answer, exact)
        chosen = int(totals.argmax())
        found[f"best_{name}"] = float(totals[chosen]) / len(gold)
        found[f"best_{name}_thresh"] = float(thresholds[chosen])
    return found


def best_threshold(
    gold: Sequence[Sequence[str]], best: Sequence[str], no_answer: Sequence[float]
) -> float:
    """Return the least probability of no answer with which to predict none, for the best F1.

    It is in the middle between the probabilities of two questions. The arguments are as for
    ``best_scores``.
    """
    totals, thresholds = _totals(gold, best, no_answer, exact=False)
    upper = np.append(thresholds[1:], max(1.0, thresholds[-1]))
    possible = upper > thresholds  # no threshold is between equal probabilities, or above 1
    possible[0] = True  # 0 answers no question, whatever the lowest probability
    chosen = int(np.where(possible, totals, -np.inf).argmax())
    return float((thresholds[chosen] + upper[chosen]) / 2)


def _totals(
    gold: Sequence[Sequence[str]], best: Sequence[str], no_answer: Sequence[float], exact: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of scores if the questions with the K lowest probabilities are answered.

    Returns:
        The sums for K from 0 to N; and 0.0 with the sorted probabilities: each [N + 1].
    """
    scores = answer_counts(gold, best, exact)[:, 0]
    none = np.array([float(not answers) for answers in gold])
    wrong = np.array([float(bool(text)) for text in best])  # an answer where there is none
    gains = np.where(none > 0, -wrong, scores)
    probabilities = np.asarray(no_answer, dtype=np.float64)
    order = np.argsort(probabilities, kind="stable")
    totals = none.sum() + np.append(0.0, np.cumsum(gains[order]))
    return totals, np.append(0.0, probabilities[order])


def answer_counts(
    gold: Sequence[Sequence[str]], predicted: Sequence[str], exact: bool
) -> np.ndarray:
    """Return the score of each question, whether it has an answer, and 1: [N, 3]."""
    score = exact_match if exact else word_f1
    rows = [
        (score(answers, found), float(bool(answers)), 1.0)
        for answers, found in zip(gold, predicted, strict=True)
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


# --- The kind -------------------------------------------------------------------------------------


def question_counts(scored: Scored, exact: bool, has_answer: bool | None = None) -> np.ndarray:
    """Return the score of each answer, and 1 [N, 2].

    With ``has_answer``, both are 0 for the questions without an answer, or for the others.
    """
    score, has, one = answer_counts(scored.gold, scored.predicted, exact).T
    counted = one if has_answer is None else has if has_answer else one - has
    return np.column_stack([score * counted, counted])


def _has_unanswerable(scored: Scored) -> bool:
    return not all(scored.gold)


class Answers(OfTexts):
    """Answers, scored as in the official evaluation of SQuAD; an empty one is no answer.

    Data with unanswerable questions also have the scores of the questions with an answer
    (``hasans_exact``, ``hasans_f1``) and without (``noans_exact``, ``noans_f1``), and, with the
    probabilities of no answer, ``best_scores``.
    """

    name, key = "answers", "answer"
    wording = Wording("answers", "text", "answers")
    metrics: ClassVar = {
        "exact_match": Metric(partial(question_counts, exact=True), mean),
        "f1": Metric(partial(question_counts, exact=False), mean),
        **{
            f"{part}_{name}": Metric(
                partial(question_counts, exact=exact, has_answer=has_answer),
                mean,
                _has_unanswerable,
            )
            for part, has_answer in (("hasans", True), ("noans", False))
            for name, exact in (("exact", True), ("f1", False))
        },
        "ece": expected_calibration_error(),
    }
    default = "f1"
    without_gold = "no question has gold answers."

    def gold(self, example: Question) -> tuple[str, ...] | None:
        """Return the texts of the gold answers, of which one is enough."""
        answers = example.answers
        return None if answers is None else tuple(answer.text for answer in answers)

    def value(self, prediction: AnswerPrediction) -> str:
        """Return the text of the predicted answer; empty for no answer."""
        if prediction.is_withheld:
            return WITHHELD
        return "" if prediction.answer is None else prediction.answer.text

    def forced(self, prediction: AnswerPrediction) -> str:
        """Return the text with the answer that is withheld."""
        withheld: str = prediction.decided.get("withheld") or ""
        return withheld if prediction.is_withheld else self.value(prediction)

    def read_gold(self, file: str | DataFile, source: GoldSource) -> list[Question]:
        """Return the questions of a file with their answers."""
        return list(QUESTIONS.stream(file, gold=True, **source.reading))

    def gold_of_row(self, index: int, where: str, row: Mapping[str, Any]) -> Question:
        """Return the question of a line with its gold."""
        gold, answers = row["gold"], None
        if gold is not None:
            if not conforms(gold, list[dict[str, int | str | None]]) or not all(
                isinstance(each.get("text"), str) for each in gold
            ):
                raise DataError(
                    f'{where}: next to `answer`, `gold` must be a list such as [{{"text": "Oslo", '
                    f'"start": 12}}], not {gold!r:.60}; or name a file with --gold FILE.'
                )
            answers = tuple(Answer(each.get("start"), each["text"]) for each in gold)
        return Question(
            index,
            row.get("text", ""),
            row.get("text_pair"),
            where=row.get("where", where),
            key=row.get("id"),
            answers=answers,
        )

    def parse(self, row: Mapping[str, Any], where: str, example: Question) -> AnswerPrediction:
        """Return a predicted answer; what a file lacks is None, or NaN."""
        score, found = known_or_nan(row.get("score")), row.get("best")
        answer = None
        if row["answer"]:
            start: Any = row.get("start")
            end: Any = row.get("end")
            answer = FoundAnswer(start, end, row["answer"], score)
        best: Any = None
        if found is not None:
            best = tuple(
                FoundAnswer(e.get("start"), e.get("end"), str(e.get("text", "")), e.get("score"))
                for e in found
            )
        decided = {"withheld": row.get("withheld", "")} if row["answer"] is None else {}
        no_answer = row.get("no_answer_score")
        return AnswerPrediction(example.id, answer, score, no_answer, best, decided)

    def is_right(self, gold: Sequence[str], predicted: str) -> bool:
        """Return whether an answer is exactly right."""
        return bool(exact_match(gold, predicted))

    def further_scores(self, scored: Scored) -> dict[str, float]:
        """Return the best scores of any threshold, where the probabilities of no answer tell."""
        none = [prediction.no_answer_score for prediction in scored.predictions]
        known = [score for score in none if score is not None]
        best = [p.best for p in scored.predictions if p.best is not None]
        if not known or len(known) < len(none) or len(best) < len(none):
            return {}
        if not _has_unanswerable(scored):
            return {}
        texts = [each[0].text if each else "" for each in best]
        return best_scores(scored.gold, texts, list(map(float, known)))

    def groupings(
        self, scored: Scored, vocabulary: TrainingVocabulary | None
    ) -> dict[str, Grouping]:
        """Divide questions by the length of the first gold answer and of the text, and by word.

        The word is the first English question word.
        """
        words, answers = [], []
        for example in scored.examples:
            found = (w for w in re.findall(r"\w+", example.text.lower()) if w in QUESTION_WORDS)
            words.append(next(found, OTHER_QUESTIONS))
            gold = example.answers or ()
            size = len(gold[0].text.split()) if gold else 0
            answers.append(bucket(size, ANSWER_LENGTHS) if gold else UNANSWERABLE)
        lengths, order = by_length(scored.examples)
        groups: dict[str, tuple[Sequence[str], Sequence[str]]] = {
            "answer length": (answers, [UNANSWERABLE, *buckets(ANSWER_LENGTHS)]),
            "text length": ([each for (each,) in lengths], order),
        }
        if {*words} != {OTHER_QUESTIONS}:
            groups["question word"] = words, (*QUESTION_WORDS, OTHER_QUESTIONS)
        return {name: _grouping(*each) for name, each in groups.items()}

    def mistakes(self, scored: Scored) -> Iterator[tuple[int, Mistake]]:
        """Yield every answer that is not exactly right.

        Gold is the first of the gold answers with the most words in common. The category tells
        whether an answer was missed, should not be there, overlaps with gold or is elsewhere.
        """
        rows = zip(scored.sides, confidence_of(scored), strict=True)
        for number, ((gold, predicted), sure) in enumerate(rows):
            if exact_match(gold, predicted):
                continue
            shown = own = None
            if gold:
                nearest = max(range(len(gold)), key=lambda index: word_f1([gold[index]], predicted))
                start, text = scored.examples[number].answers[nearest]
                end = None if start is None else start + len(text)
                shown = {"start": start, "end": end, "label": ANSWERABLE, "text": text}
            if answer := scored.predictions[number].answer:
                own = {"start": answer.start, "end": answer.end}
                own |= {"label": ANSWERABLE, "text": predicted}
            category = "partly right" if word_f1(gold, predicted) > 0 else "wrong answer"
            if own is None or shown is None:
                category = "no answer predicted" if own is None else "answered without gold"
            if scored.predictions[number].is_withheld:
                category = "answer withheld"
            yield number, Mistake(category, shown, own, sure)

    def shown(self, scored: Scored, index: int, mistakes: Sequence[Any]) -> Shown:
        """Return the answers, the most probable ones, and the context that they are in."""
        prediction, predicted = scored.predictions[index], scored.predicted[index]
        best = [(each.text, each.score) for each in prediction.best or ()]
        if prediction.no_answer_score is not None:
            best.append((UNANSWERABLE, prediction.no_answer_score))
        known = [(*each, "") for each in best if isinstance(each[1], float)]
        return Shown(
            list(dict.fromkeys(scored.gold[index])),
            [predicted] if prediction.answer else [],
            sorted(known, key=lambda each: -each[1])[:4],
            mistakes[0].confidence,
            context=scored.examples[index].pair or "",
        )

    def repeatable(self, prediction: AnswerPrediction) -> Collection[Any] | None:
        """Return the answer."""
        return {self.value(prediction)}


def _grouping(groups: Sequence[str], order: Sequence[str]) -> Grouping:
    def cells(scored: Scored) -> Iterator[tuple[int, str, tuple[float, int, float]]]:
        exact, f1 = (_scores(scored, each) for each in (True, False))
        for index, group in enumerate(groups):
            yield index, group, (f1[index], 1, exact[index])

    def row(sums: np.ndarray) -> dict[str, Any]:
        f1, number, exact = sums.tolist()
        return {"questions": int(number), "exact_match": exact / number, "f1": f1 / number}

    return Grouping(cells, 3, order, row, "f1", mean)


def _scores(scored: Scored, exact: bool) -> list[float]:
    found: list[float] = answer_counts(scored.gold, scored.predicted, exact)[:, 0].tolist()
    return found


ANSWERS = Answers()
