"""Held-out validation data, folds and leaks.

Examples of one document (questions about one context), and examples with equal texts
(``normalized``; for pairs both texts), form a group, which is never divided. Groups are
assigned label by label, the rarest label first, as in iterative stratification (Sechidis, Tsoumakas
& Vlahavas, 2011, "On the Stratification of Multi-Label Data"), which serves one label, several
labels, tags and spans alike.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, repeat

import numpy as np

from finetune.data.columns import Numbers
from finetune.data.examples import Dataset, Examples
from finetune.runtime.memory import without_garbage_collection
from finetune.types import ChoiceQuestion, DataError, Example, UserError, abbreviated, quantity

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
_NO_LABEL = "-"
"""The stratum of examples without a label."""
_NUM_BINS, MIN_BIN = 10, 20
"""Number of quantiles by which numbers are stratified, and least number of examples in each."""


@without_garbage_collection()
def hold_out(
    dataset: Dataset, share: float | None = None, default: float = DEFAULT_SHARE
) -> Dataset:
    """Hold a validation split out of train if there is none.

    Without a ``share``, ``default`` is the fraction, up to ``MOST_HELD_OUT`` examples. The choice
    uses no seed, so that runs with different seeds are scored on the same examples. It keeps groups
    together (documents if there are ``MIN_DOCUMENTS``) and the fraction of each label; a label of
    two groups or more is on both sides (up to ``MOST_RARE``).
    """
    if any(name.split("_")[0] == "validation" for name in dataset.splits):
        if share is not None:
            raise DataError(
                f"--validation {share}: {dataset.name} has a validation split, so nothing is held "
                "out: leave it out."
            )
        return dataset
    train = dataset.splits.get("train", Examples())
    documents = np.unique(train.stats("document"))
    by_document = len(documents) - (0 in documents) >= MIN_DOCUMENTS
    groups = _group_numbers(train, by_document)
    number = _number_of(groups)
    unit = "document" if by_document else "different text"
    if number < 2:
        raise DataError(
            f"{dataset.name} has no validation split and train has only "
            f"{quantity(number, unit)}, so none can be held out: add a validation "
            "split, or write --validation none."
        )
    share = share or min(default, MOST_HELD_OUT / len(train))
    held = _held_out(train, groups, share)
    scored = {name: dataset.splits[name] for name in dataset.scored_splits}
    kept, drawn = train.keep(~held).renumbered(), train.keep(held).renumbered()
    splits = {"train": kept, "validation": drawn, **scored}
    note = (
        f"no validation split: held out {len(drawn):,} of {quantity(len(train), 'example')} of "
        f"train{', stratified by label' if any(train.golds()) else ''}; "
        f"{'documents' if by_document else 'equal texts'} stay together"
    )
    return replace(dataset.with_splits(splits), notes=[*dataset.notes, note])


def _held_out(examples: Examples, groups: Numbers, share: float) -> Numbers:
    # Groups are tried in random order. A group is held out for a label if that brings the label
    # nearer to its share, and leaves the label in train.
    strata = _Strata(examples, groups, 0)
    sizes, num_kept = strata.sizes, strata.num_groups.copy()
    held, decided = np.zeros(len(sizes), bool), np.zeros(len(sizes), bool)

    def can_hold(group: int) -> bool:
        return not held[group] and bool((num_kept[strata.labels_of(group)[0]] > 1).all())

    def hold(group: int) -> None:
        held[group] = True
        num_kept[strata.labels_of(group)[0]] -= 1

    spare = MOST_RARE * len(examples)
    for label in strata.rare_first():
        candidates, counts = strata.groups_with(label)
        shortfall = share * int(counts.sum()) - int(counts[held[candidates]].sum())
        for group, count in zip(candidates.tolist(), counts.tolist(), strict=True):
            if not decided[group] and count < 2 * shortfall and can_hold(group):
                hold(group)  # brings the label nearer to its share
                shortfall -= count
            if 2 * shortfall <= 1:
                break
        decided[candidates] = True
        if not held[candidates].any():
            free = filter(can_hold, candidates.tolist())
            smallest = min(free, key=lambda group: int(sizes[group]), default=None)
            if smallest is not None and spare > 0:
                hold(smallest)  # a group is more than its share
                spare -= int(sizes[smallest])
    if not held.any():
        hold(min(range(len(sizes)), key=lambda group: (not can_hold(group), int(sizes[group]))))
    return held[strata.group]


def with_test_sets(dataset: Dataset, test_sets: Mapping[str, Dataset]) -> Dataset:
    """Add further test splits to a data set, by the name of the split.

    Each is the ``test`` split of other data, or their only split. Raises DataError if these have
    several splits without a test split, or if the data set has a split of that name.
    """
    if not test_sets:
        return dataset
    splits, notes = dict(dataset.splits), list(dataset.notes)
    for split, test_set in test_sets.items():
        name = split.removeprefix("test_")
        if split in splits:
            raise DataError(f"--test-sets {name}: {dataset.name} has a split {split} already.")
        test_split = "test" if len(test_set.splits) > 1 else next(iter(test_set.splits))
        if test_split not in test_set.splits:
            raise DataError(
                f"--test-sets {name}: {test_set.name} has no test split, only "
                f"{abbreviated(test_set.splits)}: name the file of the test set."
            )
        splits[split] = test_set.splits[test_split]
        notes.append(f"{split}: {quantity(len(splits[split]), 'example')} of {test_set.name}")
        notes += [f"{split}: {note.removeprefix(f'{test_split}: ')}" for note in test_set.notes]
    return replace(dataset.with_splits(splits), notes=notes)


def assign_folds(
    examples: Sequence[Example], number: int, seed: int = 0, *, keep_rare: bool = False
) -> list[int]:
    """Assign a fold to each example, from 0.

    Groups share a fold. Folds have nearly equal sizes and nearly equal fractions of each label.
    With ``keep_rare``, a group that alone has a label is in no fold (-1): a model cannot predict a
    label that its training data lack.
    """
    examples = Examples.of(examples)
    groups = _group_numbers(examples, True)
    if (num_groups := _number_of(groups)) < number:
        problem = f"the data have only {quantity(num_groups, 'document')} or different texts"
        raise DataError(f"--folds {number}: {problem}: write a smaller number.")
    strata = _Strata(examples, groups, seed)
    folds = _folds_of_groups(strata, number)
    if keep_rare and float not in label_types(examples):
        for label in range(len(strata.names)):
            candidates, _ = strata.groups_with(label)
            if len(candidates) == 1 and strata.names[label] != _NO_LABEL:
                folds[candidates] = -1
    return list(folds[strata.group].tolist())


def nested_order(examples: Sequence[Example], seed: int = 0) -> list[int]:
    """Order the indices so that all beginnings have nearly equal fractions of each label.

    The first group of each label comes first, so that the smallest subsets have every label.
    """
    examples = Examples.of(examples)
    strata = _Strata(examples, _group_numbers(examples, True), seed)
    rank = np.full(len(strata.sizes), -1.0)
    for label in strata.rare_first():
        candidates, _ = strata.groups_with(label)
        unranked = candidates[rank[candidates] < 0]
        rank[unranked] = np.arange(len(unranked)) / max(1, len(unranked))
    return list(np.lexsort((strata.group, rank[strata.group])).tolist())


def per_class(examples: Sequence[Example], number: int, seed: int) -> list[int]:
    """Draw up to ``number`` examples of each label at random; their indices, in order.

    A draw of a larger number contains the draw of a smaller one.
    """
    members: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, names in enumerate(Examples.of(examples).golds()):
        members[tuple(names or ())].append(index)
    drawn = (
        random.Random(f"{seed}/{label}").sample(indices, len(indices))[:number]
        for label, indices in members.items()
    )
    return sorted(chain.from_iterable(drawn))


def halves(examples: Sequence[Example]) -> tuple[list[int], list[int]]:
    """Divide the data into halves of rows; single texts are divided if need be."""
    examples = Examples.of(examples)
    folds = np.arange(len(examples)) % 2
    for by_document in (True, False):
        groups = _group_numbers(examples, by_document)
        if _number_of(groups) > 1:
            strata = _Strata(examples, groups, 0)
            folds = _folds_of_groups(strata, 2)[strata.group]
            break
    first, second = (np.flatnonzero(folds == half).tolist() for half in (0, 1))
    return first, second


def _folds_of_groups(strata: _Strata, number: int) -> Numbers:
    folds = np.full(len(strata.sizes), -1)
    sizes, counts = np.zeros(number, int), np.zeros((number, len(strata.names)), int)
    for label in strata.rare_first():
        candidates, _ = strata.groups_with(label)
        for group in candidates[np.argsort(-strata.sizes[candidates], kind="stable")].tolist():
            if folds[group] < 0:
                fold = folds[group] = np.lexsort((sizes, counts[:, label]))[0]
                labels, numbers = strata.labels_of(group)
                counts[fold, labels] += numbers
                sizes[fold] += strata.sizes[group]
    return folds


def leaked(dataset: Dataset) -> dict[str, set[int]]:
    """Find the examples of other splits whose texts are in train; their ids by split.

    Texts are compared by 64-bit hashes (``Examples.stats``).
    """
    if "train" not in dataset.splits:
        return {}
    train, leaks = dataset.splits["train"].stats("text"), {}
    for split, rows in dataset.splits.items():
        ids = compress(rows.column("id"), np.isin(rows.stats("text"), train))
        if split != "train" and (shared := set(ids)):
            leaks[split] = shared
    return leaks


def unmeasured_labels(dataset: Dataset) -> list[str]:
    """Note the training labels that a validation split lacks; places of choices are none."""
    splits, rows = dataset.splits, dataset.splits["train"]
    scored = [split for split in splits if split.startswith("validation")]
    if not scored or rows.example_type is ChoiceQuestion or float in label_types(rows):
        return []
    train = Counter(name for names in rows.golds() for name in set(names or ()))
    notes = []
    for split in scored:
        if float in label_types(splits[split]):  # of sentence encoders, scored by their cosines
            continue
        lacking = sorted(train.keys() - splits[split].gold_counts()[0].keys())
        if lacking:
            absent = abbreviated(f"{name} ({train[name]:,} in train)" for name in lacking)
            notes.append(f"{split} cannot measure labels that it lacks: {absent}")
    return notes


def sampling_probabilities(sizes: Sequence[float], alpha: float) -> list[float]:
    """Compute the probability of each language or source in a sample (Jurafsky & Martin, 11.7).

    q_i = p_i^α / Σ p_j^α for p_i = n_i / Σ n_k: an exponent α below 1 raises small sources
    (Conneau et al. 2020, XLM-R: 0.3), 1 keeps their proportions, 0 makes all equal.

    Args:
        sizes: n, the amount of text of each source, in any unit.
        alpha: α, from 0 to 1.

    Raises:
        UserError: α is outside this range, or a source has no text.

    >>> [round(q, 3) for q in sampling_probabilities([1000, 10], 0.3)]
    [0.799, 0.201]
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"--alpha must be from 0 to 1, not {alpha}.")
    if not sizes or min(sizes) <= 0:
        raise UserError(f"every source needs text, but their sizes are {list(sizes)}.")
    weights = [(size / sum(sizes)) ** alpha for size in sizes]
    return [weight / sum(weights) for weight in weights]


