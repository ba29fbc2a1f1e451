"""Data checks: statistics of a data set, and problems that will spoil training or scores."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from statistics import mean
from typing import Any, Literal

from finetune.data.dataset import (
    WARNING,
    WITHOUT_LEAKS,
    Dataset,
)
from finetune.data.examples import BLANK, DAMAGED, Examples
from finetune.data.labels import variants, voted_names
from finetune.data.spans import (
    COVERED_PER_MILLE,
    crossing_pairs,
    inner_spans,
    multi_label_spans,
    overlapping,
    proposed_width,
)
from finetune.data.tag_schemes import (
    all_transitions,
    count_transitions,
    illegal_transitions,
    num_illegal,
    scheme_of,
)
from finetune.runtime.progress import progress_task
from finetune.runtime.workers import forked_map, num_workers
from finetune.types import (
    ChoiceQuestion,
    Example,
    Span,
    TokenExample,
    abbreviated,
    did_you_mean,
    quantity,
)

Level = Literal["error", "warning", "info"]
MAX_LOCATIONS = 5
"""Most locations that a finding names."""
MAX_BAD_ROWS = 100
"""Most rows that cannot be read whose errors are listed."""
SubwordCounter = Callable[[Sequence[Any]], Sequence[Any]]
"""Maps texts to the number of subwords of each, or lists of words to a list of numbers for each."""
NO_LABEL = {"n/a", "#n/a", "na", "<na>", "null", "nil", "nan", "?"}
"""Names, in lower case, that probably mean *no label*."""
MIN_ROWS = 20
"""With at least this many rows, a different label in each row is an error."""
MOST_EXAMINED = 100_000
"""Most repeated texts whose labels are compared."""
_MAX_LABELS = 20


@dataclass(frozen=True)
class Finding:
    """One fact or problem of the data.

    An ``error`` stops training, a ``warning`` probably costs quality, an ``info`` is a statistic.
    """

    level: Level
    check: str
    message: str
    locations: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the message with its first location."""
        return f"{self.message} (first in {self.locations[0]})" if self.locations else self.message


class Locations:
    """The first ones of some locations, and their number."""

    def __init__(self, locations: Iterable[str] = (), number: int | None = None) -> None:
        """Keep the first locations; ``number`` is given if the others are not."""
        remaining = iter(locations)
        self.first = list(itertools.islice(remaining, MAX_LOCATIONS))
        self._number = len(self.first) + sum(1 for _ in remaining) if number is None else number

    def add(self, location: str) -> None:
        """Add a location, and keep it if it is among the first ones."""
        if self._number < MAX_LOCATIONS:
            self.first.append(location)
        self._number += 1

    def __len__(self) -> int:
        return self._number


def locations_of(rows: Examples, found: Iterable[bool]) -> Locations:
    """Return the locations of the examples for which ``found`` is true."""
    indices = (index for index, value in enumerate(found) if value)
    first = list(itertools.islice(indices, MAX_LOCATIONS))
    return Locations(rows.places(first), len(first) + sum(1 for _ in indices))


def located(
    level: Level, check: str, message: str, locations: Iterable[str] | Locations
) -> list[Finding]:
    """Return a finding with its first locations, or nothing if there are no locations."""
    if not isinstance(locations, Locations):
        locations = Locations(locations)
    rest = len(locations) - MAX_LOCATIONS
    more = (f"… and {rest:,} more",) if rest > 0 else ()
    first = (*locations.first, *more)
    return [Finding(level, check, message, first)] if locations else []


def bad_rows(errors: Iterable[str]) -> list[Finding]:
    """Return a finding with the errors of rows that cannot be read, or nothing without any."""
    found = [*dict.fromkeys(errors)]
    if not found:
        return []
    rest = len(found) - MAX_BAD_ROWS
    more = (f"… and {rest:,} more",) if rest > 0 else ()
    counted = quantity(len(found), "row cannot be read", "rows cannot be read")
    return [Finding("error", "rows", counted, (*found[:MAX_BAD_ROWS], *more))]


