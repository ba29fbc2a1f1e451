"""Held-out validation data, folds, and leaks between splits, by groups of related examples.

Examples of one document (questions about one context), and examples with equal texts
(``normalized_texts``; for pairs both texts), form a group, which is never divided. Groups are
assigned label by label, the rarest label first, as in iterative stratification (Sechidis, Tsoumakas
& Vlahavas, 2011, "On the Stratification of Multi-Label Data"), which serves one label, several
labels, tags and spans alike.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from finetune.config.tasks import TrainConfig
from finetune.data.dataset import DataError, Dataset, gold_labels, normalized_texts, renumbered
from finetune.types import Example, TextExample, TokenExample, abbreviated, quantity

DEFAULT_SHARE = 0.1
"""Fraction of the training examples to hold out by default."""
MOST_HELD_OUT = 10_000
"""Most training examples to hold out by default: more make each evaluation slow."""
MOST_RARE = 0.2
"""Largest fraction of the examples to hold out only to have rare labels on both sides."""
MIN_DOCUMENTS = 20
"""With at least this many documents, whole documents are held out."""
MIN_SHARED_WORDS = 10
"""Number of words from which a sentence that two documents share joins them. Shorter ones
("Results :") would join most documents of a corpus."""
NUM_BINS, MIN_BIN = 10, 20
"""Number of quantiles by which numbers are stratified, and least number of examples in each."""


def with_held_out_splits(
    dataset: Dataset, config: TrainConfig, default: float = DEFAULT_SHARE
) -> Dataset:
    """Return the data set with the splits that the settings hold out of train.

    These are a test split (``test_share``), then a validation split if there is none.
    """
    if config.test_share is not None:
        dataset = hold_out(dataset, config.test_share, split="test")
    if config.validation != "none":
        dataset = hold_out(dataset, config.validation_share, default)
    return dataset


def hold_out(
    dataset: Dataset,
    share: float | None = None,
    default: float = DEFAULT_SHARE,
    *,
    split: Literal["validation", "test"] = "validation",
) -> Dataset:
    """Return the data set with a validation (or test) split, held out of train if there is none.

    Without a ``share``, ``default`` is the fraction, up to ``MOST_HELD_OUT`` examples. The choice
    uses no seed, so that runs with different seeds are scored on the same examples. It keeps groups
    together (documents if there are ``MIN_DOCUMENTS``) and the fraction of each label; a label of
    two groups or more is on both sides (up to ``MOST_RARE``).
    """
    if any(name.split("_")[0] == split for name in dataset.splits):
        if share is not None:
            raise DataError(
                f"--{split}-share {share}: {dataset.name} has a {split} split, so nothing is held "
                "out: leave it out."
            )
        return dataset
    train = dataset.splits.get("train", [])
    documents = {_document(example) for example in train} - {None}
    by_document = len(documents) >= MIN_DOCUMENTS
    groups = list(_groups(train, by_document))
    unit = "document" if by_document else "different text"
    if len(groups) < 2:
        without = "--validation none" if split == "validation" else "no --test-share"
        raise DataError(
            f"{dataset.name} has no {split} split and train has only "
            f"{quantity(len(groups), unit)}, so none can be held out: add a file {split}.jsonl, or "
            f"write {without}."
        )
    share = share or min(default, MOST_HELD_OUT / len(train))
    held = {i for group in _held_out(train, groups, share) for i in group}
    kept = {
        "train": renumbered([e for i, e in enumerate(train) if i not in held]),
        split: renumbered([e for i, e in enumerate(train) if i in held]),
    }
    splits = {
        name: kept.get(name) or dataset.splits.get(name, [])
        for name in dict.fromkeys(("train", "validation", *dataset.splits, split))
        if name in kept or name in dataset.splits
    }
    note = (
        f"no {split} split: held out {len(held):,} of {quantity(len(train), 'example')} of "
        f"train{', stratified by label' if any(map(gold_labels, train)) else ''}; "
        f"{'documents' if by_document else 'equal texts'} stay together"
    )
    return replace(dataset.with_splits(splits), notes=[*dataset.notes, note])


def _held_out(
    examples: Sequence[Example], groups: Sequence[list[int]], share: float
) -> list[list[int]]:
    """Return the groups to hold out."""
    groups, counts, members = _count_labels(examples, groups, 0)
    num_kept = Counter({label: len(candidates) for label, candidates in members.items()})
    held: set[int] = set()
    decided: set[int] = set()

    def can_hold(group: int) -> bool:
        return group not in held and all(num_kept[label] > 1 for label in counts[group])

    def hold(group: int) -> None:
        held.add(group)
        num_kept.subtract(counts[group].keys())

    spare = MOST_RARE * len(examples)
    for label, candidates in members.items():
        wanted = share * sum(counts[group][label] for group in candidates)
        wanted -= sum(counts[group][label] for group in held.intersection(candidates))
        for group in candidates:
            number = counts[group][label]
            if group not in decided and number < 2 * wanted and can_hold(group):
                hold(group)  # brings the label nearer to its share
                wanted -= number
            decided.add(group)
        if held.isdisjoint(candidates):
            smallest = min(filter(can_hold, candidates), key=lambda g: len(groups[g]), default=None)
            if smallest is not None and spare > 0:
                hold(smallest)  # a group is more than its share
                spare -= len(groups[smallest])
    if not held:
        hold(min(range(len(groups)), key=lambda group: (not can_hold(group), len(groups[group]))))
    return [groups[group] for group in held]


def with_test_sets(dataset: Dataset, test_sets: Mapping[str, Dataset]) -> Dataset:
    """Return a data set with further test splits, by the name of the split.

    Each is the ``test`` split of other data, or their only split. Raises DataError if these have
    several splits without a test split, or if the data set has a split of that name.
    """
    if not test_sets:
        return dataset
    splits, notes = dict(dataset.splits), list(dataset.notes)
    for split, other in test_sets.items():
        name = split.removeprefix("test_")
        if split in splits:
            raise DataError(f"--test-sets {name}: {dataset.name} has a split {split} already.")
        found = "test" if len(other.splits) > 1 else next(iter(other.splits))
        if found not in other.splits:
            raise DataError(
                f"--test-sets {name}: {other.name} has no test split, only "
                f"{abbreviated(other.splits)}: name the file of the test set."
            )
        splits[split] = other.splits[found]
        notes.append(f"{split}: {quantity(len(splits[split]), 'example')} of {other.name}")
        notes += [f"{split}: {note}" for note in other.notes]
    return replace(dataset.with_splits(splits), notes=notes)


def assign_folds(
    examples: Sequence[Example], number: int, seed: int = 0, *, keep_rare: bool = False
) -> list[int]:
    """Return the fold of each example, from 0.

    Groups share a fold. Folds have nearly equal sizes and nearly equal fractions of each label.
    With ``keep_rare``, a group that alone has a label is in no fold (-1): a model cannot predict a
    label that its training data lack.
    """
    groups = list(_groups(examples, True))
    if len(groups) < number:
        problem = f"the data have only {quantity(len(groups), 'document')} or different texts"
        raise DataError(f"--folds {number}: {problem}: write a smaller number.")
    folds = _assign_folds(examples, groups, number, seed)
    if keep_rare:
        strata = [
            {name for index in group for name in gold_labels(examples[index]) or ()}
            for group in groups
        ]
        found = Counter(name for names in strata for name in names)
        numbers = any(isinstance(e, TextExample) and isinstance(e.label, float) for e in examples)
        for group, names in zip(groups, strata, strict=True):
            if not numbers and any(found[name] == 1 for name in names):
                for index in group:
                    folds[index] = -1
    return folds


def nested_order(examples: Sequence[Example], seed: int = 0) -> list[int]:
    """Return the indices in an order whose beginnings have nearly equal fractions of each label.

    The first group of each label comes first, so that the smallest subsets have every label.
    """
    groups, _, members = _count_labels(examples, list(_groups(examples, True)), seed)
    positions: dict[int, float] = {}
    for candidates in members.values():
        own = [group for group in candidates if group not in positions]
        positions.update({group: rank / len(own) for rank, group in enumerate(own)})
    order = sorted(range(len(groups)), key=lambda group: (positions[group], group))
    return [index for group in order for index in groups[group]]


def per_class(examples: Sequence[Example], number: int, seed: int) -> list[int]:
    """Return the indices of up to ``number`` examples of each label, drawn at random, in order.

    A draw of a larger number contains the draw of a smaller one.
    """
    members: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        members[tuple(gold_labels(example) or ())].append(index)
    drawn = (
        random.Random(f"{seed}/{label}").sample(own, len(own))[:number]
        for label, own in members.items()
    )
    return sorted(index for own in drawn for index in own)


def halved(examples: Sequence[Example]) -> list[int]:
    """Return 0 or 1 for each example, its half of the data; single texts are divided if need be."""
    for by_document in (True, False):
        groups = list(_groups(examples, by_document))
        if len(groups) > 1:
            return _assign_folds(examples, groups, 2, 0)
    return [index % 2 for index in range(len(examples))]


def _assign_folds(
    examples: Sequence[Example], groups: Sequence[list[int]], number: int, seed: int
) -> list[int]:
    """Assign each group to a fold, and return the fold of each example."""
    groups, counts, members = _count_labels(examples, groups, seed)
    sizes: Counter[int] = Counter()
    labels: Counter[tuple[int, str]] = Counter()
    folds = [-1] * len(examples)
    for label, candidates in members.items():
        for group in sorted(candidates, key=lambda group: -len(groups[group])):
            if folds[groups[group][0]] >= 0:
                continue
            fold = min(range(number), key=lambda fold: (labels[fold, label], sizes[fold], fold))
            labels.update({(fold, name): count for name, count in counts[group].items()})
            sizes[fold] += len(groups[group])
            for index in groups[group]:
                folds[index] = fold
    return folds


def leaked(dataset: Dataset) -> dict[str, set[int]]:
    """Return the ids of the examples of other splits whose texts are in train, by split."""
    train = {normalized_texts(example) for example in dataset.splits.get("train", ())}
    ids = {
        split: {example.id for example in rows if normalized_texts(example) in train}
        for split, rows in dataset.splits.items()
        if split != "train"
    }
    return {split: found for split, found in ids.items() if found}


def unmeasured_labels(dataset: Dataset) -> list[str]:
    """Return notes on training labels that a validation split lacks."""
    splits = dataset.splits
    if any(isinstance(e, TextExample) and isinstance(e.label, float) for e in splits["train"]):
        return []
    train = Counter(name for e in splits["train"] for name in set(gold_labels(e) or ()))
    notes = []
    for split in [split for split in splits if split.startswith("validation")]:
        found = {name for example in splits[split] for name in gold_labels(example) or ()}
        absent = [f"{name} ({train[name]:,} in train)" for name in sorted(train.keys() - found)]
        if absent:
            notes.append(f"{split} cannot measure labels that it lacks: {abbreviated(absent)}")
    return notes


def _count_labels(
    examples: Sequence[Example], groups: Sequence[list[int]], seed: int
) -> tuple[list[list[int]], list[Counter[str]], dict[str, list[int]]]:
    """Shuffle the groups and count their labels.

    Returns:
        The groups in random order; the number of examples of each label in each group; and the
        groups with each label, by label from rare to frequent.
    """
    groups = random.Random(seed).sample(groups, len(groups))
    strata = _strata(examples)
    counts = [Counter(name for index in group for name in strata[index]) for group in groups]
    members: defaultdict[str, list[int]] = defaultdict(list)
    for number, found in enumerate(counts):
        for label in found:
            members[label].append(number)
    return groups, counts, dict(sorted(members.items(), key=lambda item: (len(item[1]), item[0])))


def _strata(examples: Sequence[Example]) -> list[set[str]]:
    """Return the labels of each example, for a number its quantile; ``-`` without labels."""
    labels = [example.label if isinstance(example, TextExample) else None for example in examples]
    numbers = sorted(label for label in labels if isinstance(label, float))
    size = max(MIN_BIN, len(numbers) / NUM_BINS)
    return [
        {str(int(bisect_left(numbers, label) / size))}
        if isinstance(label, float)
        else set(gold_labels(example) or ("-",))
        for example, label in zip(examples, labels, strict=True)
    ]


def _groups(examples: Sequence[Example], by_document: bool) -> Iterator[list[int]]:
    """Yield the indices of examples that share a key, directly or through others (union-find)."""
    parent = list(range(len(examples)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[str, ...], int] = {}
    for index, example in enumerate(examples):
        for key in _keys(example, by_document):
            parent[root(index)] = root(first.setdefault(key, index))
    members: defaultdict[int, list[int]] = defaultdict(list)
    for index in range(len(examples)):
        members[root(index)].append(index)
    yield from members.values()


def _document(example: Example) -> str | None:
    """Return the document of a sentence, or the context of a question."""
    if isinstance(example, TokenExample):
        return example.document
    if example.choices:
        return example.text if example.text.strip() else None
    return None if example.answers is None else example.pair


def _keys(example: Example, by_document: bool) -> Iterator[tuple[str, ...]]:
    document = _document(example) if by_document else None
    if document is not None:
        yield "document", document
    long = isinstance(example, TokenExample) and len(example.words) >= MIN_SHARED_WORDS
    if document is None or long:
        yield "text", *normalized_texts(example)
