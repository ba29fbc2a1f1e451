"""Data checks: statistics of a data set, and problems that will spoil training or scores."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import mean
from typing import Any, Literal

import numpy as np

from finetune.data.examples import (
    BLANK,
    DAMAGED,
    WARNING,
    WITHOUT_LEAKS,
    Dataset,
    Examples,
    indices_of,
)
from finetune.data.labels import variants, voted_names
from finetune.data.questions import START_COLUMN, misplaced, too_many_misplaced
from finetune.data.spans import (
    crossing_pairs,
    inner_spans,
    multi_label_spans,
    overlapping,
    proposed_width,
)
from finetune.data.tag_schemes import (
    Transitions,
    count_transitions,
    illegal_transitions,
    num_illegal,
    scheme_of,
)
from finetune.runtime.memory import without_garbage_collection
from finetune.runtime.progress import progress_task
from finetune.types import (
    ChoiceQuestion,
    Example,
    Question,
    TokenExample,
    abbreviated,
    did_you_mean,
    quantity,
)

Level = Literal["error", "warning", "info"]
_Splits = Mapping[str, Examples]
MAX_LOCATIONS = 5
"""Most locations that a finding names."""
SubwordCounter = Callable[[Sequence[Any]], Sequence[Any]]
"""Maps texts to the number of subwords of each, or lists of words to a list of numbers for each."""
_NO_LABEL = {"n/a", "#n/a", "na", "<na>", "null", "nil", "nan", "?"}
"""Names, in lower case, that probably mean *no label*."""
MIN_ROWS = 20
"""With at least this many rows, a different label in each row is an error."""
MOST_EXAMINED = 100_000
"""Most repeated texts whose labels are compared."""
_MAX_LABELS = 20


@dataclass(frozen=True)
class Finding:
    """One statistic or problem of the data.

    An ``error`` stops training, a ``warning`` probably costs quality, an ``info`` is a statistic.
    """

    level: Level
    check: str
    message: str
    locations: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The message with its first location."""
        return f"{self.message} (first in {self.locations[0]})" if self.locations else self.message


def _first_locations(rows: Examples, which: Iterable[bool]) -> tuple[list[str], int]:
    indices = indices_of(which)
    return rows.locations(indices[:MAX_LOCATIONS]), len(indices)


def _located(
    level: Level, check: str, message: str, locations: Sequence[str], number: int | None = None
) -> Iterator[Finding]:
    first = locations[:MAX_LOCATIONS]
    more = (len(locations) if number is None else number) - len(first)
    if locations:
        shown = (*first, *([f"… and {more:,} more"] if more else []))
        yield Finding(level, check, message, shown)


def bad_rows(errors: Iterable[str]) -> Iterator[Finding]:
    """Make a finding for each cause of the errors of rows that cannot be read.

    Errors have one cause if they differ in values, numbers and what is in parentheses alone.
    """
    by_cause: dict[str, list[str]] = {}
    for error in dict.fromkeys(errors):
        _, _, problem = error.partition(": ")
        cause = re.sub(r"'[^']*'|\"[^\"]*\"|\([^)]*\)|\d+( \w+)?", "", problem)
        by_cause.setdefault(cause, []).append(error)
    for same in by_cause.values():
        counted = quantity(len(same), "row cannot be read", "rows cannot be read")
        yield from _located("error", "rows", counted, same)


def render(findings: Iterable[Finding]) -> str:
    """Write the findings as text, errors last where they are seen, with a line of totals."""
    order = {"info": 0, "warning": 1, "error": 2}
    ranked = sorted(findings, key=lambda finding: order[finding.level])
    lines = []
    for finding in ranked:
        lines.append(f"{finding.level:<8} {finding.check:<11} {finding.message}")
        lines += [f"{'':<20} at {location}" for location in finding.locations]
    totals = Counter(finding.level for finding in ranked)
    lines.append(f"{quantity(totals['error'], 'error')}, {quantity(totals['warning'], 'warning')}")
    return "\n".join(lines)


