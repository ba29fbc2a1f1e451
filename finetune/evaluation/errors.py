"""What a system got wrong: each mistake in one category, with its sentence and its confidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from finetune.evaluation.confident_learning import probable_label_errors
from finetune.evaluation.span_matching import match_sentences
from finetune.evaluation.subgroups import surface
from finetune.types import Span, TextExample, TokenExample

AROUND = 12
"""Words shown on each side of a mistake."""
MOST_LETTERS = 200
"""Letters shown of a text."""


@dataclass(frozen=True)
class ErrorCase:
    """One wrong answer.

    ``gold`` and ``predicted`` are JSON values: a label, a number, or a span with its ``start``,
    ``end``, ``label`` and ``text``; None where one side has nothing. ``confidence`` is the
    probability that the system gave to its answer, None where it is not known. ``excerpt`` is the
    part of ``text`` to show, with the span in brackets.
    """

    category: str
    id: int
    where: str
    gold: Any
    predicted: Any
    confidence: float | None
    text: str
    excerpt: str

    def record(self) -> dict[str, Any]:
        """The JSON form, without the excerpt."""
        return {name: value for name, value in asdict(self).items() if name != "excerpt"}


def span_errors(
    examples: Sequence[TokenExample],
    gold: Sequence[Collection[Span]],
    predicted: Sequence[Collection[Span]],
    confidences: Sequence[Mapping[Span, float]] = (),
) -> list[ErrorCase]:
    """Every gold or predicted span that is not right, in one mistake, in the order of the data.

    ``confidences`` has those of the spans of each sentence, also of gold spans that were missed
    where the system said how sure it was of nothing there.
    """
    found = []
    confidences = confidences or [{}] * len(examples)
    matches = match_sentences(gold, predicted)
    for example, known, sentence in zip(examples, confidences, matches, strict=True):
        text = _text(example)
        for match in sentence:
            if match.kind == "correct":
                continue
            answer = match.predicted or match.gold
            assert answer is not None
            sides = (_record(example.words, span) for span in match)
            found.append(
                _of_words(match.kind, example, text, answer[:2], *sides, known.get(answer))
            )
    return found


def word_errors(
    examples: Sequence[TokenExample],
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    confidences: Sequence[Sequence[float] | None] = (),
) -> list[ErrorCase]:
    """Every word with a wrong tag; the category is what was taken for what."""
    found = []
    confidences = confidences or [None] * len(examples)
    for example, known, *sides in zip(examples, confidences, gold, predicted, strict=True):
        text = _text(example)
        for place, (right, answer) in enumerate(zip(*sides, strict=True)):
            if right == answer:
                continue
            extent = place, place + 1
            records = (_record(example.words, Span(*extent, tag)) for tag in (right, answer))
            confidence = None if known is None else known[place]
            category = f"{right} taken for {answer}"
            found.append(_of_words(category, example, text, extent, *records, confidence))
    return found


def label_errors(
    examples: Sequence[TextExample],
    gold: Sequence[str],
    predicted: Sequence[str],
    confidences: Sequence[float | None] = (),
) -> list[ErrorCase]:
    """Every text with a wrong label; the category is what was taken for what."""
    confidences = confidences or [None] * len(examples)
    rows = zip(examples, gold, predicted, confidences, strict=True)
    return [
        _of_text(f"{right} taken for {answer}", example, right, answer, confidence)
        for example, right, answer, confidence in rows
        if right != answer
    ]


def contradictions(
    examples: Sequence[TextExample], gold: Sequence[str], chances: Sequence[Mapping[str, float]]
) -> list[ErrorCase]:
    """Texts whose gold label the answer contradicts with more confidence than is usual for its
    class (``probable_label_errors``), the surest first.

    ``chances`` has the probability of every label for each text; none are found where texts have
    different labels in it, or gold has one that is not.
    """
    names = sorted(chances[0]) if chances else []
    if any({*each} != {*names} for each in chances) or not {*gold} <= {*names}:
        return []
    table = np.array([[each[name] for name in names] for each in chances])
    given = np.array([names.index(name) for name in gold], dtype=int)
    return [
        _of_text("contradicts gold", examples[i], gold[i], names[j], float(table[i, j]))
        for i, j in probable_label_errors(table, given)
    ]


def label_set_errors(
    examples: Sequence[TextExample],
    gold: Sequence[Collection[str]],
    predicted: Sequence[Collection[str]],
    chances: Sequence[Mapping[str, float]] = (),
) -> list[ErrorCase]:
    """Every label that a text has and did not get (a miss), or got and does not have.

    ``chances`` has the probability of each label for each text.
    """
    found = []
    chances = chances or [{}] * len(examples)
    for example, right, answer, known in zip(examples, gold, predicted, chances, strict=True):
        for name in sorted({*right} ^ {*answer}):
            missed, chance = name in right, known.get(name)
            category = "miss" if missed else "false positive"
            sides = (name, None) if missed else (None, name)
            confidence = 1 - chance if missed and chance is not None else chance
            found.append(_of_text(category, example, *sides, confidence))
    return found


def number_errors(
    examples: Sequence[TextExample], gold: Sequence[float], predicted: Sequence[float]
) -> list[ErrorCase]:
    """All texts, those with the largest errors first."""
    rows = sorted(
        zip(examples, gold, predicted, strict=True), key=lambda row: -abs(row[1] - row[2])
    )
    return [_of_text("error", *row, None) for row in rows]


def count_categories(mistakes: Iterable[ErrorCase]) -> dict[str, int]:
    """How many mistakes there are of each category, the commonest first."""
    return dict(Counter(mistake.category for mistake in mistakes).most_common())


def most_confident(mistakes: Iterable[ErrorCase], number: int) -> list[ErrorCase]:
    """The mistakes that the system was surest of; none where it gave no probabilities."""
    known = [mistake for mistake in mistakes if mistake.confidence is not None]
    return sorted(known, key=lambda mistake: -(mistake.confidence or 0.0))[:number]


def _record(words: Sequence[str], span: Span | None) -> dict[str, Any] | None:
    return None if span is None else {**span._asdict(), "text": surface(words, span)}


def _text(example: TokenExample) -> str:
    """The text of a sentence, which all mistakes in it share."""
    return " ".join(example.words) if example.text is None else example.text


def _of_words(
    category: str,
    example: TokenExample,
    text: str,
    extent: tuple[int, int],
    gold: Any,
    predicted: Any,
    confidence: float | None,
) -> ErrorCase:
    return ErrorCase(
        category, example.id, example.where, gold, predicted, confidence, text,
        excerpt(example.words, *extent),
    )  # fmt: skip


def _of_text(
    category: str, example: TextExample, gold: Any, predicted: Any, confidence: float | None
) -> ErrorCase:
    text = example.text if example.pair is None else f"{example.text} ||| {example.pair}"
    return ErrorCase(
        category, example.id, example.where, gold, predicted, confidence, text, shown(text)
    )


def shown(text: str) -> str:
    """The part of a text to show, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_LETTERS else f"{line[:MOST_LETTERS]}…"


def excerpt(words: Sequence[str], start: int, end: int) -> str:
    """The words around a span, which stands in brackets.

    >>> excerpt(["Ana", "saw", "Oslo"], 2, 3)
    'Ana saw [Oslo]'
    """
    before, after = words[max(0, start - AROUND) : start], words[end : end + AROUND]
    shown = [*before, f"[{' '.join(words[start:end])}]", *after]
    left, right = ["…"] * (start > AROUND), ["…"] * (len(words) > end + AROUND)
    return " ".join([*left, *shown, *right])
