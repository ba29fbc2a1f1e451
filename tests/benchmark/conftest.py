"""Measure memory without what earlier tests have left."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True, scope="package")
def _earlier_objects_are_not_collected() -> None:
    """The bench collects garbage before each measurement, which takes long among many objects."""
    gc.collect()
    gc.freeze()