@without_garbage_collection()
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
    splits = dataset.splits
    golds = {split: rows.gold_counts() for split, rows in splits.items()}
    related = {
        split
        for split, rows in splits.items()
        if rows.are_words and any(value is not None for value in rows.column("relations"))
    }
    if related:  # between spans that are given
        for split in splits.keys() - related:
            golds[split] = Counter(), len(splits[split])
    checks = [
        _overview(dataset),
        _documents(splits),
        _labels(splits, golds, related),
        _pairs(splits),
        _label_problems(splits, golds),
        _spans(splits),
    ]
    words = [split for split, rows in splits.items() if rows.are_words]
    transitions = {name: count_transitions(splits[name].column("tags")) for name in words}
    scheme = scheme_of(sum(transitions.values(), Counter()))
    for split, rows in splits.items():
        checks.append(_content(split, rows))
        if rows.example_type is Question:
            checks.append(_questions(split, rows))
        if scheme is not None and (counts := transitions.get(split)):
            checks.append(_transitions(split, rows, scheme, counts))
        checks.append(_duplicates(split, rows))
        if max_length is not None and count_subwords is None:
            checks.append(_words_over(split, rows, max_length))
        elif max_length is not None:
            special = num_special[len(rows[0].texts()) > 1]
            checks.append(_subwords(split, rows, count_subwords, max_length, special))
    checks.append(_leaks(splits))
    findings: list[Finding] = []
    with progress_task("checking", len(checks), unit="check") as show:
        for number, check in enumerate(checks, 1):
            findings += check
            show(number)
    return findings


def _overview(dataset: Dataset) -> Iterator[Finding]:
    sizes = ", ".join(f"{split} {len(rows):,}" for split, rows in dataset.splits.items())
    yield Finding("info", "splits", f"{dataset.name} ({dataset.format}), examples: {sizes}")
    for note in dataset.notes:
        level: Level = "warning" if note.startswith(WARNING) else "info"
        yield Finding(level, "reading", note.removeprefix(WARNING))
    if "train" not in dataset.splits:
        yield Finding("warning", "splits", "no train split: good for evaluation only")
    elif not any(split.startswith("validation") for split in dataset.splits):
        message = "no validation split: training holds out a tenth of train (--validation)"
        yield Finding("info", "splits", message)
    for split, rows in dataset.splits.items():
        lengths = _summary("words", rows.stats("words"))
        if not rows.are_words:
            lengths += f"; {_summary('characters', rows.stats('characters'))}"
        yield Finding("info", "lengths", f"{split}: {lengths}")


