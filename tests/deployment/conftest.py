"""Runs of tiny models, trained for a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.laboratory import trained

TASKS = {
    "texts": "classify",
    "pairs": "nli",
    "tags": "tag",
    "nested": "ner",
    "choices": "choice",
}
"""The task of each run."""


@pytest.fixture(scope="session")
def runs() -> dict[str, Path]:
    return {name: trained(task) for name, task in TASKS.items()}


def close(found: Any, expected: Any, tolerance: float = 5e-6) -> bool:
    """Whether rows are equal, probabilities up to the rounding of another batch."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            close(found[key], own, tolerance) for key, own in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            close(*pair, tolerance) for pair in zip(found, expected, strict=True)
        )
    near = pytest.approx(expected, abs=tolerance) if isinstance(expected, float) else expected
    return bool(found == near)
