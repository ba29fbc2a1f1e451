"""Data checks: statistics of a data set, and problems that will spoil training or scores."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import mean, median
from typing import Any

from finetune.data.dataset import WITHOUT_LEAKS, Dataset, gold_labels, normalized_texts, texts_of
from finetune.data.findings import Finding, Level, located
from finetune.data.label_checks import label_problems
from finetune.data.spans import (
    COVERED_PER_MILLE,
    crossing_pairs,
    inner_spans,
    multi_label_spans,
    proposed_width,
)
from finetune.data.tag_schemes import detect_scheme, illegal_transitions
from finetune.types import Example, Span, TextExample, TokenExample, quantity

SubwordCounter = Callable[[Sequence[Any]], Sequence[Any]]
"""Maps texts to the number of subwords of each, or lists of words to a list of numbers for each."""
LocatedSpans = Sequence[tuple[str, Sequence[Span]]]
"""The ``file:line`` and the spans of each example that has gold."""

_MAX_LABELS = 20


def check_data(
    dataset: Dataset,
    *,
    count_subwords: SubwordCounter | None = None,
    max_length: int | None = 512,
    num_special: tuple[int, int] = (2, 3),
) -> list[Finding]:
    """Check a data set for problems: ``finetune check`` prints them, and training stops at errors.

    Args:
        dataset: The data.
        count_subwords: Counts subwords with a tokenizer.
        max_length: Longest sequence in tokens; None checks no lengths.
        num_special: Numbers of special tokens that the tokenizer adds to a text and to a pair.

    >>> print(render(check_data(read_text("examples/data/sentiment"))))
    """
    findings = [*_overview(dataset), *_documents(dataset), *_labels(dataset), *_pairs(dataset)]
    findings += [*label_problems(dataset.splits), *_spans(dataset)]
    tags = [row.tags or () for rows in dataset.splits.values() for row in _token_examples(rows)]
    scheme = detect_scheme(tags)
    for split, rows in dataset.splits.items():
        findings += _content(split, rows)
        findings += _transitions(split, _token_examples(rows), scheme)
        findings += _duplicates(split, rows)
        if max_length is not None:
            special = num_special[len(texts_of(rows[0])) > 1]
            findings += _lengths(split, rows, count_subwords, max_length, special)
    return [*findings, *_leaks(dataset)]


def _token_examples(rows: Sequence[Example]) -> list[TokenExample]:
    return [row for row in rows if isinstance(row, TokenExample)]


def _overview(dataset: Dataset) -> Iterator[Finding]:
    sizes = ", ".join(f"{split} {len(rows):,}" for split, rows in dataset.splits.items())
    yield Finding("info", "splits", f"{dataset.name} ({dataset.format}), examples: {sizes}")
    for note in dataset.notes:
        yield Finding("info", "reading", note)
    if "train" not in dataset.splits:
        yield Finding("warning", "splits", "no train split: good for evaluation only")
    elif not any(split.startswith("validation") for split in dataset.splits):
        message = "no validation split: training holds out a tenth of train (--validation-share)"
        yield Finding("info", "splits", message)
    for split, rows in dataset.splits.items():
        lengths = _summary("words", [_num_words(row) for row in rows])
        if not isinstance(rows[0], TokenExample):
            sizes_in_characters = [sum(map(len, texts_of(row))) for row in rows]
            lengths += f"; {_summary('characters', sizes_in_characters)}"
        yield Finding("info", "lengths", f"{split}: {lengths}")


def _num_words(example: Example) -> int:
    if isinstance(example, TokenExample):
        return len(example.words)
    return sum(len(text.split()) for text in texts_of(example))


def _summary(unit: str, sizes: Sequence[int]) -> str:
    p95 = sorted(sizes)[min(len(sizes) - 1, int(0.95 * len(sizes)))]
    return (
        f"{unit} mean {mean(sizes):.1f}, median {median(sizes):g}, 95% up to {p95:,}, "
        f"longest {max(sizes):,}"
    )


def _labels(dataset: Dataset) -> Iterator[Finding]:
    for split, rows in dataset.splits.items():
        gold = [labels for row in rows if (labels := gold_labels(row)) is not None]
        without = [row.where for row in rows if gold_labels(row) is None]
        if split == "train" and not gold:
            message = "train: no example has a label (--columns label=NAME?)"
            yield from located("error", "labels", message, without)
        else:
            level: Level = "info" if split.startswith("test") else "warning"
            message = f"{split}: {_of(without, rows, 'example')} no label"
            yield from located(level, "labels", message, without)
        numbers = [
            row.label
            for row in rows
            if isinstance(row, TextExample) and isinstance(row.label, float)
        ]
        counts = Counter(itertools.chain.from_iterable(gold))
        if numbers:
            spread = f"{min(numbers):g} to {max(numbers):g}, mean {mean(numbers):.2f}"
            yield Finding("info", "labels", f"{split}: numbers {spread}")
        elif counts:
            yield Finding("info", "labels", f"{split}: {_distribution(counts, rows[0])}")


def _pairs(dataset: Dataset) -> Iterator[Finding]:
    """Report splits with pairs of texts where train has single texts, and the reverse.

    Questions may have different numbers of choices.
    """
    if any(isinstance(row, TextExample) and row.choices for row in dataset.splits.get("train", ())):
        return
    train = {len(texts_of(row)) for row in dataset.splits.get("train", ())}
    for split, rows in dataset.splits.items():
        other = [row.where for row in rows if len(texts_of(row)) not in train]
        if len(train) == 1 and other:
            kinds = "pairs of texts" if train == {2} else "single texts"
            message = f"{split}: {len(other):,} of {quantity(len(rows), 'example')} unlike train, "
            message += f"which has {kinds}: name the columns with --columns text=NAME pair=NAME"
            yield from located("error", "pairs", message, other)


def _distribution(counts: Counter[str], example: Example) -> str:
    total = counts.total()
    unit = "label"
    if isinstance(example, TokenExample):
        unit = "tag" if example.spans is None else "span"
        unit = unit if example.relations is None else "relation"
    listed = [
        f"{name} {count:,} ({100 * count / total:.1f}%)"
        for name, count in counts.most_common(_MAX_LABELS)
    ]
    rest = f", … ({len(counts)} in all)" if len(counts) > _MAX_LABELS else ""
    return f"{quantity(total, unit)}: {', '.join(listed)}{rest}"


def document_notes(split: str, rows: Sequence[Example]) -> list[str]:
    """Return notes on sentences without a document, and on documents in several pieces."""
    return [finding.message for finding in _document_problems(split, _token_examples(rows))]


def _documents(dataset: Dataset) -> Iterator[Finding]:
    splits = {split: _token_examples(rows) for split, rows in dataset.splits.items()}
    if not any(splits.values()):
        return
    if all(row.document is None for rows in splits.values() for row in rows):
        message = "no sentence names its document, which training with --context would need"
        yield Finding("info", "documents", message)
        return
    for split, rows in splits.items():
        if sizes := [len(document) for document in _consecutive_documents(rows)]:
            message = f"{split}: {quantity(len(sizes), 'document')}, {_summary('sentences', sizes)}"
            yield Finding("info", "documents", message)
        yield from _document_problems(split, rows)


def _document_problems(split: str, rows: Sequence[TokenExample]) -> Iterator[Finding]:
    unnamed = [row.where for row in rows if row.document is None]
    message = f"{split}: {_of(unnamed, rows, 'sentence')} no document name"
    message += ": --context has nothing to add to them"
    yield from located("info", "documents", message, unnamed)
    begun: set[str | None] = set()
    again = []
    for document in _consecutive_documents(rows):
        if document[0].document in begun:
            again.append(document[0].where)
        begun.add(document[0].document)
    message = f"{split}: documents continue {quantity(len(again), 'time')} after another one began"
    message += ": --context ends there (keep the sentences of a document together)"
    yield from located("info", "documents", message, again)


def _consecutive_documents(rows: Sequence[TokenExample]) -> list[list[TokenExample]]:
    groups = itertools.groupby(rows, key=lambda row: row.document)
    return [list(document) for name, document in groups if name is not None]


def _content(split: str, rows: Sequence[Example]) -> Iterator[Finding]:
    empty = [row.where for row in rows if not all(map(str.strip, _required_texts(row)))]
    message = f"{split}: {quantity(len(empty), 'example')} with an empty text"
    yield from located("warning", "empty", message, empty)
    damaged = [row.where for row in rows if any("\ufffd" in text for text in texts_of(row))]
    message = (
        f"{split}: {quantity(len(damaged), 'example')} with U+FFFD, the mark of a lost character"
    )
    yield from located("warning", "characters", message, damaged)


def _required_texts(example: Example) -> Sequence[str]:
    """Return the texts that should not be blank: a question of choices needs no context."""
    if isinstance(example, TextExample) and example.choices:
        return example.choices
    return texts_of(example)


def _transitions(split: str, rows: Sequence[TokenExample], scheme: str | None) -> Iterator[Finding]:
    """Report tags that may not follow the tag before them."""
    if scheme is None or not any(row.tags for row in rows):
        return
    locations = []
    for row in rows:
        tags = row.tags or ()
        for i in illegal_transitions(tags, scheme):
            if i < len(tags):
                before = tags[i - 1] if i else "the start"
                word = f"word {i} ({row.words[i]!r}: {tags[i]} after {before})"
                locations.append(f"{row.where}, {word}")
    message = f"{split}: tag scheme {scheme}"
    if not locations:
        yield Finding("info", "scheme", f"{message}, all transitions legal")
        return
    message += f", {quantity(len(locations), 'illegal tag')} (read as the start of a span)"
    yield from located("warning", "scheme", message, locations)


def _lengths(
    split: str,
    rows: Sequence[Example],
    count_subwords: SubwordCounter | None,
    max_length: int,
    num_special: int,
) -> Iterator[Finding]:
    """Report examples that exceed the model; without a tokenizer, by their words alone."""
    words = isinstance(rows[0], TokenExample)
    level: Level = "info" if words else "warning"
    if count_subwords is None:
        over = [row.where for row in rows if _num_words(row) > max_length]
        effect = "read in windows" if words else "so surely more tokens"
        message = (
            f"{split}: {quantity(len(over), 'example')} of more than {max_length} words, {effect}"
        )
        yield from located(level, "lengths", message, over)
        return
    totals: list[int] = []
    vanished: list[str] = []
    for row, counts in zip(rows, _subword_counts(rows, count_subwords), strict=True):
        totals.append(_num_subwords(row, counts))
        if isinstance(row, TokenExample):
            vanished += [
                f"{row.where}, word {i} ({row.words[i]!r})"
                for i, count in enumerate(counts)
                if count == 0
            ]
    longest = max(range(len(rows)), key=totals.__getitem__)
    message = f"{split}: {_summary('subwords', totals)}"
    yield Finding("info", "subwords", message, (f"{rows[longest].where} (the longest)",))
    message = f"{split}: {quantity(len(vanished), 'word')} without subwords (read as a placeholder)"
    yield from located("warning", "subwords", message, vanished)
    over = [
        row.where
        for row, total in zip(rows, totals, strict=True)
        if total + num_special > max_length
    ]
    effect = "read in windows" if words else "will be cut, unless read in windows"
    message = (
        f"{split}: {quantity(len(over), 'example')} of more than {max_length} tokens: {effect}"
    )
    yield from located(level, "lengths", message, over)


def _num_subwords(example: Example, counts: Sequence[int]) -> int:
    """Return the number of subwords that the model reads at a time: one choice of a question."""
    if isinstance(example, TextExample) and (number := len(example.choices)):
        return sum(counts[:-number]) + max(counts[-number:])
    return sum(counts)


def _subword_counts(
    rows: Sequence[Example], count_subwords: SubwordCounter
) -> Iterator[Sequence[int]]:
    """Yield the numbers of subwords of each word of a sentence, or of each text of an example."""
    for start in range(0, len(rows), 1000):
        chunk = rows[start : start + 1000]
        if isinstance(rows[0], TokenExample):
            yield from count_subwords([list(row.words) for row in _token_examples(chunk)])
            continue
        counts = iter(count_subwords([text for row in chunk for text in texts_of(row)]))
        for row in chunk:
            yield list(itertools.islice(counts, len(texts_of(row))))


def _duplicates(split: str, rows: Sequence[Example]) -> Iterator[Finding]:
    """Report equal texts within a split, and equal texts with different labels."""
    groups: dict[tuple[str, ...], list[Example]] = defaultdict(list)
    for row in rows:
        groups[normalized_texts(row)].append(row)
    repeated = [group for group in groups.values() if len(group) > 1]
    extra = sum(len(group) - 1 for group in repeated)
    percent = 100 * extra / len(rows)
    repeats = quantity(extra, "repeated example")
    message = f"{split}: {repeats} ({percent:.1f}%): equal texts within the split"
    yield from located("info", "duplicates", message, [g[1].where for g in repeated])
    conflicts = []
    for group in repeated:
        first, *others = [row for row in group if gold_labels(row) is not None] or group
        other = next((row for row in others if _gold(row) != _gold(first)), None)
        conflicts += [f"{first.where} and {other.where}"] if other is not None else []
    message = f"{split}: {quantity(len(conflicts), 'repeated text')} with different labels"
    yield from located("warning", "duplicates", message, conflicts)


def _gold(example: Example) -> Any:
    if isinstance(example, TokenExample):
        return example.tags, example.spans
    return set(example.label) if isinstance(example.label, tuple) else example.label


def _leaks(dataset: Dataset) -> Iterator[Finding]:
    """Report evaluation examples that are in an earlier split too."""
    seen: dict[tuple[str, ...], tuple[str, str]] = {}
    for split, rows in dataset.splits.items():
        found: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            earlier, where = seen.setdefault(normalized_texts(row), (split, row.where))
            if earlier != split:
                found[earlier].append(f"{row.where} = {where}")
        for earlier, locations in found.items():
            percent = 100 * len(locations) / len(rows)
            shared = f"{quantity(len(locations), 'example')} ({percent:.1f}%)"
            message = f"{split}: {shared} also in {earlier}"
            level: Level = "info"
            if earlier == "train":
                level = "warning"
                message += f"; {split}{WITHOUT_LEAKS} of a run is the score of the others"
            yield from located(level, "leak", message, locations)


def _spans(dataset: Dataset) -> Iterator[Finding]:
    """Report widths, nesting, several labels and crossing of spans."""
    rows = {
        split: [
            (row.where, row.spans) for row in _token_examples(examples) if row.spans is not None
        ]
        for split, examples in dataset.splits.items()
    }
    widths = {
        split: [span.end - span.start for _, spans in found for span in spans]
        for split, found in rows.items()
    }
    limit = 0
    if train := widths.get("train"):
        limit, widest = proposed_width(train), max(train)
        fraction = sum(width <= limit for width in train) / len(train)
        # rounded down: 100 % is all
        covered = "all" if limit == widest else f"{math.floor(fraction * 10_000) / 100:.2f}%"
        message = (
            f"train: spans are up to {quantity(widest, 'word')} wide; --max-width {limit} covers "
        )
        yield Finding("info", "widths", f"{message}{covered} of them")
    nested_in_train = any(inner_spans(spans) for _, spans in rows.get("train", ()))
    for split, found in rows.items():
        total = len(widths[split])
        wider = sum(width > limit for width in widths[split])
        if split != "train" and train and wider:
            counted = f"{wider:,} of {quantity(total, 'span')} ({100 * wider / total:.1f}%)"
            message = f"{split}: {counted} wider than {quantity(limit, 'word')}, out of reach of "
            yield Finding("info", "widths", f"{message}that limit")
        if inner := sum(len(inner_spans(spans)) for _, spans in found):
            counted = f"{inner:,} of {quantity(total, 'span')} ({100 * inner / total:.1f}%)"
            message = f"{split}: {counted} inside a wider one"
            unseen = train and not nested_in_train
            message += ", but none in train is: no model learns this" if unseen else ""
            yield Finding("warning" if unseen else "info", "nesting", message)
        related = any(row.relations is not None for row in _token_examples(dataset.splits[split]))
        yield from _unreachable(split, found, total, related)


def _unreachable(split: str, rows: LocatedSpans, total: int, related: bool) -> Iterator[Finding]:
    """Report spans with several labels and crossing spans, which need an option to be predicted."""
    if related:
        return  # the spans of relations are given, not predicted
    several = [(where, same) for where, spans in rows for same in multi_label_spans(spans)]
    names = [", ".join(span.label for span in same) for _, same in several]
    locations = [
        f"{where}, words {same[0].start} to {same[0].end} ({labels})"
        for (where, same), labels in zip(several, names, strict=True)
    ]
    level = _level(split, sum(len(same) - 1 for _, same in several), total)
    message = (
        f"{split}: {quantity(len(several), 'span')} with several labels: --multi-label keeps all"
    )
    yield from located(level, "labels", message, locations)
    locations = [
        f"{where}, words {a.start} to {a.end} ({a.label}) and {b.start} to {b.end} ({b.label})"
        for where, spans in rows
        for a, b in crossing_pairs(spans)
    ]
    level = _level(split, len(locations), total)
    message = (
        f"{split}: {quantity(len(locations), 'pair')} of crossing spans: --decoding overlapping "
        "keeps both"
    )
    yield from located(level, "nesting", message, locations)


def _level(split: str, unreachable: int, total: int) -> Level:
    """Return a warning if train loses more spans than a proposed width may."""
    many = unreachable * 1000 > total * (1000 - COVERED_PER_MILLE)
    return "warning" if split == "train" and many else "info"


def _of(some: Sequence[str], rows: Sequence[Example], noun: str) -> str:
    """Return ``2 of 10 examples have``."""
    whole = quantity(len(rows), noun)
    return quantity(len(some), f"of {whole} has", f"of {whole} have")
