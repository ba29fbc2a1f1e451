"""Parameters of tests over several lists: a fast selection, and all combinations if slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def covering(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Return all pairs; those that are not needed to see every value once are marked slow."""
    if len(first) < len(second):
        raise ValueError("the longer list must be the first")
    return [
        pytest.param(one, other, marks=() if i % len(second) == j else pytest.mark.slow)
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]


def few(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Return all values; those that are not named are slow."""
    if unknown := {*fast} - {*(values := [*values])}:
        raise ValueError(f"no such values: {unknown}")
    return [
        value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
