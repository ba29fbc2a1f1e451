"""What each example counts of names: labels, tags and types of spans, right, answered and in gold.

F1 is a function of three counts, Matthews of the counts of each label. Every function here makes
``Sums`` of one run; ``names`` are all names that occur in any run. N examples, C names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from finetune.data.tag_schemes import strict_spans, tags_to_spans
from finetune.evaluation.alignment import AlignedPredictions, in_scheme_of_gold
from finetune.evaluation.counts import Sums, ratio
from finetune.evaluation.positive import positive_label
from finetune.types import Span


class Items(NamedTuple):
    """The names of what each example has right, answered and in gold: N lists each."""

    right: list[list[str]]
    answered: list[list[str]]
    gold: list[list[str]]


def kind_of(run: AlignedPredictions) -> str:
    """The form, with tags that spell spans (``tags``) apart from those that do not (``plain``)."""
    return "plain" if run.kind == "tags" and run.schemes[0] is None else run.kind


def items_of(run: AlignedPredictions, reading: str = "conll") -> Items:
    """Names of labels, tags or spans; tags that spell spans are read by conlleval or strictly."""
    pairs: list[tuple[Any, Any]] = list(zip(run.gold, run.predicted, strict=True))
    kind = kind_of(run)
    if kind == "plain":
        right = [[a for a, b in zip(*pair, strict=True) if a == b] for pair in pairs]
        return Items(right, [list(a) for _, a in pairs], [list(g) for g, _ in pairs])
    if kind == "tags":
        read = strict_spans if reading == "strict" else tags_to_spans
        schemes = run.schemes[0] or "", run.schemes[1] or run.schemes[0] or ""
        pairs = [(read(g, schemes[0]), read(a, schemes[1])) for g, a in pairs]
    elif kind == "label":
        pairs = [([g], [a]) for g, a in pairs]
    sets = [(set(g), set(a)) for g, a in pairs]
    sides = [g & a for g, a in sets], [a for _, a in sets], [g for g, _ in sets]
    return Items(*([[_name(item) for item in each] for each in side] for side in sides))


def _name(item: str | Span) -> str:
    return item if isinstance(item, str) else item.label


def precision(sums: np.ndarray) -> np.ndarray:
    """Right over answered, of right, answered and gold [..., 3] -> [...]."""
    return ratio(sums[..., 0], sums[..., 1])


def recall(sums: np.ndarray) -> np.ndarray:
    """Right over gold, of the same."""
    return ratio(sums[..., 0], sums[..., 2])


def f1(sums: np.ndarray) -> np.ndarray:
    """The harmonic mean of both."""
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def share(
    run: AlignedPredictions,
    names: Sequence[str],
    rate: Callable[[np.ndarray], np.ndarray],
    reading: str = "conll",
    name: str | None = None,
) -> Sums:
    """A share of right, answered and gold items (of one name): counts [N, 3]."""
    rows = [
        [len(each) if name is None else each.count(name) for each in side]
        for side in items_of(run, reading)
    ]
    return Sums(np.array(rows, dtype=np.float64).T, rate)


def by_name(
    run: AlignedPredictions, names: Sequence[str], score: Callable[..., np.ndarray]
) -> Sums:
    """A function of the counts of all names: right, answered and gold, [N, 3 C]."""
    index = {name: column for column, name in enumerate(names)}
    items = items_of(run)
    rows = np.zeros((len(run.gold), 3, len(names)))
    for part, side in enumerate(items):
        places = [(i, index[name]) for i, each in enumerate(side) for name in each]
        if places:
            example, column = np.array(places).T
            np.add.at(rows, (example, part, column), 1)
    shape = (3, len(names))
    return Sums(
        rows.reshape(len(rows), -1), lambda sums: score(sums.reshape(*sums.shape[:-1], *shape))
    )


def _f1_by_name(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F1, number in gold, and whether it occurs at all, of each name [..., C]."""
    right, answered, gold = (sums[..., part, :] for part in range(3))
    return ratio(2 * right, answered + gold), gold, answered + gold > 0


def macro_f1(sums: np.ndarray) -> np.ndarray:
    """The mean over names that occur in the resample, in gold or answers."""
    each, _, occurs = _f1_by_name(sums)
    return ratio(each.sum(axis=-1), occurs.sum(axis=-1))


def weighted_f1(sums: np.ndarray) -> np.ndarray:
    """The mean weighted by the number in gold."""
    each, gold, _ = _f1_by_name(sums)
    return ratio((each * gold).sum(axis=-1), gold.sum(axis=-1))


def matthews(sums: np.ndarray) -> np.ndarray:
    """The multiclass correlation, as `finetune.evaluation.metrics.matthews` has it."""
    right, answered, gold = (sums[..., part, :] for part in range(3))
    number = gold.sum(axis=-1)
    covariance = right.sum(axis=-1) * number - (gold * answered).sum(axis=-1)
    spread = [number**2 - (side**2).sum(axis=-1) for side in (answered, gold)]
    return ratio(covariance, np.sqrt(spread[0]) * np.sqrt(spread[1]))


def _hamming_score(sums: np.ndarray) -> np.ndarray:
    """Wrong decisions over examples times names that occur; the last column counts examples."""
    wrong, number, occurs = sums[..., 0], sums[..., 1], sums[..., 2:] > 0
    return ratio(wrong, number * occurs.sum(axis=-1))


def hamming_loss(run: AlignedPredictions, names: Sequence[str]) -> Sums:
    """The share of wrong decisions."""
    counts = by_name(run, names, macro_f1).rows.reshape(len(run.gold), 3, len(names))
    right, answered, gold = (counts[:, part] for part in range(3))
    wrong = (answered + gold - 2 * right).sum(axis=1)
    rows = np.column_stack([wrong, np.ones(len(wrong)), answered + gold])
    return Sums(rows, _hamming_score)


def mean_of(values: Sequence[float], counts: Sequence[float] | None = None) -> Sums:
    """The sum of values over that of counts, 1 for each example if none are given."""
    counts = np.ones(len(values)) if counts is None else counts
    rows = np.column_stack([values, counts]).astype(np.float64)
    return Sums(rows, lambda sums: ratio(sums[..., 0], sums[..., 1]))


def subset_accuracy(run: AlignedPredictions, names: Sequence[str]) -> Sums:
    """The share of examples with exactly the right set."""
    return mean_of([set(g) == set(a) for g, a in zip(run.gold, run.predicted, strict=True)])


def tag_accuracy(run: AlignedPredictions, names: Sequence[str]) -> Sums:
    """Equal tags; those of another scheme are written in that of gold first."""
    sides = zip(run.gold, in_scheme_of_gold(run), strict=True)
    return mean_of([sum(map(str.__eq__, *each)) for each in sides], [len(g) for g in run.gold])


def positive_f1(run: AlignedPredictions, names: Sequence[str]) -> Sums:
    """F1 of the positive class of two labels."""
    return share(run, names, f1, name=positive_label(names))
