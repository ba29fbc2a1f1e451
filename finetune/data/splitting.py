"""Held-out validation data, folds, and leaks between splits, by groups of related examples.

Examples of one document (questions about one context), and examples with equal texts
(``normalized_texts``; for pairs both texts), form a group, which is never divided. Groups are
assigned label by label, the rarest label first, as in iterative stratification (Sechidis, Tsoumakas
& Vlahavas, 2011, "On the Stratification of Multi-Label Data"), which serves one label, several
labels, tags and spans alike.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from finetune.config.tasks import TrainConfig
from finetune.data.dataset import DataError, Dataset
from finetune.data.examples import Examples
from finetune.types import Example, abbreviated, quantity

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]

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
    """Return the data set with a validation split, which the settings hold out of train."""
    if config.validation != "none":
        dataset = hold_out(dataset, config.validation_share, default)
    return dataset


def hold_out(
    dataset: Dataset,
    share: float | None = None,
    default: float = DEFAULT_SHARE,
) -> Dataset:
    """Return the data set with a validation split, held out of train if there is none.

    Without a ``share``, ``default`` is the fraction, up to ``MOST_HELD_OUT`` examples. The choice
    uses no seed, so that runs with different seeds are scored on the same examples. It keeps groups
    together (documents if there are ``MIN_DOCUMENTS``) and the fraction of each label; a label of
    two groups or more is on both sides (up to ``MOST_RARE``).
    """
    split = "validation"
    if any(name.split("_")[0] == split for name in dataset.splits):
        if share is not None:
            raise DataError(
                f"--validation {share}: {dataset.name} has a validation split, so nothing is held "
                "out: leave it out."
            )
        return dataset
    import numpy as np

    train = dataset.splits.get("train", Examples())
    documents = np.unique(train.fact("document"))
    by_document = len(documents) - (0 in documents) >= MIN_DOCUMENTS
    groups = _group_numbers(train, by_document)
    number = int(groups.max(initial=-1)) + 1
    unit = "document" if by_document else "different text"
    if number < 2:
        raise DataError(
            f"{dataset.name} has no {split} split and train has only "
            f"{quantity(number, unit)}, so none can be held out: add a file {split}.jsonl, or "
            "write --validation none."
        )
    share = share or min(default, MOST_HELD_OUT / len(train))
    held = _held_out(train, groups, share)[groups]
    kept = {"train": train.keep(~held).renumbered(), split: train.keep(held).renumbered()}
    splits = {
        name: kept.get(name) or dataset.splits.get(name, Examples())
        for name in dict.fromkeys(("train", "validation", *dataset.splits, split))
        if name in kept or name in dataset.splits
    }
    note = (
        f"no {split} split: held out {int(held.sum()):,} of {quantity(len(train), 'example')} of "
        f"train{', stratified by label' if any(train.golds()) else ''}; "
        f"{'documents' if by_document else 'equal texts'} stay together"
    )
    return replace(dataset.with_splits(splits), notes=[*dataset.notes, note])


def _held_out(examples: Examples, groups: Numbers, share: float) -> Numbers:
    """Return whether to hold out each group [G]; ``groups`` [N] has the group of each example.

    Groups are tried in random order. A group is held out for a label if that brings the label
    nearer to its share, and leaves the label in train.
    """
    import numpy as np

    sizes = np.bincount(groups)
    order = np.array(random.Random(0).sample(range(len(sizes)), len(sizes)))
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    position = position[groups]
    # the number of examples of each label in each group: group by position, label, number
    names, example, label = _label_numbers(examples)
    pairs, count = np.unique(label * len(sizes) + position[example], return_counts=True)
    del example, label, position
    label, group = np.divmod(pairs, len(sizes))
    begins = np.searchsorted(label, np.arange(len(names) + 1))
    by_group = np.argsort(group, kind="stable")
    label_of = label[by_group]
    first = np.searchsorted(group[by_group], np.arange(len(sizes) + 1))
    sizes = sizes[order]
    num_kept = np.diff(begins)
    held, decided = np.zeros(len(sizes), bool), np.zeros(len(sizes), bool)

    def can_hold(each: int) -> bool:
        return not held[each] and bool(
            (num_kept[label_of[first[each] : first[each + 1]]] > 1).all()
        )

    def hold(each: int) -> None:
        held[each] = True
        num_kept[label_of[first[each] : first[each + 1]]] -= 1

    spare = MOST_RARE * len(examples)
    for own in sorted(
        range(len(names)), key=lambda own: (begins[own + 1] - begins[own], names[own])
    ):
        candidates, numbers = (values[begins[own] : begins[own + 1]] for values in (group, count))
        wanted = share * int(numbers.sum())
        wanted -= int(numbers[held[candidates]].sum())
        for each, number in zip(map(int, candidates), map(int, numbers), strict=True):
            if not decided[each] and number < 2 * wanted and can_hold(each):
                hold(each)  # brings the label nearer to its share
                wanted -= number
            if 2 * wanted <= 1:
                break
        decided[candidates] = True
        if not held[candidates].any():
            free = filter(can_hold, map(int, candidates))
            smallest = min(free, key=lambda each: int(sizes[each]), default=None)
            if smallest is not None and spare > 0:
                hold(smallest)  # a group is more than its share
                spare -= int(sizes[smallest])
    if not held.any():
        hold(min(range(len(sizes)), key=lambda each: (not can_hold(each), int(sizes[each]))))
    found = np.zeros(len(sizes), bool)
    found[order] = held
    return found


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
    examples = Examples.of(examples)
    groups = _groups(examples, True)
    if len(groups) < number:
        problem = f"the data have only {quantity(len(groups), 'document')} or different texts"
        raise DataError(f"--folds {number}: {problem}: write a smaller number.")
    folds = _assign_folds(examples, groups, number, seed)
    if keep_rare:
        golds = list(examples.golds())
        strata = [{name for index in group for name in golds[index] or ()} for group in groups]
        found = Counter(name for names in strata for name in names)
        numbers = _have_numbers(examples)
        for group, names in zip(groups, strata, strict=True):
            if not numbers and any(found[name] == 1 for name in names):
                for index in group:
                    folds[index] = -1
    return folds


def nested_order(examples: Sequence[Example], seed: int = 0) -> list[int]:
    """Return the indices in an order whose beginnings have nearly equal fractions of each label.

    The first group of each label comes first, so that the smallest subsets have every label.
    """
    examples = Examples.of(examples)
    groups, _, members = _count_labels(examples, _groups(examples, True), seed)
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
    for index, names in enumerate(Examples.of(examples).golds()):
        members[tuple(names or ())].append(index)
    drawn = (
        random.Random(f"{seed}/{label}").sample(own, len(own))[:number]
        for label, own in members.items()
    )
    return sorted(index for own in drawn for index in own)


def halves(examples: Sequence[Example]) -> tuple[list[int], list[int]]:
    """Return the rows of each half of the data; single texts are divided if need be."""
    examples = Examples.of(examples)
    for by_document in (True, False):
        groups = _groups(examples, by_document)
        if len(groups) > 1:
            folds = _assign_folds(examples, groups, 2, 0)
            break
    else:
        folds = [row % 2 for row in range(len(examples))]
    first, second = ([row for row, fold in enumerate(folds) if fold == half] for half in (0, 1))
    return first, second


def _assign_folds(
    examples: Examples, groups: Sequence[list[int]], number: int, seed: int
) -> list[int]:
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
    """Return the ids of the examples of other splits whose texts are in train, by split.

    Texts are compared by 64-bit hashes (``Examples.fact``).
    """
    import numpy as np

    others = {split: rows for split, rows in dataset.splits.items() if split != "train"}
    if "train" not in dataset.splits or not others:
        return {}
    train, found = dataset.splits["train"].fact("text"), {}
    for split, rows in others.items():
        shared = np.isin(rows.fact("text"), train)
        if ids := {
            id for id, is_shared in zip(rows.column("id"), shared, strict=True) if is_shared
        }:
            found[split] = ids
    return found


def unmeasured_labels(dataset: Dataset) -> list[str]:
    """Return notes on training labels that a validation split lacks."""
    splits = dataset.splits
    scored = [split for split in splits if split.startswith("validation")]
    if not scored or _have_numbers(splits["train"]):
        return []
    train = Counter(name for names in splits["train"].golds() for name in set(names or ()))
    notes = []
    for split in scored:
        found = {name for names in splits[split].golds() for name in names or ()}
        absent = [f"{name} ({train[name]:,} in train)" for name in sorted(train.keys() - found)]
        if absent:
            notes.append(f"{split} cannot measure labels that it lacks: {abbreviated(absent)}")
    return notes


def _count_labels(
    examples: Examples, groups: Sequence[list[int]], seed: int
) -> tuple[list[list[int]], list[Counter[str]], dict[str, list[int]]]:
    """Shuffle the groups and count their labels.

    Returns:
        The groups in random order; the number of examples of each label in each group; and the
        groups with each label, by label from rare to frequent.
    """
    groups = random.Random(seed).sample(groups, len(groups))
    strata = list(_strata(examples))
    counts = [Counter(name for index in group for name in strata[index]) for group in groups]
    members: defaultdict[str, list[int]] = defaultdict(list)
    for number, found in enumerate(counts):
        for label in found:
            members[label].append(number)
    return groups, counts, dict(sorted(members.items(), key=lambda item: (len(item[1]), item[0])))


def _have_numbers(examples: Examples) -> bool:
    if examples.are_words:
        return False
    return any(isinstance(label, float) for label in examples.column("label"))


def _strata(examples: Examples) -> Iterator[set[str]]:
    if not _have_numbers(examples):
        yield from (set(names or ("-",)) for names in examples.golds())
        return
    numbers = sorted(label for label in examples.column("label") if isinstance(label, float))
    size = max(MIN_BIN, len(numbers) / NUM_BINS)
    for label, names in zip(examples.column("label"), examples.golds(), strict=True):
        if isinstance(label, float):
            yield {str(int(bisect_left(numbers, label) / size))}
        else:
            yield set(names or ("-",))


def _label_numbers(examples: Examples) -> tuple[list[str], Numbers, Numbers]:
    import numpy as np

    numbers: dict[str, int] = {}
    example, label = array("q"), array("q")
    for index, names in enumerate(_strata(examples)):
        for name in names:
            example.append(index)
            label.append(numbers.setdefault(name, len(numbers)))
    return list(numbers), np.frombuffer(example, np.int64), np.frombuffer(label, np.int64)


def _group_numbers(examples: Examples, by_document: bool) -> Numbers:
    """Return the group of each example [N], numbered by the first examples of the groups.

    Examples that share a key, directly or through others, form a group.
    """
    import numpy as np

    text, document = examples.fact("text"), examples.fact("document")
    if not by_document or not document.any():
        return _by_first(np.unique(text, return_inverse=True)[1])
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    long = np.full(len(text), examples.are_words) & (examples.fact("words") >= MIN_SHARED_WORDS)
    by_text = (long | (document == 0)).nonzero()[0]
    in_document = (document != 0).nonzero()[0]
    texts, documents = (
        np.unique(values, return_inverse=True) for values in (text[by_text], document[in_document])
    )
    key = np.concatenate([texts[1], documents[1] + len(texts[0])]) + len(text)
    example = np.concatenate([by_text, in_document])
    size = len(text) + len(texts[0]) + len(documents[0])
    edges = coo_matrix((np.ones(len(key), bool), (example, key)), (size, size))
    found = connected_components(edges, directed=False)[1]
    return _by_first(found[: len(text)])


def _groups(examples: Examples, by_document: bool) -> list[list[int]]:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(_group_numbers(examples, by_document).tolist()):
        groups[group].append(index)
    return list(groups.values())


def _by_first(groups: Numbers) -> Numbers:
    import numpy as np

    _, first, own = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[own]