def render(findings: Iterable[Finding]) -> str:
    """Return the findings as text, errors last where they are seen, with a line of totals."""
    order = {"info": 0, "warning": 1, "error": 2}
    ranked = sorted(findings, key=lambda finding: order[finding.level])
    lines = []
    for finding in ranked:
        lines.append(f"{finding.level:<8} {finding.check:<11} {finding.message}")
        lines += [f"{'':<20} at {location}" for location in finding.locations]
    totals = Counter(finding.level for finding in ranked)
    lines.append(f"{quantity(totals['error'], 'error')}, {quantity(totals['warning'], 'warning')}")
    return "\n".join(lines)


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
    checks: list[Callable[[], Iterable[Finding]]] = [
        partial(_overview, dataset),
        partial(_documents, dataset),
        partial(_labels, dataset),
        partial(_pairs, dataset),
        partial(label_problems, dataset.splits),
        partial(_spans, dataset),
    ]
    words = {split: rows for split, rows in dataset.splits.items() if rows.are_words}
    for split, rows in dataset.splits.items():
        checks.append(partial(_content, split, rows))
        if rows.are_words:
            checks.append(partial(_transitions, split, words))
        checks.append(partial(_duplicates, split, rows))
        if max_length is not None:
            special = num_special[len(rows[0].texts()) > 1]
            checks.append(partial(_lengths, split, rows, count_subwords, max_length, special))
    checks.append(partial(_leaks, dataset.splits))
    if not dataset.is_large:
        return [finding for check in checks for finding in check()]
    findings: list[Finding] = []
    with progress_task("checking", len(checks), unit="check") as show:
        every = forked_map(lambda number: list(checks[number]()), range(len(checks)), num_workers())
        for number, found in enumerate(every, 1):
            findings += found
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
        lengths = _summary("words", rows.fact("words"))
        if not rows.are_words:
            lengths += f"; {_summary('characters', rows.fact('characters'))}"
        yield Finding("info", "lengths", f"{split}: {lengths}")


