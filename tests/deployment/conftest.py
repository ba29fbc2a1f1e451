"""Runs of tiny models, trained for a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import trained

TASKS = {"texts": "classify", "pairs": "nli", "tags": "tag", "nested": "ner", "choices": "choice"}
"""The task of each run."""


@pytest.fixture(scope="session")
def runs() -> dict[str, Path]:
    return {name: trained(task) for name, task in TASKS.items()}


def blocking(*packages: str) -> str:
    """Python code that lets no import of these packages succeed."""
    return f"""
import sys
class Block:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in {packages!r}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Block())
"""
