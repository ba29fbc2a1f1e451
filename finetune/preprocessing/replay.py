"""Experience replay: old examples among new ones.

A model that learns new labels then keeps the old ones: Rolnick, Ahuja, Schwarz, Lillicrap & Wayne
2019, "Experience Replay for Continual Learning", where half of the examples are old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat

import numpy as np

from finetune.data.examples import Dataset, Examples, collected
from finetune.data.splitting import label_types
from finetune.types import DataError, quantity

_REPLAY_SEED = 1
"""Draws old examples: the same for all seeds of a run, whose scores are compared."""
TEST_OLD = "test_old"
"""The split with the old test examples."""


def with_replay(data: Dataset, old: Dataset, share: float) -> Dataset:
    """Add old examples to train and validation of data, and the old test split.

    Args:
        data: The new data.
        old: The data of an earlier run, as it was trained on them.
        share: The number of old examples for each new one; of each label there is one at least.

    Raises:
        DataError: Labels are of different types, or a split has the name of the old test split.
    """
    splits, counts = dict(data.splits), []
    if TEST_OLD in splits:
        raise DataError(f"--replay: {data.name} has a split {TEST_OLD} already: name it otherwise.")
    for name in ("train", "validation"):
        new, before = _split(data, name), _split(old, name)
        if new is None or before is None:
            continue
        rows, old_rows = splits[new], old.splits[before]
        if label_types(rows) != label_types(old_rows):
            raise DataError(
                f"--replay: {old.name} has another type of labels than {data.name}: one label, "
                "several labels or a number for each text."
            )
        order = np.random.default_rng(_REPLAY_SEED).permutation(len(old_rows)).tolist()
        drawn = _drawn(old_rows, round(share * len(rows)), order)
        counts.append(f"{len(drawn):,} of {quantity(len(old_rows), f'{name} example')}")
        # in turn, so that --limit keeps the share; the ids of old and new data may be equal
        ranks = np.concatenate([np.linspace(0, 1, len(part)) for part in (rows, drawn)])
        mixed = collected(chain(rows, drawn)).take(ranks.argsort(kind="stable")).renumbered()
        splits[new] = mixed.replace("key", repeat(None, len(mixed)))
    test = _split(old, "test") or _split(old, "validation")
    if test is not None:
        splits[TEST_OLD] = old.splits[test]
        counts.append(f"{TEST_OLD} is its {test} split")
    note = f"--replay: of {old.name} {', '.join(counts)}"
    return replace(data.with_splits(splits), notes=[*data.notes, note])


def _split(data: Dataset, name: str) -> str | None:
    return next((split for split in data.splits if split.split("_")[0] == name), None)


def _drawn(rows: Examples, number: int, order: Sequence[int]) -> Examples:
    golds = list(rows.golds())
    first, seen = dict[int, None](), set[str]()
    for index in order:
        if not seen.issuperset(golds[index] or ()):
            first[index] = None
            seen.update(golds[index] or ())
    chosen = [*(first | dict.fromkeys(order))][: max(number, len(first))]
    return rows.take(sorted(chosen))
