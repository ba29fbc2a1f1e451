"""Tiny encoders that the tests of the wing share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import save_tiny_checkpoint


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder of each of some families."""
    folder = tmp_path_factory.mktemp("models")
    for family in ("bert", "roberta", "modernbert", "mpnet"):
        save_tiny_checkpoint(folder / family, family, dropout=0.1)
    return folder
