"""Lists of a system's errors: each in one category, with its sentence and its confidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

import numpy as np

from finetune.data.dataset import ANSWERABLE
from finetune.evaluation import alignment
from finetune.evaluation.alignment import AlignedPredictions
from finetune.evaluation.answers import exact_match, word_f1
from finetune.evaluation.confident_learning import probable_label_errors
from finetune.evaluation.span_matching import Match, match_sentences
from finetune.evaluation.subgroups import surface
from finetune.types import Example, Relation, Span, TextExample, TokenExample

AROUND = 12  # words of an excerpt on each side of an error
MOST_CHARACTERS = 200  # of the excerpt of a text


@dataclass(frozen=True)
class ErrorCase:
    """One wrong prediction, or one missed gold label or span.

    Gold and prediction are JSON values: a label, a number, or a span with its ``start``, ``end``,
    ``label`` and ``text``; one of them is None if nothing corresponds to the other. The confidence
    is the probability of the prediction, None if unknown. The excerpt is the part of the text to
    show, with the span in brackets.
    """

    category: str
    id: int
    where: str
    gold: Any
    predicted: Any
    confidence: float | None
    text: str
    excerpt: str
    key: str | int | None = None

    def record(self) -> dict[str, Any]:
        """Return the JSON form, with the id in the data, and without the excerpt."""
        record = asdict(self)
        del record["excerpt"]
        key = record.pop("key")
        return record if key is None else record | {"id": key}


def span_errors(
    examples: Sequence[TokenExample],
    gold: Sequence[Collection[Span]],
    predicted: Sequence[Collection[Span]],
    probabilities: Sequence[Mapping[Span, float]] = (),
) -> list[ErrorCase]:
    """List every missed gold span and wrong predicted span, in the order of the data.

    The confidence of a missed gold span is the probability of predicting nothing there.
    """
    found = []
    probabilities = probabilities or [{}] * len(examples)
    matches = match_sentences(gold, predicted)
    for example, known, sentence in zip(examples, probabilities, matches, strict=True):
        text = example_text(example)
        for match in sentence:
            if match.kind != "correct":
                found.append(_words_error(match.kind, example, match, known, text))
    return found


def word_errors(run: AlignedPredictions) -> list[ErrorCase]:
    """List every word with a wrong tag; the category names the gold and the predicted tag."""
    found = []
    probabilities = alignment.word_probabilities(run)
    examples: Sequence[Any] = run.examples
    for number, (example, *sides) in enumerate(zip(examples, run.gold, run.predicted, strict=True)):
        text = example_text(example)
        for index, (tag, predicted) in enumerate(zip(*sides, strict=True)):
            if tag != predicted:
                span = Span(index, index + 1, predicted)
                match = Match(Span(index, index + 1, tag), span)
                known = {span: probabilities[number][index]} if probabilities else {}
                category = _confusion(tag, predicted)
                found.append(_words_error(category, example, match, known, text))
    return found


def label_errors(run: AlignedPredictions) -> list[ErrorCase]:
    """List every text with a wrong label; the category names the gold and the predicted label."""
    probabilities = alignment.predicted_label_probabilities(run) or repeat(None, len(run.gold))
    rows = zip(run.examples, run.gold, run.predicted, probabilities, strict=True)
    return [
        _error(_confusion(gold, predicted), example, gold, predicted, confidence)
        for example, gold, predicted, confidence in rows
        if gold != predicted
    ]


def contradictions(run: AlignedPredictions) -> list[ErrorCase]:
    """List the texts whose gold label may be wrong, the most confident prediction first.

    The list is empty (``probable_label_errors``) if texts have probabilities of different labels,
    or lack the probability of a gold label.
    """
    probabilities = alignment.label_probabilities(run)
    names = sorted(probabilities[0]) if probabilities else []
    if any({*each} != {*names} for each in probabilities) or not {*run.gold} <= {*names}:
        return []
    table = np.array([[each[name] for name in names] for each in probabilities])
    classes = np.array([names.index(name) for name in run.gold], dtype=int)
    return [
        _error("contradicts gold", run.examples[i], run.gold[i], names[j], float(table[i, j]))
        for i, j in probable_label_errors(table, classes)
    ]


def label_set_errors(run: AlignedPredictions) -> list[ErrorCase]:
    """List every label of a text that was missed or is a false positive."""
    found = []
    probabilities = alignment.label_probabilities(run) or [{}] * len(run.gold)
    rows = zip(run.examples, run.gold, run.predicted, probabilities, strict=True)
    for example, gold, predicted, known in rows:
        for name in sorted({*gold} ^ {*predicted}):
            probability = known.get(name)
            if name not in gold:
                found.append(_error("false positive", example, None, name, probability))
            else:
                missed = None if probability is None else 1 - probability
                found.append(_error("miss", example, name, None, missed))
    return found


def relation_errors(run: AlignedPredictions) -> list[ErrorCase]:
    """List every relation that was missed or is a false positive.

    The category tells if the other side has a relation that differs in the label, the direction or
    the type of a span only.
    """
    found = []
    probabilities = alignment.relation_probabilities(run)
    rows = zip(run.examples, run.gold, run.predicted, probabilities, strict=True)
    for example, gold, predicted, known in rows:
        for own, other in ((gold, predicted), (predicted, gold)):
            near = {(*r.subject[:2], *r.object[:2]): r for r in other}
            for relation in sorted({*own} - {*other}):
                category = "miss" if own is gold else "false positive"
                one, two = relation.subject[:2], relation.object[:2]
                same, turned = near.get((*one, *two)), near.get((*two, *one))
                if same is not None and same.label == relation.label:
                    category = "type of a span"
                elif same is not None:
                    sides = (relation, same) if own is gold else (same, relation)
                    category = _confusion(*(side.label for side in sides))
                elif turned is not None and turned.label == relation.label:
                    category = "direction"
                found.append(_relation_error(category, example, relation, own is gold, known))
    return found


def answer_errors(run: AlignedPredictions) -> list[ErrorCase]:
    """List every question whose answer is not exactly right.

    Gold is the first of the gold answers with the most words in common. The category tells whether
    an answer was missed, should not be there, overlaps with gold or is elsewhere.
    """
    found = []
    probabilities = alignment.predicted_label_probabilities(run) or repeat(None, len(run.gold))
    rows = zip(run.examples, run.rows, run.gold, run.predicted, probabilities, strict=True)
    for example, row, gold, predicted, confidence in rows:
        if exact_match(gold, predicted):
            continue
        shown = answer = None
        if gold:
            nearest = max(range(len(gold)), key=lambda index: word_f1([gold[index]], predicted))
            answer = example.answers[nearest]
            end = None if answer.start is None else answer.start + len(answer.text)
            shown = {"start": answer.start, "end": end, "label": ANSWERABLE, "text": answer.text}
        own = None
        if predicted:
            own = {"start": row.get("start"), "end": row.get("end")}
            own |= {"label": ANSWERABLE, "text": predicted}
        overlap = word_f1(gold, predicted) > 0
        category = "partly right" if overlap else "wrong answer"
        if own is None or shown is None:
            category = "no answer predicted" if own is None else "answered without gold"
        found.append(_error(category, example, shown, own, confidence))
    return found


def choice_errors(run: AlignedPredictions) -> list[ErrorCase]:
    """List every question with a wrong choice; gold and prediction are the texts of choices."""
    probabilities = alignment.predicted_label_probabilities(run) or repeat(None, len(run.gold))
    rows = zip(run.examples, run.gold, run.predicted, probabilities, strict=True)
    found = []
    for example, gold, predicted, confidence in rows:
        if gold != predicted:
            right, chosen = choice_texts(example, gold, predicted)
            found.append(_error("wrong choice", example, right, chosen, confidence))
    return found


def choice_texts(example: Any, *indices: int) -> list[str]:
    """Return the texts of choices; their numbers where the texts are not known."""
    return [example.choices[n] if example.choices else f"choice {n}" for n in indices]


def number_errors(run: AlignedPredictions) -> list[ErrorCase]:
    """List all texts, the largest error first."""
    rows = zip(run.examples, run.gold, run.predicted, strict=True)
    errors = [_error("error", *row, None) for row in rows]
    return sorted(errors, key=lambda error: -abs(error.gold - error.predicted))


def count_categories(errors: Iterable[ErrorCase]) -> dict[str, int]:
    """Return the number of errors of each category, the most frequent first."""
    return dict(Counter(error.category for error in errors).most_common())


def most_confident(errors: Iterable[ErrorCase], number: int) -> list[ErrorCase]:
    """Return the errors with the highest confidence; empty if confidences are unknown."""
    known = [error for error in errors if error.confidence is not None]
    return sorted(known, key=_negative_confidence)[:number]


def first_by_category(errors: Sequence[ErrorCase], number: int) -> dict[str, list[ErrorCase]]:
    """Return the first errors of each category; the most confident ones if confidence is known."""
    by_category: dict[str, list[ErrorCase]] = {name: [] for name in count_categories(errors)}
    for error in sorted(errors, key=_negative_confidence):
        by_category[error.category].append(error)
    return {name: some[:number] for name, some in by_category.items()}


def _negative_confidence(error: ErrorCase) -> float:
    return -(error.confidence or 0.0)


def _confusion(gold: str, predicted: str) -> str:
    return f"{gold} taken for {predicted}"


def example_text(example: Example) -> str:
    """Return the text of a sentence, or the text or pair of texts of an example."""
    if isinstance(example, TextExample):
        return example.text if example.pair is None else f"{example.text} ||| {example.pair}"
    return " ".join(example.words) if example.text is None else example.text


def _words_error(
    category: str, example: TokenExample, match: Match, known: Mapping[Span, float], text: str
) -> ErrorCase:
    gold, predicted = (
        span and {**span._asdict(), "text": surface(example.words, span)} for span in match
    )
    span = match.predicted or match.gold
    assert span is not None
    shown = excerpt(example.words, span.start, span.end)
    return _error(category, example, gold, predicted, known.get(span), text, shown)


def _relation_error(
    category: str,
    example: TokenExample,
    relation: Relation,
    is_gold: bool,
    known: Mapping[Relation, float],
) -> ErrorCase:
    start = min(relation.subject.start, relation.object.start)
    end = max(relation.subject.end, relation.object.end)
    names = [f"{surface(example.words, span)} ({span.label})" for span in relation[:2]]
    value = Span(start, end, relation.label)._asdict() | {"text": " → ".join(names)}
    gold, predicted = (value, None) if is_gold else (None, value)
    shown, text = excerpt(example.words, start, end), example_text(example)
    return _error(category, example, gold, predicted, known.get(relation), text, shown)


def _error(
    category: str,
    example: Example,
    gold: Any,
    predicted: Any,
    confidence: float | None,
    text: str | None = None,
    shown: str | None = None,
) -> ErrorCase:
    """Return an error. ``shown`` is its excerpt, by default the beginning of the text.

    ``text`` is the text of the example: several errors of an example share it.
    """
    text = example_text(example) if text is None else text
    shown = text_excerpt(text) if shown is None else shown
    values = (gold, predicted, confidence, text, shown)
    return ErrorCase(category, example.id, example.where, *values, example.key)


def text_excerpt(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"


def excerpt(words: Sequence[str], start: int, end: int) -> str:
    """Return the words around a span, with the span in brackets.

    >>> excerpt(["Ana", "saw", "Oslo"], 2, 3)
    'Ana saw [Oslo]'
    """
    before, after = words[max(0, start - AROUND) : start], words[end : end + AROUND]
    marked = [*before, f"[{' '.join(words[start:end])}]", *after]
    left, right = "… " * (start > AROUND), " …" * (len(words) > end + AROUND)
    return f"{left}{' '.join(marked)}{right}"