def _summary(unit: str, sizes: Any) -> str:
    ordered, number = np.sort(np.asarray(sizes)), len(sizes)
    p95 = ordered[min(number - 1, int(0.95 * number))]
    middle = (int(ordered[(number - 1) // 2]) + int(ordered[number // 2])) / 2
    return (
        f"{unit} mean {int(ordered.sum()) / number:.1f}, median {middle:g}, 95% up to {p95:,}, "
        f"longest {ordered[-1]:,}"
    )


def document_notes(split: str, rows: Sequence[Example]) -> list[str]:
    """Note sentences without a document, and documents in several pieces."""
    examples = Examples.of(rows)
    if not examples.are_words:
        return []
    findings = _documents_of(split, examples)
    return [finding.message for finding in findings if finding.locations]


def _documents(splits: _Splits) -> Iterator[Finding]:
    splits = {split: rows for split, rows in splits.items() if rows.are_words}
    if splits and all(name is None for rows in splits.values() for name in rows.column("document")):
        message = "no sentence names its document, which training with --context would need"
        yield Finding("info", "documents", message)
        return
    for split, rows in splits.items():
        yield from _documents_of(split, rows)


def _documents_of(split: str, rows: Examples) -> Iterator[Finding]:
    sizes, begun, again = list[int](), set[str](), list[str]()
    for document, group in itertools.groupby(rows.columns("document", "where"), itemgetter(0)):
        if document is not None:
            locations = [where for _, where in group]
            sizes.append(len(locations))
            again += locations[:1] if document in begun else []
            begun.add(document)
    if sizes:
        message = f"{split}: {quantity(len(sizes), 'document')}, {_summary('sentences', sizes)}"
        yield Finding("info", "documents", message)
    unnamed = _first_locations(rows, (name is None for name in rows.column("document")))
    message = f"{split}: {_of(unnamed[1], rows, 'sentence')} no document name"
    message += ": --context has nothing to add to them"
    yield from _located("info", "documents", message, *unnamed)
    message = f"{split}: documents continue {quantity(len(again), 'time')} after another one began"
    message += ": --context ends there (keep the sentences of a document together)"
    yield from _located("info", "documents", message, again)


Golds = Mapping[str, tuple[Counter[str], int]]
"""The counts of labels of each split, and its number of examples without gold."""


def _labels(splits: _Splits, golds: Golds, related: Collection[str]) -> Iterator[Finding]:
    for split, rows in splits.items():
        counts, number = golds[split]
        lacks_all = number == len(rows)
        which: Any = (lacks_all or gold is None for gold in rows.golds()) if number else ()
        without = _first_locations(rows, which)
        if lacks_all and not split.startswith("test"):
            message = f"{split}: no example has a label (--columns label=NAME?)"
            if related:
                message = f"{split}: no sentence has relations (--columns relations=NAME?)"
            yield from _located("error", "labels", message, *without)
        else:
            level: Level = "info" if split.startswith("test") else "warning"
            message = f"{split}: {_of(without[1], rows, 'example')} no label"
            yield from _located(level, "labels", message, *without)
        if numbers := _numbers(rows):
            spread = f"{min(numbers):g} to {max(numbers):g}, mean {mean(numbers):.2f}"
            yield Finding("info", "labels", f"{split}: numbers {spread}")
        elif counts:
            yield Finding("info", "labels", f"{split}: {_distribution(counts, rows[0])}")


def _numbers(rows: Examples) -> list[float]:
    labels = () if rows.are_words else rows.column("label")
    return [label for label in labels if isinstance(label, float)]


def _distribution(counts: Counter[str], example: Example) -> str:
    total = counts.total()
    unit = "label"
    if isinstance(example, TokenExample):
        unit = "tag" if example.spans is None else "span"
        unit = unit if example.relations is None else "relation"
    listed = (f"{name} ({n:,}, {100 * n / total:.1f}%)" for name, n in counts.most_common())
    return f"{quantity(total, unit)}: {abbreviated(listed, _MAX_LABELS)}"


def _pairs(splits: _Splits) -> Iterator[Finding]:
    train = splits.get("train", Examples())
    if train.are_words or train.example_type is ChoiceQuestion:
        return
    single = {pair is None for pair in train.column("pair")}
    for split, rows in splits.items() if len(single) == 1 else ():
        unlike = _first_locations(rows, ((p is None) not in single for p in rows.column("pair")))
        text_types = "single texts" if True in single else "pairs of texts"
        message = f"{split}: {unlike[1]:,} of {quantity(len(rows), 'example')} unlike train, "
        message += f"which has {text_types}: name the columns with --columns text=NAME pair=NAME"
        yield from _located("error", "pairs", message, *unlike)


def _label_problems(splits: _Splits, golds: Golds) -> Iterator[Finding]:
    if "train" in splits:
        yield from _nothing_to_learn(splits["train"], *golds["train"])
    if numbers := [label for rows in splits.values() for label in _numbers(rows)]:
        if all(map(float.is_integer, numbers)):
            message = "all labels are whole numbers with a decimal point and are read as numbers"
            yield Finding("warning", "numbers", f"{message}: write 1, not 1.0, for classes")
        return
    counts = {split: counted for split, (counted, _) in golds.items()}
    yield from _odd_names(sum(counts.values(), Counter[str]()))
    if counts.get("train"):
        yield from _unseen(splits, counts)


def _nothing_to_learn(train: Examples, counts: Counter[str], without: int) -> Iterator[Finding]:
    number = len(train) - without
    are_texts, problem = not train.are_words, ""
    if not number:
        return
    role = "label" if are_texts else "tags"
    columns = () if are_texts else ("relations", "spans")
    filled = [name for name in columns if any(value is not None for value in train.column(name))]
    if filled:
        problem = "" if counts else f"no example has a {filled[0].removesuffix('s')}"
        role = "relations" if "relations" in filled else role
    else:
        different: set[Any] = {*counts}
        if are_texts:
            labels, _ = train.codes("label")
            different = {x for x in labels if train.example_type.labels_of(x) is not None}
        if len(different) == 1:
            problem = (
                f"the only label of {quantity(number, 'example')} is {next(iter(counts), None)!r}"
            )
        elif are_texts and len(different) == number >= MIN_ROWS:
            if isinstance(next(iter(different)), str):
                problem = f"each of the {number:,} examples has a different label"
    if problem:
        message = f"train: {problem}, so there is nothing to learn: name the column of the labels: "
        yield Finding("error", "labels", f"{message}--columns {role}=NAME")


def _odd_names(counts: Counter[str]) -> Iterator[Finding]:
    for name, count in counts.items():
        if name.strip().lower() in _NO_LABEL:
            message = f"label {name!r} ({quantity(count, 'time')}) is read as a class: leave it "
            yield Finding("warning", "labels", f"{message}empty where there is no label")
    parts = {name: {*map(str.strip, re.split("[,;|]", name))} - {name} for name in counts}
    if joined := [name for name in counts if parts[name] & counts.keys()]:
        message = f"labels that hold other labels: {abbreviated(map(repr, joined))}"
        advice = 'if a text has several labels, write a list, such as ["joy", "surprise"]'
        yield Finding("warning", "labels", f"{message}: {advice}")
    if groups := variants(counts):
        listed = "; ".join(
            ", ".join(f"{name!a} ({counts[name]:,})" for name in names) for names in groups
        )
        message = f"labels that differ only in case, blanks or invisible characters: {listed}"
        advice = "if they mean one class, spell them alike"
        yield Finding("warning", "labels", f"{message}: {advice}")


def _unseen(splits: _Splits, counts: Mapping[str, Counter[str]]) -> Iterator[Finding]:
    train = [*counts["train"], *sorted(voted_names([splits["train"]]) - {*counts["train"]})]
    for split, rows in splits.items():
        missing = {name: count for name, count in counts[split].items() if name not in train}
        if missing:
            unseen = (not missing.keys().isdisjoint(gold or ()) for gold in rows.golds())
            listed = abbreviated(f"{name!r} ({count:,})" for name, count in missing.items())
            level: Level = "warning"
            effect = "no model can predict them, and they count as missed"
            if not rows.are_words:
                level, near = "error", did_you_mean(next(iter(missing)), train)
                effect = f"correct them, or remove their rows; train has {abbreviated(train)}"
                effect += near and f".{near}"
            message = f"{split}: labels that train does not have: {listed}: {effect}"
            yield from _located(level, "labels", message, *_first_locations(rows, unseen))
        names = {*counts[split], *voted_names([rows])}
        if counts[split] and (absent := [name for name in train if name not in names]):
            message = f"{split}: never has {abbreviated(absent)}, which train has"
            yield Finding("info", "labels", message)


def _content(split: str, rows: Examples) -> Iterator[Finding]:
    flags = rows.stats("flags")
    empty, damaged = (_first_locations(rows, flags & flag > 0) for flag in (BLANK, DAMAGED))
    message = f"{split}: {quantity(empty[1], 'example')} with an empty text"
    yield from _located("warning", "empty", message, *empty)
    message = f"{split}: {quantity(damaged[1], 'example')} with U+FFFD, the mark of a lost "
    yield from _located("warning", "characters", f"{message}character", *damaged)


def _questions(split: str, rows: Examples) -> Iterator[Finding]:
    reasons = list(misplaced(rows).values())
    level: Level = "warning"
    effect = "left out of training" if split == "train" else "scored by their text"
    if split == "train" and too_many_misplaced(len(reasons), rows):
        level = "error"
        effect = "write each answer as it is in the context, with the number of its first "
        effect += f"character there (`{START_COLUMN}`, from 0)"
    if split == "train" and not any(rows.column("answers")):
        message = "train: no question has an answer, so there is nothing to learn"
        yield Finding("error", "answers", message)
    message = f"{split}: {quantity(len(reasons), 'question')} without an answer in its place: "
    yield from _located(level, "answers", message + effect, reasons)
    firsts: dict[str | int, str] = {}
    repeated = [
        f"{where} ({key}, as {firsts[key]})"
        for key, where in rows.columns("key", "where")
        if key is not None and firsts.setdefault(key, where) != where
    ]
    message = f"{split}: {quantity(len(repeated), 'repeated id')}: predictions are scored by id"
    yield from _located("warning", "ids", message, repeated)


def _transitions(
    split: str, rows: Examples, scheme: str, transitions: Transitions
) -> Iterator[Finding]:
    illegal = list[str]()
    columns = rows.columns("where", "words", "tags")
    for where, words, tags in columns if num_illegal(transitions, scheme) else ():
        for i in illegal_transitions(tags or (), scheme):
            if i < len(tags):
                before = tags[i - 1] if i else "the start"
                illegal.append(f"{where}, word {i} ({words[i]!r}: {tags[i]} after {before})")
    message = f"{split}: tag scheme {scheme}"
    if not illegal:
        yield Finding("info", "scheme", f"{message}, all transitions legal")
    message += f", {quantity(len(illegal), 'illegal tag')} (read as the start of a span)"
    yield from _located("warning", "scheme", message, illegal)


def _words_over(split: str, rows: Examples, max_length: int) -> Iterator[Finding]:
    over = _first_locations(rows, rows.stats("words") > max_length)
    level: Level = "info" if rows.are_words else "warning"
    effect = "read in windows" if rows.are_words else "so surely more tokens"
    message = f"{split}: {quantity(over[1], 'example')} of more than {max_length} words, {effect}"
    yield from _located(level, "lengths", message, *over)


def _subwords(
    split: str, rows: Examples, count_subwords: Any, max_length: int, num_special: int
) -> Iterator[Finding]:
    words, totals, vanished = rows.are_words, list[int](), list[str]()
    for start in range(0, len(rows), 1000):
        chunk: list[Any] = list(rows[start : start + 1000])
        inputs = [list(r.words) for r in chunk] if words else [t for r in chunk for t in r.texts()]
        counted = iter(count_subwords(inputs))
        for row in chunk:
            counts = next(counted) if words else [next(counted) for _ in row.texts()]
            choices = len(row.choices) if isinstance(row, ChoiceQuestion) else 0
            context = sum(counts[: len(counts) - choices])
            totals.append(context + max(counts[len(counts) - choices :], default=0))
            zeros = (i for i, count in enumerate(counts if words else ()) if count == 0)
            vanished += [f"{row.where}, word {i} ({row.words[i]!r})" for i in zeros]
    longest = max(range(len(rows)), key=totals.__getitem__)
    message = f"{split}: {_summary('subwords', totals)}"
    yield Finding("info", "subwords", message, (f"{rows[longest].where} (the longest)",))
    message = f"{split}: {quantity(len(vanished), 'word')} without subwords (read as a placeholder)"
    yield from _located("warning", "subwords", message, vanished)
    over = _first_locations(rows, (total + num_special > max_length for total in totals))
    level: Level = "info" if words else "warning"
    effect = "read in windows" if words else "will be cut, unless read in windows"
    message = f"{split}: {quantity(over[1], 'example')} of more than {max_length} tokens: "
    yield from _located(level, "lengths", f"{message}{effect}", *over)


def _duplicates(split: str, rows: Examples) -> Iterator[Finding]:
    hashes = rows.stats("text")
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]))
    counts = np.diff(begins, append=len(ordered))
    begins, counts = begins[counts > 1], counts[counts > 1]
    extra = int((counts - 1).sum())
    repeats = f"{quantity(extra, 'repeated example')} ({100 * extra / len(rows):.1f}%)"
    message = f"{split}: {repeats}: equal texts within the split"
    by_location = np.argsort(order[begins])[:MAX_LOCATIONS]
    locations = rows.locations(order[begins[by_location] + 1])
    yield from _located("info", "duplicates", message, locations, len(begins))
    examined = np.zeros(len(rows), bool)
    # in the order of hashes: a random sample
    for begin, count in zip(begins[:MOST_EXAMINED], counts[:MOST_EXAMINED], strict=True):
        examined[order[begin : begin + count]] = True
    conflicts = _conflicts(rows.keep(examined), hashes[examined].tolist())
    message = f"{split}: {quantity(len(conflicts), 'repeated text')} with different labels"
    if len(begins) > MOST_EXAMINED:
        message += f", among {MOST_EXAMINED:,} of {len(begins):,}, drawn at random"
    yield from _located("warning", "duplicates", message, conflicts)