def _summary(unit: str, sizes: Any) -> str:
    import numpy as np

    ordered, number = np.sort(np.asarray(sizes)), len(sizes)
    p95 = ordered[min(number - 1, int(0.95 * number))]
    middle = (int(ordered[(number - 1) // 2]) + int(ordered[number // 2])) / 2
    return (
        f"{unit} mean {int(ordered.sum()) / number:.1f}, median {middle:g}, 95% up to {p95:,}, "
        f"longest {ordered[-1]:,}"
    )


def _labels(dataset: Dataset) -> Iterator[Finding]:
    for split, rows in dataset.splits.items():
        counts, number = rows.gold_counts()
        golds = rows.golds() if number else ()
        without = locations_of(rows, (gold is None for gold in golds))
        if split == "train" and len(without) == len(rows):
            message = "train: no example has a label (--columns label=NAME?)"
            yield from located("error", "labels", message, without)
        else:
            level: Level = "info" if split.startswith("test") else "warning"
            message = f"{split}: {_of(without, rows, 'example')} no label"
            yield from located(level, "labels", message, without)
        labels = () if rows.are_words else rows.column("label")
        numbers = [label for label in labels if isinstance(label, float)]
        if numbers:
            spread = f"{min(numbers):g} to {max(numbers):g}, mean {mean(numbers):.2f}"
            yield Finding("info", "labels", f"{split}: numbers {spread}")
        elif counts:
            yield Finding("info", "labels", f"{split}: {_distribution(counts, rows[0])}")


def _pairs(dataset: Dataset) -> Iterator[Finding]:
    train = dataset.splits.get("train", Examples())
    if train.are_words or train.kind is ChoiceQuestion:
        return
    single = {pair is None for pair in train.column("pair")}
    for split, rows in dataset.splits.items() if len(single) == 1 else ():
        each = (pair is None for pair in rows.column("pair"))
        if other := locations_of(rows, (alone not in single for alone in each)):
            kinds = "single texts" if True in single else "pairs of texts"
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
    examples = Examples.of(rows)
    if not examples.are_words:
        return []
    return [finding.message for finding in _document_problems(split, examples)]


def _documents(dataset: Dataset) -> Iterator[Finding]:
    splits = {split: rows for split, rows in dataset.splits.items() if rows.are_words}
    if not splits:
        return
    if all(name is None for rows in splits.values() for name in rows.column("document")):
        message = "no sentence names its document, which training with --context would need"
        yield Finding("info", "documents", message)
        return
    for split, rows in splits.items():
        if sizes := [size for _, _, size in _consecutive_documents(rows)]:
            message = f"{split}: {quantity(len(sizes), 'document')}, {_summary('sentences', sizes)}"
            yield Finding("info", "documents", message)
        yield from _document_problems(split, rows)


def _document_problems(split: str, rows: Examples) -> Iterator[Finding]:
    unnamed = locations_of(rows, (name is None for name in rows.column("document")))
    message = f"{split}: {_of(unnamed, rows, 'sentence')} no document name"
    message += ": --context has nothing to add to them"
    yield from located("info", "documents", message, unnamed)
    begun: set[str] = set()
    again = []
    for document, where, _ in _consecutive_documents(rows):
        if document in begun:
            again.append(where)
        begun.add(document)
    message = f"{split}: documents continue {quantity(len(again), 'time')} after another one began"
    message += ": --context ends there (keep the sentences of a document together)"
    yield from located("info", "documents", message, again)


def _consecutive_documents(rows: Examples) -> Iterator[tuple[str, str, int]]:
    for name, group in itertools.groupby(rows.columns("document", "where"), itemgetter(0)):
        if name is not None:
            (_, where), *others = group
            yield name, where, 1 + len(others)


def _content(split: str, rows: Examples) -> Iterator[Finding]:
    flags = rows.fact("flags")
    empty = locations_of(rows, flags & BLANK > 0)
    message = f"{split}: {quantity(len(empty), 'example')} with an empty text"
    yield from located("warning", "empty", message, empty)
    damaged = locations_of(rows, flags & DAMAGED > 0)
    message = (
        f"{split}: {quantity(len(damaged), 'example')} with U+FFFD, the mark of a lost character"
    )
    yield from located("warning", "characters", message, damaged)


def _transitions(split: str, splits: Mapping[str, Examples]) -> Iterator[Finding]:
    """Report tags of a split that may not follow the tag before them.

    All ``splits`` decide on the scheme.
    """
    counted = {
        name: count_transitions(tags or () for tags in rows.column("tags"))
        for name, rows in splits.items()
    }
    scheme, own, rows = scheme_of(all_transitions(counted.values())), counted[split], splits[split]
    if scheme is None or not own:
        return

    def places() -> Iterator[str]:
        for where, words, tags in rows.columns("where", "words", "tags"):
            for i in illegal_transitions(tags or (), scheme):
                if i < len(tags):
                    before = tags[i - 1] if i else "the start"
                    yield f"{where}, word {i} ({words[i]!r}: {tags[i]} after {before})"

    locations = Locations(places() if num_illegal(own, scheme) else ())
    message = f"{split}: tag scheme {scheme}"
    if not locations:
        yield Finding("info", "scheme", f"{message}, all transitions legal")
        return
    message += f", {quantity(len(locations), 'illegal tag')} (read as the start of a span)"
    yield from located("warning", "scheme", message, locations)


def _lengths(
    split: str,
    rows: Examples,
    count_subwords: SubwordCounter | None,
    max_length: int,
    num_special: int,
) -> Iterator[Finding]:
    words = rows.are_words
    level: Level = "info" if words else "warning"
    if count_subwords is None:
        over = locations_of(rows, rows.fact("words") > max_length)
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
        if words:
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
    over = locations_of(rows, (total + num_special > max_length for total in totals))
    effect = "read in windows" if words else "will be cut, unless read in windows"
    message = (
        f"{split}: {quantity(len(over), 'example')} of more than {max_length} tokens: {effect}"
    )
    yield from located(level, "lengths", message, over)


def _num_subwords(example: Example, counts: Sequence[int]) -> int:
    if isinstance(example, ChoiceQuestion):
        number = len(example.choices)
        return sum(counts[:-number]) + max(counts[-number:])
    return sum(counts)


def _subword_counts(rows: Examples, count_subwords: SubwordCounter) -> Iterator[Sequence[int]]:
    for start in range(0, len(rows), 1000):
        chunk: list[Any] = list(rows[start : start + 1000])
        if rows.are_words:
            yield from count_subwords([list(row.words) for row in chunk])
            continue
        counts = iter(count_subwords([text for row in chunk for text in row.texts()]))
        for row in chunk:
            yield list(itertools.islice(counts, len(row.texts())))


def _duplicates(split: str, rows: Examples) -> Iterator[Finding]:
    import numpy as np

    hashes = rows.fact("text")
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]))
    counts = np.diff(begins, append=len(ordered))
    begins, counts = begins[counts > 1], counts[counts > 1]
    extra = int((counts - 1).sum())
    percent = 100 * extra / len(rows)
    repeats = quantity(extra, "repeated example")
    message = f"{split}: {repeats} ({percent:.1f}%): equal texts within the split"
    by_place = np.argsort(order[begins])[:MAX_LOCATIONS]
    where = Locations(rows.places(order[begins[by_place] + 1]), len(begins))
    yield from located("info", "duplicates", message, where)
    examined = begins[:MOST_EXAMINED]  # in the order of hashes: a random sample
    ends = examined + counts[: len(examined)]
    members = np.concatenate(
        [np.zeros(0, int), *(order[a:b] for a, b in zip(examined, ends, strict=True))]
    )
    conflicts = _conflicts(rows, np.sort(members), hashes)
    message = f"{split}: {quantity(len(conflicts), 'repeated text')} with different labels"
    if len(examined) < len(begins):
        message += f", among {len(examined):,} of {len(begins):,}, drawn at random"
    yield from located("warning", "duplicates", message, conflicts)


