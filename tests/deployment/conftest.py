"""Runs of tiny models, trained for a few steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from finetune.deployment.batcher import Limits
from finetune.deployment.served_model import Engine, ServedModel
from finetune.inference.predictor import Predictor
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


@contextlib.contextmanager
def served(runs: dict[str, Path], names: Sequence[str], limits: Limits) -> Iterator[list[Any]]:
    """The models of some runs, ready to answer."""
    with contextlib.ExitStack() as stack:
        engines = [(name, Engine.of(Predictor(runs[name]))) for name in names]
        models = [ServedModel(name, engine, limits) for name, engine in engines]
        yield [stack.enter_context(model) for model in models]


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
