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