def label_types(rows: Examples) -> set[type]:
    """The types of the labels of texts; none of words."""
    labels = () if rows.are_words else rows.column("label")
    return set(map(type, labels)) - {type(None)}


class _Strata:
    """The number of examples of each label in each group; groups are in random order."""

    def __init__(self, examples: Examples, groups: Numbers, seed: int) -> None:
        from scipy.sparse import coo_matrix

        sizes = np.bincount(groups)
        order = np.array(random.Random(seed).sample(range(len(sizes)), len(sizes)), np.int64)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.group, self.sizes = rank[groups], sizes[order]  # [N], [G]
        codes, strata = _values_and_strata(examples)
        numbers, label, value = dict[str, int](), array("q"), array("q")
        for index, names in enumerate(map(set, strata)):
            label.extend(numbers.setdefault(name, len(numbers)) for name in names)
            value.extend(repeat(index, len(names)))
        self.names, num_values = list(numbers), int(codes.max(initial=-1)) + 1
        of_group = coo_matrix((np.ones_like(codes), (self.group, codes)), (len(sizes), num_values))
        has_label = coo_matrix((np.ones_like(label), (value, label)), (num_values, len(numbers)))
        self._by_group = of_group.tocsr() @ has_label.tocsr()
        self._by_label = self._by_group.tocsc()
        self.num_groups = self._by_label.getnnz(axis=0)  # of each label

    def rare_first(self) -> list[int]:
        numbers = range(len(self.names))
        return sorted(numbers, key=lambda label: (self.num_groups[label], self.names[label]))

    def groups_with(self, label: int) -> tuple[Numbers, Numbers]:
        part = slice(*self._by_label.indptr[label : label + 2])
        return self._by_label.indices[part], self._by_label.data[part]

    def labels_of(self, group: int) -> tuple[Numbers, Numbers]:
        part = slice(*self._by_group.indptr[group : group + 2])
        return self._by_group.indices[part], self._by_group.data[part]


