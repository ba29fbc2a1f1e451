"""Mixtures of data: shares of several sources, and old examples among new ones.

With old examples, a model that learns new labels keeps the old ones. Experience replay: Rolnick,
Ahuja, Schwarz, Lillicrap & Wayne 2019, "Experience Replay for Continual Learning", where half of
the examples are old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat

from finetune.data.dataset import DataError, Dataset
from finetune.data.examples import Examples, collected
from finetune.types import UserError, quantity

TEST_OLD = "test_old"
"""The split with the old test examples."""


def sampling_probabilities(sizes: Sequence[float], alpha: float) -> list[float]:
    """Return the probability of each language or source in a sample (Jurafsky & Martin, 11.7).

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


def with_replay(data: Dataset, old: Dataset, share: float, seed: int) -> Dataset:
    """Return data with old examples in train and validation, and with the old test split.

    Args:
        data: The new data.
        old: The data of an earlier run, as it was trained on them.
        share: The number of old examples for each new one.
        seed: Draws the old examples; of each label there is one at least.

    Raises:
        DataError: Labels are of different kinds, or a split has the name of the old test split.
    """
    import numpy as np

    splits, counts = dict(data.splits), []
    if TEST_OLD in splits:
        raise DataError(f"--replay: {data.name} has a split {TEST_OLD} already: name it otherwise.")
    for name in ("train", "validation"):
        new, before = _first(data, name), _first(old, name)
        if new is None or before is None:
            continue
        rows, others = splits[new], old.splits[before]
        if not rows.are_words and _kinds(rows) != _kinds(others):
            raise DataError(
                f"--replay: {old.name} has another kind of labels than {data.name}: one label, "
                "several labels or a number for each text."
            )
        order = np.random.default_rng(seed).permutation(len(others)).tolist()
        drawn = _drawn(others, round(share * len(rows)), order)
        counts.append(f"{len(drawn):,} of {quantity(len(others), f'{name} example')}")
        # in turn, so that --limit keeps the share; the ids of old and new data may be equal
        ranks = np.concatenate([np.linspace(0, 1, len(each)) for each in (rows, drawn)])
        mixed = collected(chain(rows, drawn)).take(ranks.argsort(kind="stable")).renumbered()
        splits[new] = mixed.replace("key", repeat(None, len(mixed)))
    test = _first(old, "test") or _first(old, "validation")
    if test is not None:
        splits[TEST_OLD] = old.splits[test]
        counts.append(f"{TEST_OLD} is its {test} split")
    note = f"--replay: of {old.name} {', '.join(counts)}"
    return replace(data.with_splits(splits), notes=[*data.notes, note])


def _first(data: Dataset, name: str) -> str | None:
    return next((split for split in data.splits if split.split("_")[0] == name), None)


def _kinds(rows: Examples) -> set[type]:
    return set(map(type, rows.column("label"))) - {type(None)}


def _drawn(rows: Examples, number: int, order: Sequence[int]) -> Examples:
    golds = list(rows.golds())
    first, seen = dict[int, None](), set[str]()
    for index in order:
        if not seen.issuperset(golds[index] or ()):
            first[index] = None
            seen.update(golds[index] or ())
    chosen = [*(first | dict.fromkeys(order))][: max(number, len(first))]
    return rows.take(sorted(chosen))
