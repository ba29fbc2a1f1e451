"""Runs of tiny models, trained for a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import small_data as data
from tests.command import run
from tests.tiny import save_tiny_checkpoint


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("serving")
    save_tiny_checkpoint(folder / "bert", "bert")
    made = {}
    for name, task, write in (
        ("texts", "classify", data.sentiment),
        ("pairs", "nli", data.pairs),
        ("tags", "tag", data.entities),
        ("nested", "ner", data.entities),
        ("choices", "choice", data.choices),
    ):
        write(folder / f"{name}-data")
        made[name] = folder / name
        done = run(
            task,
            "--model",
            folder / "bert",
            "--data",
            folder / f"{name}-data",
            "--out",
            made[name],
            "--steps",
            "2",
            "--max-length",
            "40",
            "--precision",
            "fp32",
        )
        assert done.code == 0, done.err
    return made