def _conflicts(repeated: Examples, hashes: Sequence[int]) -> list[str]:
    firsts: dict[int, tuple[str, Any]] = {}  # location and gold of the first labeled text
    conflicts: dict[int, str] = {}
    for key, row, labels in zip(hashes, repeated, repeated.golds(), strict=True):
        if labels is not None:
            gold = _gold(row)
            where, first_gold = firsts.setdefault(key, (row.where or "?", gold))
            if gold != first_gold:
                conflicts.setdefault(key, f"{where} and {row.where}")
    return [conflicts[key] for key in dict.fromkeys(hashes) if key in conflicts]


def _gold(example: Example) -> Any:
    if isinstance(example, TokenExample):
        return example.tags, example.spans
    return set(example.label) if isinstance(example.label, tuple) else example.label


def _leaks(splits: _Splits) -> Iterator[Finding]:
    earlier: dict[str, tuple[Any, Any]] = {}
    for split, rows in splits.items():
        hashes = rows.stats("text")
        unseen = np.ones(len(hashes), bool)
        leaks: list[tuple[str, Any, Any]] = []
        for name, (known, first) in earlier.items():
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            shared = np.flatnonzero((known[at] == hashes) & unseen)
            unseen[shared] = False
            if len(shared):
                leaks.append((name, shared, first[at[shared]]))
        for name, shared, first in sorted(leaks, key=lambda leak: int(leak[1][0])):
            locations = rows.locations(shared[:MAX_LOCATIONS])
            originals = splits[name].locations(first[:MAX_LOCATIONS])
            pairs = (f"{where} = {twin}" for where, twin in zip(locations, originals, strict=True))
            percent = 100 * len(shared) / len(rows)
            counted = f"{quantity(len(shared), 'example')} ({percent:.1f}%)"
            message = f"{split}: {counted} also in {name}"
            level: Level = "warning" if name == "train" else "info"
            if name == "train":
                message += f"; {split}{WITHOUT_LEAKS} of a run is the score of the others"
            yield from _located(level, "leak", message, list(pairs), len(shared))
        earlier[split] = np.unique(hashes, return_index=True)


