"""Which of two labels is the positive class, the one that `f1` is of."""

from __future__ import annotations

import re
from collections.abc import Collection

from finetune.types import UserError

OPPOSITES = frozenset({
    ("yes", "no"), ("y", "n"), ("true", "false"), ("t", "f"), ("positive", "negative"),
    ("pos", "neg"), ("1", "0"), ("1", "-1"), ("+1", "-1"), ("+", "-"),
})  # fmt: skip
"""Pairs of names of which the first is positive, in lower case."""


def positive_label(labels: Collection[str]) -> str:
    """The positive class of a pair of labels, whatever their order and the case of letters.

    Of X and its negation (not_X, non-X, unX, no X; with ``-``, ``_``, a space or nothing between)
    it is X: ``equivalent`` of MRPC and ``duplicate`` of QQP, as GLUE counts F1 (Wang et al. 2018).
    Of ``OPPOSITES`` it is the first. Of any other pair it is the last in alphabetical order, of
    whole numbers the larger. Raises ValueError if there are not two labels.

    >>> positive_label(["not_equivalent", "equivalent"])
    'equivalent'
    """
    names = set(labels)
    if len(names) != 2:
        raise UserError(f"a positive class is one of two labels, not of {len(names)}.")
    numeric = all(re.fullmatch(r"[-+]?\d+", name) for name in names)
    first, last = sorted(names, key=lambda name: (int(name) if numeric else 0, name))
    return first if _denied(first, last) else last


def _denied(name: str, other: str) -> bool:
    """Whether the other label says that this one does not apply."""
    name, other = name.strip().casefold(), other.strip().casefold()
    if (name, other) in OPPOSITES:
        return True
    return bool(name) and bool(re.fullmatch(rf"(not|non|un|no)[-_ ]*{re.escape(name)}", other))