def _conflicts(rows: Examples, members: Any, hashes: Any) -> list[str]:
    """Return the places of equal texts with different labels, in the order of the texts.

    ``members`` are the indices of repeated examples in order.
    """
    import numpy as np

    found: dict[int, str] = {}
    golds: dict[int, tuple[str, Any]] = {}
    mask = np.zeros(len(rows), bool)
    mask[members] = True
    repeated = rows.keep(mask)
    for key, row in zip(hashes[members].tolist(), repeated, strict=True):
        place = golds.setdefault(key, ("", None))
        if row.gold_labels() is None or key in found:
            continue
        if not place[0]:
            golds[key] = row.where or "?", _gold(row)
        elif place[1] != _gold(row):
            found[key] = f"{place[0]} and {row.where}"
    return [found[key] for key in golds if key in found]


def _gold(example: Example) -> Any:
    if isinstance(example, TokenExample):
        return example.tags, example.spans
    return set(example.label) if isinstance(example.label, tuple) else example.label


def _leaks(splits: Mapping[str, Examples]) -> Iterator[Finding]:
    import numpy as np

    earlier: dict[str, tuple[Any, Any]] = {}
    for split, rows in splits.items():
        hashes = rows.fact("text")
        unseen = np.ones(len(hashes), bool)
        found: dict[str, tuple[Any, Any]] = {}
        for name, (known, first) in earlier.items():
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            shared = ((known[at] == hashes) & unseen).nonzero()[0]
            unseen[shared] = False
            if len(shared):
                found[name] = shared, first[at[shared]]
        for name, (shared, first) in sorted(found.items(), key=lambda item: int(item[1][0][0])):
            ends = zip(
                rows.places(shared[:MAX_LOCATIONS]),
                splits[name].places(first[:MAX_LOCATIONS]),
                strict=True,
            )
            locations = Locations((f"{where} = {other}" for where, other in ends), len(shared))
            percent = 100 * len(locations) / len(rows)
            counted = f"{quantity(len(locations), 'example')} ({percent:.1f}%)"
            message = f"{split}: {counted} also in {name}"
            level: Level = "info"
            if name == "train":
                level = "warning"
                message += f"; {split}{WITHOUT_LEAKS} of a run is the score of the others"
            yield from located(level, "leak", message, locations)
        if split != [*splits][-1]:
            earlier[split] = np.unique(hashes, return_index=True)