def _spans(splits: _Splits) -> Iterator[Finding]:
    for split, rows in splits.items():
        widths, num_inner = Counter[int](), 0
        several, crossing = list[str](), list[str]()
        for where, spans in rows.columns("where", "spans") if rows.are_words else ():
            widths.update(span.end - span.start for span in spans or ())
            if not spans or not overlapping(spans):
                continue
            num_inner += len(inner_spans(spans))
            for same in multi_label_spans(spans):
                labels = ", ".join(span.label for span in same)
                several.append(f"{where}, words {same[0].start} to {same[0].end} ({labels})")
            for a, b in crossing_pairs(spans):
                location = f"words {a.start} to {a.end} ({a.label}) and {b.start} to {b.end}"
                crossing.append(f"{where}, {location} ({b.label})")
        total = widths.total()
        if split == "train" and total:
            limit, widest = proposed_width(widths), max(widths)
            fraction = sum(n for width, n in widths.items() if width <= limit) / total
            # rounded down: 100 % is all
            covered = "all" if limit == widest else f"{math.floor(fraction * 10_000) / 100:.2f}%"
            message = f"train: spans are up to {quantity(widest, 'word')} wide; --max-width {limit}"
            yield Finding("info", "widths", f"{message} covers {covered} of them")
        if num_inner:
            share = f"{num_inner:,} of {quantity(total, 'span')} ({100 * num_inner / total:.1f}%)"
            yield Finding("info", "nesting", f"{split}: {share} inside a wider one")
        # the spans of relations are given, not predicted
        if rows.are_words and all(value is None for value in rows.column("relations")):
            level: Level = "warning" if split == "train" else "info"
            message = f"{split}: {quantity(len(several), 'span')} with several labels: "
            message += "--multi-label keeps all"
            yield from _located(level, "labels", message, several)
            message = f"{split}: {quantity(len(crossing), 'pair')} of crossing spans: "
            message += "--decoding overlapping keeps both"
            yield from _located(level, "nesting", message, crossing)


def _of(number: int, rows: Examples, noun: str) -> str:
    total = quantity(len(rows), noun)
    return quantity(number, f"of {total} has", f"of {total} have")
