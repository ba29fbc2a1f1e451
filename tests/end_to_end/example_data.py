"""The folder of examples, with fewer of them to validate and test on."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVALUATED = 30
"""Examples of each file to validate or test on."""


def copy_examples(folder: Path) -> None:
    """Copy the scripts and the data of the examples."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for path in (folder / "examples" / "data").glob("*/*"):
        if path.stem in ("validation", "test"):
            _shorten(path)


def _shorten(path: Path) -> None:
    between = "\n\n" if path.suffix == ".conll" else "\n"
    examples = path.read_text("utf-8").split(between)
    path.write_text(between.join(examples[:EVALUATED]).rstrip("\n") + "\n", "utf-8")