class _SpanCounts:
    """Counts of the gold spans of a split; all 0 for texts."""

    def __init__(self, rows: Examples) -> None:
        self.widths = Counter[int]()
        self.num_inner = 0
        self.num_lost = 0  # labels of the same words beside the first
        self.several, self.crossing = Locations(), Locations()
        for where, spans in rows.columns("where", "spans") if rows.are_words else ():
            self.widths.update(span.end - span.start for span in spans or ())
            if spans and len(spans) > 1 and overlapping(spans):
                self._add_overlapping(where, spans)

    def _add_overlapping(self, where: str, spans: Sequence[Span]) -> None:
        self.num_inner += len(inner_spans(spans))
        for same in multi_label_spans(spans):
            self.num_lost += len(same) - 1
            labels = ", ".join(span.label for span in same)
            self.several.add(f"{where}, words {same[0].start} to {same[0].end} ({labels})")
        for a, b in crossing_pairs(spans):
            place = f"words {a.start} to {a.end} ({a.label}) and {b.start} to {b.end}"
            self.crossing.add(f"{where}, {place} ({b.label})")


def _spans(dataset: Dataset) -> Iterator[Finding]:
    counts = {split: _SpanCounts(rows) for split, rows in dataset.splits.items()}
    train = counts["train"] if "train" in counts and counts["train"].widths else None
    limit = 0
    if train:
        widths = train.widths
        limit, widest = proposed_width(widths), max(widths)
        fraction = sum(n for width, n in widths.items() if width <= limit) / widths.total()
        # rounded down: 100 % is all
        covered = "all" if limit == widest else f"{math.floor(fraction * 10_000) / 100:.2f}%"
        message = (
            f"train: spans are up to {quantity(widest, 'word')} wide; --max-width {limit} covers "
        )
        yield Finding("info", "widths", f"{message}{covered} of them")
    for split, rows in dataset.splits.items():
        own = counts[split]
        total = own.widths.total()
        wider = sum(n for width, n in own.widths.items() if width > limit)
        if split != "train" and train and wider:
            counted = f"{wider:,} of {quantity(total, 'span')} ({100 * wider / total:.1f}%)"
            message = f"{split}: {counted} wider than {quantity(limit, 'word')}, out of reach of "
            yield Finding("info", "widths", f"{message}that limit")
        if inner := own.num_inner:
            counted = f"{inner:,} of {quantity(total, 'span')} ({100 * inner / total:.1f}%)"
            message = f"{split}: {counted} inside a wider one"
            unseen = train and not train.num_inner
            message += ", but none in train is: no model learns this" if unseen else ""
            yield Finding("warning" if unseen else "info", "nesting", message)
        if rows.are_words and all(value is None for value in rows.column("relations")):
            yield from _unreachable(split, own, total)


def _unreachable(split: str, counts: _SpanCounts, total: int) -> Iterator[Finding]:
    """Report spans with several labels and crossing spans, which need an option to be predicted.

    The spans of relations are given, not predicted.
    """
    several, crossing = counts.several, counts.crossing
    message = f"{split}: {quantity(len(several), 'span')} with several labels: --multi-label "
    level = _level(split, counts.num_lost, total)
    yield from located(level, "labels", f"{message}keeps all", several)
    message = (
        f"{split}: {quantity(len(crossing), 'pair')} of crossing spans: --decoding overlapping "
        "keeps both"
    )
    yield from located(_level(split, len(crossing), total), "nesting", message, crossing)


def _level(split: str, unreachable: int, total: int) -> Level:
    many = unreachable * 1000 > total * (1000 - COVERED_PER_MILLE)
    return "warning" if split == "train" and many else "info"


def _of(some: Locations, rows: Examples, noun: str) -> str:
    whole = quantity(len(rows), noun)
    return quantity(len(some), f"of {whole} has", f"of {whole} have")


