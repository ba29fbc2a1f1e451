"""Runs of all cases, which the tests of one process share."""

from __future__ import annotations

import pytest

from tests.tasks.cases import Runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Train each case once, when a test first asks for it."""
    return Runs(tmp_path_factory.mktemp("tasks"))
