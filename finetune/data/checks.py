"""The data doctor: what a data set holds, and what in it will spoil training or scores."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import mean, median
from typing import Any

from finetune.data.dataset import Dataset
from finetune.data.documents import check_documents
from finetune.data.duplicates import leaks, repeated
from finetune.data.findings import Finding, first_places, gold_of, texts_of
from finetune.data.span_checks import check_spans
from finetune.data.tag_schemes import detect_scheme, illegal_transitions
from finetune.types import Example, TextExample, TokenExample

PieceCounts = Callable[[Sequence[Any]], Sequence[Any]]
"""A tokenizer's view: texts -> pieces of each text, or lists of words -> pieces of each word."""

_MOST_LABELS = 20
_CHUNK = 1000


def check_data(
    dataset: Dataset, *, piece_counts: PieceCounts | None = None, max_length: int = 512
) -> list[Finding]:
    """Look at a data set for problems; with ``piece_counts`` also through a tokenizer.

    ``piece_counts`` takes a list of texts and returns the number of pieces of each; for words it
    takes a list of sentences (lists of words) and returns the number of pieces of each word.
    ``max_length`` is the longest sequence of the model in tokens.
    """
    findings = [*_overview(dataset), *check_documents(dataset), *_labels(dataset)]
    findings += [*_unseen(dataset), *check_spans(dataset)]
    scheme = detect_scheme(
        [row.tags or () for row in _tagged(itertools.chain(*dataset.splits.values()))]
    )
    for split, examples in dataset.splits.items():
        findings += _content(split, examples, max_length, piece_counts is None)
        findings += _transitions(split, examples, scheme)
        findings += repeated(split, examples)
        if piece_counts is not None:
            findings += _pieces(split, examples, piece_counts, max_length)
    return findings + list(leaks(dataset))


def _overview(dataset: Dataset) -> Iterator[Finding]:
    sizes = ", ".join(f"{split} {len(rows):,}" for split, rows in dataset.splits.items())
    yield Finding("info", "splits", f"{dataset.name} ({dataset.format}): {sizes} examples")
    for note in dataset.notes:
        yield Finding("info", "reading", note)
    if "train" not in dataset.splits:
        yield Finding("warning", "splits", "no train split: good for evaluation only")
    elif not any(split.startswith("validation") for split in dataset.splits):
        message = "no validation split: training will hold out every tenth example of train"
        yield Finding("info", "splits", message)
    for split, rows in dataset.splits.items():
        yield Finding("info", "lengths", f"{split}: {_lengths(rows)}")


def _lengths(rows: Sequence[Example]) -> str:
    if isinstance(rows[0], TokenExample):
        return _summary("words", [len(row.words) for row in rows if isinstance(row, TokenExample)])
    texts = [texts_of(row) for row in rows]
    words = _summary("words", [sum(len(text.split()) for text in pair) for pair in texts])
    return f"{words}; {_summary('characters', [sum(map(len, pair)) for pair in texts])}"


def _summary(unit: str, sizes: Sequence[int]) -> str:
    p95 = sorted(sizes)[min(len(sizes) - 1, int(0.95 * len(sizes)))]
    return (
        f"{unit} mean {mean(sizes):.1f}, median {median(sizes):g}, 95% up to {p95:,}, "
        f"longest {max(sizes):,}"
    )


def _labels(dataset: Dataset) -> Iterator[Finding]:
    for split, rows in dataset.splits.items():
        gold = [names for row in rows if (names := gold_of(row)) is not None]
        without = [row.where for row in rows if gold_of(row) is None]
        if without:
            level = "info" if split.startswith("test") else "warning"
            message = f"{split}: {len(without):,} of {len(rows):,} examples have no label"
            if split == "train" and not gold:
                level, message = "error", "train: no example has a label (--columns label=NAME?)"
            yield Finding(level, "labels", message, first_places(without))
        numbers = [row.label for row in rows
                   if isinstance(row, TextExample) and isinstance(row.label, float)]  # fmt: skip
        counts = Counter(itertools.chain.from_iterable(gold))
        if numbers:
            spread = f"{min(numbers):g} to {max(numbers):g}, mean {mean(numbers):.2f}"
            yield Finding("info", "labels", f"{split}: numbers {spread}")
        elif counts:
            yield Finding("info", "labels", f"{split}: {_distribution(counts, rows[0])}")
        if split == "train" and len(set(numbers or counts)) == 1 and not _has_spans(rows):
            message = f"train: the only label is {next(iter(counts))!r}: there is nothing to learn"
            yield Finding("error", "labels", message)


def _has_spans(rows: Sequence[Example]) -> bool:
    return any(isinstance(row, TokenExample) and row.spans is not None for row in rows)


def _distribution(counts: Counter[str], example: Example) -> str:
    total = counts.total()
    unit = "labels"
    if isinstance(example, TokenExample):
        unit = "tags" if example.spans is None else "spans"
    shares = [f"{name} {count:,} ({100 * count / total:.1f}%)"
              for name, count in counts.most_common(_MOST_LABELS)]  # fmt: skip
    rest = f", … ({len(counts)} in all)" if len(counts) > _MOST_LABELS else ""
    return f"{total:,} {unit}: {', '.join(shares)}{rest}"


