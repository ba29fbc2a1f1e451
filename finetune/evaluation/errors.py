"""Lists of a system's errors: each in one category, with its sentence and its confidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from finetune.evaluation.kinds.kind import Mistake, Scored
from finetune.types import Example, TextExample

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


def list_errors(scored: Scored) -> list[ErrorCase]:
    """List all that is wrong, in the order of its kind."""
    return _cases(scored, scored.kind.mistakes(scored))


def list_doubts(scored: Scored) -> list[ErrorCase] | None:
    """List the predictions whose gold may be wrong; None if probabilities do not tell."""
    doubts = scored.kind.doubts(scored)
    return None if doubts is None else _cases(scored, doubts)


def _cases(scored: Scored, mistakes: Iterator[tuple[int, Mistake]]) -> list[ErrorCase]:
    found, texts = [], dict[int, str]()
    for index, mistake in mistakes:
        example = scored.examples[index]
        text = texts.setdefault(index, example_text(example))  # several errors share it
        shown = text_excerpt(text)
        if mistake.words is not None:
            shown = excerpt(example.words, *mistake.words)
        gold, predicted, sure = mistake.gold, mistake.predicted, mistake.confidence
        values = example.id, example.where, gold, predicted, sure, text, shown, example.key
        found.append(ErrorCase(mistake.category, *values))
    return found


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


def example_text(example: Example) -> str:
    """Return the text of a sentence, or the text or pair of texts of an example."""
    if isinstance(example, TextExample):
        return example.text if example.pair is None else f"{example.text} ||| {example.pair}"
    return " ".join(example.words) if example.text is None else example.text


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
