"""Parameters of tests over several lists: a fast selection, and all combinations if slow."""

from __future__ import annotations

from collections.abc import Sequence
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
