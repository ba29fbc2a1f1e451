"""The positive class of two labels, whose F1 is ``f1``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import permutations

from finetune.types import UserError, did_you_mean

OPPOSITES = frozenset(
    tuple(pair.split("/"))
    for pair in (
        "yes/no y/n true/false t/f positive/negative pos/neg 1/0 label_1/label_0 1/-1 +1/-1 +/-"
    ).split()
)
"""Pairs of labels in lower case; the first is positive."""


def positive_label(
    labels: Collection[str], counts: Mapping[str, int], chosen: str | None = None
) -> str:
    """Choose the positive class of two labels: ``chosen``, else by name, else the rarer.

    ``counts`` counts the gold labels. If both labels are equally frequent, the alphabetically last
    one is positive.

    >>> positive_label(["spam", "ham"], {"spam": 20, "ham": 80})
    'spam'

    Raises:
        UserError: There are not two labels, or ``chosen`` is not among them.
    """
    names = sorted(set(labels))
    if chosen is not None and chosen not in names:
        listed = " and ".join(map(repr, names))
        raise UserError(
            f"--positive {chosen}: the labels are {listed}.{did_you_mean(chosen, names)}"
        )
    if len(names) != 2:
        raise UserError(f"a positive class is one of two labels, not of {len(names)}.")
    rarest = min(reversed(names), key=lambda name: counts.get(name, 0))
    return chosen or named_positive(names) or rarest


def metric_title(name: str, positive: str | None) -> str:
    """Name a metric; ``f1`` of two labels with its class.

    >>> metric_title("f1", "spam")
    'f1 (spam)'
    """
    return f"{name} ({positive})" if name == "f1" and positive is not None else name


def named_positive(labels: Collection[str]) -> str | None:
    """Find the positive class of two labels by their names; None if these do not tell it.

    With X and its negation (not_X, non-X, unX, no X), X is positive: ``equivalent`` in MRPC and
    ``duplicate`` in QQP, as GLUE computes F1 (Wang et al. 2018). With a pair of ``OPPOSITES``, the
    first label is positive.

    >>> named_positive(["not_equivalent", "equivalent"])
    'equivalent'
    """
    for label, other in permutations(labels):
        name, negated = label.strip().casefold(), other.strip().casefold()
        negation = rf"(not|non|un|no)[-_ ]*{re.escape(name)}"
        if (name, negated) in OPPOSITES or (name and re.fullmatch(negation, negated)):
            return label
    return None
