"""Runs of tiny models, trained for a few steps."""

from __future__ import annotations

from pathlib import Path

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