def _unseen(dataset: Dataset) -> Iterator[Finding]:
    """Labels that only one side has: unlearnable in evaluation data, unmeasured in train."""
    names = {
        split: Counter(name for row in rows for name in gold_of(row) or ())
        for split, rows in dataset.splits.items()
        if not any(isinstance(r, TextExample) and isinstance(r.label, float) for r in rows)
    }
    train = names.pop("train", None)
    if not train:
        return
    for split, counts in names.items():
        missing = {name: count for name, count in counts.items() if name not in train}
        if missing:
            listed = ", ".join(f"{name} ({count:,})" for name, count in missing.items())
            refused = isinstance(dataset.splits[split][0], TextExample)
            what = "training refuses them" if refused else "no model can predict them"
            message = f"{split}: labels that train never has, and {what}: {listed}"
            yield Finding("error" if refused else "warning", "labels", message)
        absent = [name for name in train if name not in counts]
        if absent and counts:
            message = f"{split}: never has {', '.join(absent[:_MOST_LABELS])}, which train has"
            yield Finding("info", "labels", message)


def _content(
    split: str, rows: Sequence[Example], max_length: int, by_words: bool
) -> Iterator[Finding]:
    """Empty texts, damaged characters, and texts too long by words alone."""
    empty = [row.where for row in rows if not all(text.strip() for text in texts_of(row))]
    if empty:
        message = f"{split}: {len(empty):,} examples with an empty text"
        yield Finding("warning", "empty", message, first_places(empty))
    damaged = [row.where for row in rows if any("\ufffd" in text for text in texts_of(row))]
    if damaged:
        message = f"{split}: {len(damaged):,} examples with U+FFFD, the mark of a lost character"
        yield Finding("warning", "characters", message, first_places(damaged))
    if by_words:
        too_long = [row.where for row in rows if _num_words(row) > max_length]
        if too_long:
            words = isinstance(rows[0], TokenExample)
            what = "will be read in windows" if words else "so surely more tokens"
            message = f"{split}: {len(too_long):,} examples have more than {max_length} words, "
            level = "info" if words else "warning"
            yield Finding(level, "lengths", message + what, first_places(too_long))


def _num_words(example: Example) -> int:
    if isinstance(example, TokenExample):
        return len(example.words)
    return sum(len(text.split()) for text in texts_of(example))


def _tagged(rows: Iterable[Example]) -> list[TokenExample]:
    return [row for row in rows if isinstance(row, TokenExample) and row.tags is not None]


def _transitions(split: str, rows: Sequence[Example], scheme: str | None) -> Iterator[Finding]:
    """Tags that stand where their scheme does not allow them."""
    tagged = _tagged(rows)
    if scheme is None or not tagged:
        return
    places = []
    for row in tagged:
        tags = row.tags or ()
        for at in illegal_transitions(tags, scheme):
            if at < len(tags):
                before = tags[at - 1] if at else "the start"
                places.append(f"{row.where}, word {at} ({row.words[at]!r}: {tags[at]} after "
                              f"{before})")  # fmt: skip
    message = f"{split}: tag scheme {scheme}"
    if not places:
        yield Finding("info", "scheme", f"{message}, every tag in its place")
        return
    message += f", {len(places):,} tags where they may not stand (each is read as a new span)"
    yield Finding("warning", "scheme", message, first_places(places))


def _pieces(
    split: str, rows: Sequence[Example], piece_counts: PieceCounts, max_length: int
) -> Iterator[Finding]:
    """What a tokenizer makes of the split: vanishing words, lengths, and what will not fit."""
    totals: list[int] = []
    vanished: list[str] = []
    for chunk in _chunks(rows):
        for row, counts in zip(chunk, _counted(chunk, piece_counts), strict=True):
            totals.append(sum(counts))
            if isinstance(row, TokenExample):
                vanished += [f"{row.where}, word {i} ({row.words[i]!r})"
                             for i, count in enumerate(counts) if count == 0]  # fmt: skip
    longest = max(range(len(rows)), key=totals.__getitem__)
    message = f"{split}: {_summary('pieces', totals)}"
    yield Finding("info", "pieces", message, (f"{rows[longest].where} (the longest)",))
    if vanished:
        message = f"{split}: {len(vanished):,} words have no pieces (they get a placeholder)"
        yield Finding("warning", "pieces", message, first_places(vanished))
    special = 3 if len(texts_of(rows[0])) == 2 else 2
    over = [row.where for row, total in zip(rows, totals, strict=True)
            if total + special > max_length]  # fmt: skip
    if over:
        words = isinstance(rows[0], TokenExample)
        what = "will be read in windows" if words else "will be cut, unless read in windows"
        message = f"{split}: {len(over):,} examples exceed {max_length} tokens: they {what}"
        yield Finding("info" if words else "warning", "lengths", message, first_places(over))


def _counted(rows: Sequence[Example], piece_counts: PieceCounts) -> Iterator[Sequence[int]]:
    """Pieces of each word of each sentence, or of each text of each example."""
    if isinstance(rows[0], TokenExample):
        yield from piece_counts([list(r.words) for r in rows if isinstance(r, TokenExample)])
        return
    flat = iter(piece_counts([text for row in rows for text in texts_of(row)]))
    for row in rows:
        yield list(itertools.islice(flat, len(texts_of(row))))


def _chunks(rows: Sequence[Example]) -> Iterator[Sequence[Example]]:
    for start in range(0, len(rows), _CHUNK):
        yield rows[start : start + _CHUNK]