def label_problems(splits: Mapping[str, Examples]) -> Iterator[Finding]:
    """Report labels that leave nothing to learn, or that are probably mistakes."""
    found = {split: rows.gold_counts() for split, rows in splits.items()}
    counts = {split: counted for split, (counted, _) in found.items()}
    if "train" in splits:
        yield from _nothing_to_learn(splits["train"], *found["train"])
    texts = [rows for rows in splits.values() if not rows.are_words]
    if any(isinstance(label, float) for rows in texts for label in rows.column("label")):
        labels = (label for rows in texts for label in rows.column("label"))
        if all(label.is_integer() for label in labels if isinstance(label, float)):
            message = "all labels are whole numbers with a decimal point and are read as numbers"
            yield Finding("warning", "labels", f"{message}: write 1, not 1.0, for classes")
        return
    yield from _odd_names(counts)
    yield from _unseen(splits, counts)


def _nothing_to_learn(train: Examples, counts: Counter[str], without: int) -> Iterator[Finding]:
    number = len(train) - without
    are_texts, problem = not train.are_words, ""
    if not number:
        return
    if not are_texts and any(spans is not None for spans in train.column("spans")):
        problem = "" if counts else "no example has a span"
    else:
        different = _different(train) if are_texts else {*counts}
        only = different is not None and len(different) == 1
        if only:
            problem = (
                f"the only label of {quantity(number, 'example')} is {next(iter(counts), None)!r}"
            )
        elif are_texts and different and len(different) == number >= MIN_ROWS:
            if isinstance(next(iter(different)), str):
                problem = f"each of the {number:,} examples has a different label"
    if problem:
        role = "label" if are_texts else "tags"
        message = f"train: {problem}, so there is nothing to learn: name the column of the labels: "
        yield Finding("error", "labels", f"{message}--columns {role}=NAME")


def _different(train: Examples) -> set[Any] | None:
    found: set[Any] = set()
    repeated = False
    for label, gold in zip(train.column("label"), train.golds(), strict=True):
        if gold is not None:
            repeated = repeated or label in found
            found.add(label)
            if repeated and len(found) > 1:
                return None
    return found


def _odd_names(counts: Mapping[str, Counter[str]]) -> Iterator[Finding]:
    total = sum(counts.values(), Counter[str]())
    for name, count in total.items():
        if name.strip().lower() in NO_LABEL:
            message = (
                f"label {name!r} ({quantity(count, 'time')}) is read as a class: leave it empty "
                "where "
            )
            yield Finding("warning", "labels", f"{message}there is no label")
    if groups := variants(total):
        listed = "; ".join(
            ", ".join(f"{name!a} ({total[name]:,})" for name in names) for names in groups
        )
        message = f"labels that differ only in case, blanks or invisible characters: {listed}"
        advice = "if they mean one class, spell them alike"
        yield Finding("warning", "labels", f"{message}: {advice}")


def _unseen(
    splits: Mapping[str, Examples], counts: Mapping[str, Counter[str]]
) -> Iterator[Finding]:
    if not counts.get("train"):
        return
    train = [*counts["train"], *sorted(voted_names([splits["train"]]) - {*counts["train"]})]
    for split, found in counts.items():
        missing = {name: count for name, count in found.items() if name not in train}
        golds = splits[split].golds() if missing else ()
        rows = locations_of(splits[split], (not missing.keys().isdisjoint(g or ()) for g in golds))
        listed = abbreviated(f"{name!r} ({count:,})" for name, count in missing.items())
        refused = not splits[split].are_words
        effect = "no model can predict them, and they count as missed"
        if refused:
            near = did_you_mean(next(iter(missing), ""), train)
            effect = f"correct them, or remove their rows; train has {abbreviated(train)}"
            effect += near and f".{near}"
        message = f"{split}: labels that train does not have: {listed}: {effect}"
        yield from located("error" if refused else "warning", "labels", message, rows)
        voted = voted_names([splits[split]])
        if absent := [name for name in train if found and name not in {*found, *voted}]:
            message = f"{split}: never has {abbreviated(absent)}, which train has"
            yield Finding("info", "labels", message)
