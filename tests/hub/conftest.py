"""Repositories of the hub that several tests read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.hub.server import Hub
from tests.tiny import save_tiny_checkpoint


@pytest.fixture
def encoder(hub: Hub) -> Path:
    """``lab/encoder``: a tiny encoder with its masked language model, and a card."""
    folder = hub.model("lab/encoder")
    if not (folder / "config.json").is_file():
        save_tiny_checkpoint(folder, "bert")
        (folder / "README.md").write_text("# lab/encoder\n")
        (folder / "flax_model.msgpack").write_bytes(b"0" * 1000)
    return folder


@pytest.fixture
def fresh_repository(hub: Hub, encoder: Path) -> Path:
    """``lab/fresh``: a copy of ``lab/encoder`` that a test may change."""
    shutil.rmtree(hub.model("lab/fresh"))
    return shutil.copytree(encoder, hub.model("lab/fresh"), dirs_exist_ok=True)
