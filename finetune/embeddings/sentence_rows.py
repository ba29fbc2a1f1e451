"""The rows that sentence encoders learn from and are scored on.

Other splits than train are scored: pairs with numbers or labels, pairs to rank, or texts with half
of their words.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from finetune.data.examples import Examples
from finetune.evaluation.prediction_types.labels import named_positive
from finetune.types import TextExample


def with_numbers(rows: Examples) -> Examples:
    """Read labels that are whole numbers, such as ratings from 0 to 5, as numbers."""
    names = {label for label in rows.column("label") if label is not None}
    if not all(isinstance(name, str) and name.isdecimal() for name in names):
        return rows
    return rows.map(lambda _, row: replace(row, label=row.label and float(row.label)))


def scored_rows(rows: Sequence[TextExample], gold: type | None) -> Iterator[TextExample]:
    """Yield the examples of a split to score: with numbers, with labels, to rank, or without gold.

    ``gold`` is the type of the labels that the model learns from, None without labels.
    """
    pairs = [row for row in rows if row.pair is not None]
    numbers = [row for row in pairs if isinstance(row.label, float)]
    names = [row for row in pairs if isinstance(row.label, str)]
    if numbers or (names and gold is str):
        yield from numbers or names
    elif pairs and gold is not None:
        yield from (replace(row, label=None) for row in pairs)
    elif positive := list(positive_pairs(rows)):
        yield from (replace(pair, negative=None) for pair in positive)
    else:
        yield from distinct_texts(rows)


def distinct_texts(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield each distinct text that is not blank."""
    seen = set()
    for row in rows:
        for text in (row.text, row.pair):
            if text is not None and text.strip() and text not in seen:
                seen.add(text)
                yield TextExample(row.id, text, where=row.where)


def adjacent_texts(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield the pairs of the data, or pair each line with the next line of its text.

    Texts end at blank lines; a row of several lines is a text.
    """
    if any(row.pair is not None for row in rows):
        yield from (replace(row, label=None) for row in rows if row.pair is not None)
        return
    before = ""
    for row in rows:
        lines = row.text.split("\n")
        for line in ["", *lines, ""] if len(lines) > 1 else lines:
            if before.strip() and line.strip():
                yield TextExample(row.id, before, line, where=row.where)
            before = line


def positive_pairs(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield the pairs that belong together, perhaps with a hard negative, without their label.

    Pairs with labels belong together if they are entailment (or have the positive one of two
    labels); a negative contradicts the same first text (or has the other label; Gao et al., 2021).
    Pairs of the same first text take its negatives in turn.
    """
    pairs = [row for row in rows if row.pair is not None]
    names = {str(row.label) for row in pairs if row.label is not None}
    if any(isinstance(row.label, float) for row in pairs):
        return
    if not names:
        yield from pairs
        return
    positive = "entailment" if "entailment" in names else None
    opposite = "contradiction" if "contradiction" in names else None
    if len(names) == 2:
        positive = positive or named_positive(names)
        opposite = opposite or next(name for name in names if name != positive)
    negatives: dict[str, list[str]] = {}
    for row in pairs:
        if row.label == opposite and row.pair is not None:
            negatives.setdefault(row.text, []).append(row.pair)
    used: Counter[str] = Counter()
    for row in pairs:
        if positive is not None and row.label == positive:
            hard = negatives.get(row.text)
            negative = hard[used[row.text] % len(hard)] if hard else row.negative
            used[row.text] += 1
            yield replace(row, label=None, negative=negative)


def labeled_pairs(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield the pairs whose label is a name, unless all have the same label."""
    pairs = [row for row in rows if row.pair is not None and isinstance(row.label, str)]
    if len({row.label for row in pairs}) > 1:
        yield from pairs


def scaled_pairs(rows: Sequence[TextExample]) -> Iterator[TextExample]:
    """Yield the pairs whose label is a number, scaled to 0..1, which the cosines learn."""
    pairs = [row for row in rows if row.pair is not None and isinstance(row.label, float)]
    numbers = [row.label for row in pairs if isinstance(row.label, float)]
    if numbers:
        lowest, highest = min(numbers), max(numbers)
        for row, number in zip(pairs, numbers, strict=True):
            yield replace(row, label=(number - lowest) / max(highest - lowest, 1e-12))


def with_half(example: TextExample) -> TextExample:
    """Pair a text with half of its words, in order (or of its characters, if it is one word).

    The choice of words depends on the text alone, so that all runs are scored on the same pairs.
    """
    if example.pair is not None:
        return example
    words = example.text.split()
    units, between = (words, " ") if len(words) > 1 else (list(example.text), "")
    generator = random.Random(example.text)
    kept = sorted(generator.sample(range(len(units)), max(1, len(units) // 2)))
    return replace(example, pair=between.join(units[index] for index in kept))
