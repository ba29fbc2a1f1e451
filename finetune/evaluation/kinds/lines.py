"""Values in the lines of prediction files."""

from __future__ import annotations

import math
from typing import Any

from finetune.data import DataError


def check_names(where: str, key: str, value: Any, tags: bool = False) -> None:
    """Raise DataError for labels, or for ``tags`` of words, of another type."""
    names = value if isinstance(value, list) else [value]
    if tags and not (isinstance(value, list) and all(isinstance(t, str | None) for t in value)):
        legal = "a list with one string for each word"
    elif not tags and not all(isinstance(name, str | float | int) for name in names):
        legal = "a name, a list of names or a number"
    else:
        return
    raise DataError(f"{where}: {key} must be {legal}, not {value!r:.60}.")


def probability(value: Any) -> float | None:
    """Return a value of a line as a probability; None for anything else."""
    return float(value) if type(value) in (float, int) and 0 <= value <= 1 + 1e-6 else None


def known_or_nan(value: Any) -> float:
    """Return a value of a line as a probability; NaN for anything else."""
    known = probability(value)
    return math.nan if known is None else known


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and no truth value."""
    return type(value) in (float, int)