def _values_and_strata(examples: Examples) -> tuple[Numbers, Iterable[Iterable[str]]]:
    # the number of the gold of each example, and the strata of each different gold
    example_type, gold = examples.example_type, examples.example_type.GOLD
    if len(gold) > 1:
        return np.arange(len(examples)), (names or (_NO_LABEL,) for names in examples.golds())
    labels, codes = examples.codes(gold[0])
    ordered = sorted(x for x in examples.column(gold[0]) if isinstance(x, float))
    size = max(MIN_BIN, len(ordered) / _NUM_BINS)
    return codes, (
        [str(int(bisect_left(ordered, label) / size))]
        if isinstance(label, float)
        else example_type.labels_of(label) or [_NO_LABEL]
        for label in labels
    )


def _group_numbers(examples: Examples, by_document: bool) -> Numbers:
    """The group of each example [N]; examples that share a key, also through others, form one."""
    text, document = examples.stats("text"), examples.stats("document")
    if not by_document or not document.any():
        return _by_first(text)
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    long = np.full(len(text), examples.are_words) & (examples.stats("words") >= MIN_SHARED_WORDS)
    by_text = (long | (document == 0)).nonzero()[0]
    in_document = (document != 0).nonzero()[0]
    texts, documents = (
        np.unique(values, return_inverse=True) for values in (text[by_text], document[in_document])
    )
    key = np.concatenate([texts[1], documents[1] + len(texts[0])]) + len(text)
    example = np.concatenate([by_text, in_document])
    size = len(text) + len(texts[0]) + len(documents[0])
    edges = coo_matrix((np.ones(len(key), bool), (example, key)), (size, size))
    return _by_first(connected_components(edges, directed=False)[1][: len(text)])


def _number_of(groups: Numbers) -> int:
    return int(groups.max(initial=-1)) + 1


def _by_first(groups: Numbers) -> Numbers:
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
